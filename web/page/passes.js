// Forward passes in memory, by worker, and what of them a strip of pixels shows.

import { at, lowest, readColumns } from '#columns';

/**
 * @typedef {Object} Passes
 * @property {number} count
 * @property {Map<number, { first: number, last: number, mostRequests: number, mostKv: number }>} workers  Where each one's passes stand, and their peaks.
 * @property {Record<'end' | 'wall' | 'bound' | 'prefillRequests' | 'prefillTokens' | 'decodeRequests' | 'kv' | 'queued' | 'lostBefore', ArrayLike<number>>} columns
 *
 * @typedef {{ x: number, width: number, prefill: number, decode: number, kv: number, pass: number }} Bar  Requests and KV tokens of the largest pass on its pixels.
 */

/**
 * @param {ArrayBuffer} buffer
 * @returns {Passes}
 */
export function readPasses(buffer) {
  const { column } = readColumns(buffer);
  const worker = column('worker');
  const columns = {
    end: column('end_ns'),
    wall: column('wall_ns'),
    bound: column('bound_ns'),
    prefillRequests: column('prefill_requests'),
    prefillTokens: column('prefill_tokens'),
    decodeRequests: column('decode_requests'),
    kv: column('kv_tokens'),
    queued: column('queued'),
    lostBefore: column('lost_before'),
  };
  /** @type {Passes['workers']} */
  const workers = new Map();
  for (let pass = 0; pass < worker.length; pass++) {
    const of = workers.get(at(worker, pass)) ?? { first: pass, last: pass, mostRequests: 0, mostKv: 0 };
    workers.set(at(worker, pass), of);
    of.last = pass + 1;
    of.mostRequests = Math.max(of.mostRequests, at(columns.prefillRequests, pass) + at(columns.decodeRequests, pass));
    of.mostKv = Math.max(of.mostKv, at(columns.kv, pass));
  }
  return { count: worker.length, workers, columns };
}

/**
 * Every pass of a worker in sight; of those that share a pixel the one with most requests.
 * @param {Passes} passes
 * @param {number} worker
 * @param {{ xOf: (time: number) => number, from: number, to: number }} view
 * @param {(bar: Bar) => void} visit
 */
export function eachBar(passes, worker, view, visit) {
  const of = passes.workers.get(worker);
  if (of === undefined) return;
  const { end, wall, prefillRequests, decodeRequests, kv } = passes.columns;
  /** @type {Bar | undefined} */
  let bar;
  for (let pass = lowest(of.first, of.last, (index) => at(end, index) >= view.from); pass < of.last; pass++) {
    const begin = at(end, pass) - at(wall, pass);
    if (begin > view.to) break;
    const x = view.xOf(begin);
    const made = {
      x,
      width: Math.max(view.xOf(at(end, pass)) - x, 1),
      prefill: at(prefillRequests, pass),
      decode: at(decodeRequests, pass),
      kv: at(kv, pass),
      pass,
    };
    if (bar !== undefined && x < bar.x + 1) {
      if (made.prefill + made.decode > bar.prefill + bar.decode) bar = { ...made, x: bar.x };
      continue;
    }
    if (bar !== undefined) visit(bar);
    bar = made;
  }
  if (bar !== undefined) visit(bar);
}
