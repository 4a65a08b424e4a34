// Forward passes in memory, by worker, and what of them a strip of pixels shows.

import { at, lowest, readColumns } from '#columns';

/** What took long to load is not loaded again before so many times as long. */
const REST = 2;

/**
 * @typedef {{ first: number, last: number }} Stretch  Passes from `first` to before `last`.
 *
 * @typedef {Object} Passes
 * @property {number} count
 * @property {number} leftOut   Passes that cannot be seen in the window that was asked for.
 * @property {number} unplaced  Passes of workers that have no row.
 * @property {Map<number, Stretch & { mostRequests: number, mostKv: number }>} workers  Where each one's passes stand, and the peaks of all of its passes.
 * @property {Record<'end' | 'wall' | 'bound' | 'prefillRequests' | 'prefillTokens' | 'decodeRequests' | 'kv' | 'queued' | 'lostBefore', ArrayLike<number>>} columns
 *
 * @typedef {{ x: number, width: number, prefill: number, decode: number, kv: number, pass: number, lost: boolean }} Bar  Requests and KV tokens of the largest pass on its pixels; whether messages were lost there.
 */

/**
 * @param {ArrayBuffer} buffer
 * @returns {Passes}
 */
export function readPasses(buffer) {
  const { meta, column } = readColumns(buffer);
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
  for (const { worker, requests, kv_tokens } of meta.peaks) workers.set(worker, { first: 0, last: 0, mostRequests: requests, mostKv: kv_tokens });
  for (let pass = 0; pass < worker.length; pass++) {
    const of = workers.get(at(worker, pass));
    if (of === undefined) continue;
    if (of.last === 0) of.first = pass;
    of.last = pass + 1;
  }
  return { count: worker.length, leftOut: meta.left_out, unplaced: meta.unplaced, workers, columns };
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
  const { end, wall, prefillRequests, decodeRequests, kv, lostBefore } = passes.columns;
  /** @type {Bar | undefined} */
  let bar;
  for (let pass = lowest(of.first, of.last, (index) => at(end, index) >= view.from); pass < of.last; pass++) {
    const begin = at(end, pass) - at(wall, pass);
    if (begin > view.to) break;
    const x = view.xOf(begin);
    const lost = at(lostBefore, pass) > 0;
    if (bar !== undefined && x < bar.x + 1) {
      bar.lost ||= lost;
      if (at(prefillRequests, pass) + at(decodeRequests, pass) <= bar.prefill + bar.decode) continue;
      Object.assign(bar, { prefill: at(prefillRequests, pass), decode: at(decodeRequests, pass), kv: at(kv, pass), pass });
      continue;
    }
    if (bar !== undefined) visit(bar);
    bar = { x, width: Math.max(view.xOf(at(end, pass)) - x, 1), prefill: at(prefillRequests, pass), decode: at(decodeRequests, pass), kv: at(kv, pass), pass, lost };
  }
  if (bar !== undefined) visit(bar);
}

/**
 * The passes of the step that is shown, as far as they are looked at; asked for when rows of workers are in sight, and
 * again when there are more of them or when what is looked at was left out.
 */
export class PassWindow {
  #load;
  #arrived;
  /** @type {{ passes: Passes, window: import('#tiles').Window, heard: number } | undefined} */
  #held;
  #step = -1;
  /** Passes that the server has. */
  #heard = 0;
  #isAsking = false;
  #restsUntil_ms = 0;

  /**
   * @param {(step: number, window: import('#tiles').Window) => Promise<Passes>} load
   * @param {(error?: unknown) => void} arrived
   */
  constructor(load, arrived) {
    this.#load = load;
    this.#arrived = arrived;
  }

  /** @param {number} step @param {number} heard */
  use(step, heard) {
    if (step !== this.#step) this.#held = undefined;
    [this.#step, this.#heard] = [step, heard];
  }

  /** What is here of what is looked at. @param {import('#tiles').Window} view */
  get(view) {
    if (this.#heard === 0) return undefined;
    const held = this.#held;
    const isMissed = held === undefined || held.heard !== this.#heard || (held.passes.leftOut > 0 && !covers(held.window, view));
    if (isMissed && !this.#isAsking && performance.now() >= this.#restsUntil_ms) void this.#ask(view);
    return held?.passes;
  }

  get isWaiting() {
    return this.#isAsking;
  }

  /** @param {import('#tiles').Window} view */
  async #ask(view) {
    const [step, heard, began] = [this.#step, this.#heard, performance.now()];
    const length = view.to - view.from;
    const window = { from: view.from - length, to: view.to + length, pixel: view.pixel };
    this.#isAsking = true;
    try {
      const passes = await this.#load(step, window);
      if (step === this.#step) this.#held = { passes, window, heard };
      this.#isAsking = false;
      this.#arrived();
    } catch (error) {
      this.#isAsking = false;
      // What cannot be had is not asked for with every frame.
      this.#heard = 0;
      this.#arrived(error);
    } finally {
      this.#restsUntil_ms = performance.now() + REST * (performance.now() - began);
    }
  }
}

/**
 * @param {import('#tiles').Window} window
 * @param {import('#tiles').Window} view
 */
function covers(window, view) {
  return view.from >= window.from && view.to <= window.to && view.pixel >= window.pixel / 2;
}
