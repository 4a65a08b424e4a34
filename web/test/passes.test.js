import assert from 'node:assert/strict';
import test from 'node:test';

import { PassWindow, eachBar, readPasses } from '#passes';
import { columns } from './made.js';

/** @param {[number, number, number, number][]} passes  Worker, end, requests at their prompt, requests at their next token. */
function made(passes) {
  const f64 = (/** @type {(pass: number[]) => number} */ of) => ['f64', passes.map(of)];
  return readPasses(
    columns(
      { left_out: 0, unplaced: 0, peaks: [0, 2].map((worker) => ({ worker, requests: 18, kv_tokens: 700 })) },
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
        lost_before: f64(([, , prefill]) => (prefill === 9 ? 3 : 0)),
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

test('lost messages are shown, whichever pass of the pixel they came before', () => {
  const passes = made([[0, 10, 9, 0], [0, 20, 1, 40]]);
  const found = [];
  eachBar(passes, 0, { xOf: (time) => time / 1000, from: 0, to: 100 }, (bar) => found.push([bar.pass, bar.lost]));
  assert.deepEqual(found, [[1, true]]);
});

test('passes are asked for again when there are more, or when what is looked at was left out', async () => {
  const asked = [];
  const answers = [];
  const window = new PassWindow(
    (step, view) => {
      asked.push([step, view.from, view.to]);
      return new Promise((resolve) => answers.push(resolve));
    },
    () => {},
  );
  const view = { from: 100, to: 200, pixel: 1 };
  window.use(1, 0);
  assert.equal(window.get(view), undefined);
  assert.deepEqual(asked, [], 'there are none');
  window.use(1, 5);
  window.get(view);
  window.get(view);
  assert.deepEqual(asked, [[1, 0, 300]], 'once, with some more at both sides');
  const passes = { ...made([[0, 10, 1, 0]]), leftOut: 4 };
  answers[0]?.(passes);
  await Promise.resolve();
  await Promise.resolve();
  assert.equal(window.get(view), passes);
  // What took no time need not rest.
  for (let turn = 0; turn < 1000 && asked.length < 2; turn++) {
    assert.equal(window.get({ from: 10, to: 20, pixel: 0.1 }), passes, 'what is here is shown meanwhile');
    await new Promise((resolve) => setTimeout(resolve, 1));
  }
  assert.equal(asked.length, 2, 'closer than what was asked for');
  answers[1]?.(passes);
  await Promise.resolve();
  await Promise.resolve();
  window.use(2, 7);
  assert.equal(window.get(view), undefined, 'another step');
});
