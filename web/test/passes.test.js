import assert from 'node:assert/strict';
import test from 'node:test';

import { eachBar, readPasses } from '#passes';
import { columns } from './made.js';

/** @param {[number, number, number, number][]} passes  Worker, end, requests at their prompt, requests at their next token. */
function made(passes) {
  const f64 = (/** @type {(pass: number[]) => number} */ of) => ['f64', passes.map(of)];
  return readPasses(
    columns(
      { left_out: 0 },
      {
        worker: ['u32', passes.map(([worker]) => worker)],
        end_ns: f64(([, end]) => end),
        wall_ns: f64(() => 10),
        bound_ns: f64(() => 0),
        prefill_requests: f64(([, , prefill]) => prefill),
        prefill_tokens: f64(() => 0),
        decode_requests: f64(([, , , decode]) => decode),
        kv_tokens: f64(([, , , decode]) => decode * 100),
        queued: f64(() => 0),
        lost_before: f64(() => 0),
      },
    ),
  );
}

/** @param {ReturnType<typeof made>} passes @param {number} worker @param {number} perPixel */
function bars(passes, worker, perPixel) {
  const found = [];
  eachBar(passes, worker, { xOf: (time) => time / perPixel, from: 0, to: 100 }, (bar) => found.push([bar.pass, bar.prefill, bar.decode]));
  return found;
}

test('a worker has a bar for each pass in sight', () => {
  const passes = made([[0, 10, 1, 0], [0, 20, 0, 4], [0, 500, 9, 9], [2, 30, 0, 7]]);
  assert.deepEqual(bars(passes, 0, 1), [[0, 1, 0], [1, 0, 4]]);
  assert.deepEqual(bars(passes, 2, 1), [[3, 0, 7]]);
  assert.deepEqual(bars(passes, 1, 1), []);
  assert.deepEqual([passes.workers.get(0)?.mostRequests, passes.workers.get(2)?.mostKv], [18, 700]);
});

test('of those on one pixel the largest is shown', () => {
  const passes = made([[0, 10, 1, 1], [0, 20, 0, 9], [0, 30, 0, 4]]);
  assert.deepEqual(bars(passes, 0, 1000), [[1, 0, 9]]);
});
