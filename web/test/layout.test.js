import assert from 'node:assert/strict';
import test from 'node:test';

import { firstAfter, layOut, rowsWithin } from '#layout';
import { readSamples } from '#model';
import { table } from './table.js';

test('a row has a track for each lane, stages in their leg, nested stages below', () => {
  const model = readSamples(
    table([
      {
        group: 'g',
        name: 'a',
        spans: [
          ['sample', 'sample', null, 0, 100],
          ['request', 'request', 0, 0, 90],
          ['sglang_pd_prefill', 'prefill', 1, 1, 40],
          ['bootstrap_queue', 'prefill', 2, 2, 10],
          ['bootstrap', 'prefill', 3, 2, 6],
          ['alloc_wait', 'prefill', 3, 6, 10],
          ['forward', 'prefill', 2, 10, 40],
          ['sglang_pd_decode', 'decode', 1, 1, 90],
          ['reward', 'user', 0, 90, 100],
        ],
      },
    ]),
  );
  const [row] = layOut(model).rows;
  assert.ok(row !== undefined);
  assert.equal(row.root, 0);
  const seen = row.tracks.map(({ kind, lane, spans, stages, nested }) => ({ kind, lane, spans, stages, nested }));
  assert.deepEqual(seen, [
    { kind: 'request', lane: 'request', spans: [1], stages: [], nested: [] },
    { kind: 'leg', lane: 'prefill', spans: [2], stages: [3, 6], nested: [4, 5] },
    { kind: 'leg', lane: 'decode', spans: [7], stages: [], nested: [] },
    { kind: 'user', lane: 'user', spans: [8], stages: [], nested: [] },
  ]);
  const bottoms = row.tracks.map(({ top, height }) => top + height);
  assert.ok(row.tracks.every(({ top }, at) => at === 0 || top >= (bottoms[at - 1] ?? 0)));
  assert.ok((bottoms.at(-1) ?? 0) <= row.height);
});

test('what overlaps stands in tracks of its own', () => {
  const model = readSamples(
    table([
      {
        group: null,
        name: 'a',
        spans: [
          ['sample', 'sample', null, 0, 100],
          ['tool', 'user', 0, 0, 50],
          ['tool', 'user', 0, 10, 60],
          ['tool', 'user', 0, 50, 70],
          ['tool', 'user', 0, 55, 56],
        ],
      },
    ]),
  );
  const [row] = layOut(model).rows;
  assert.deepEqual(row?.tracks.map(({ spans }) => spans), [[1, 3], [2], [4]]);
});

test('groups alternate, and rows are found by height', () => {
  const sample = (/** @type {string | null} */ group, /** @type {string} */ name) => ({ group, name, spans: [] });
  const layout = layOut(readSamples(table([sample('g', 'a'), sample('g', 'b'), sample('h', 'a'), sample(null, 'x'), sample(null, 'y')])));
  assert.deepEqual(layout.rows.map(({ first }) => first), [true, false, true, true, true]);
  assert.deepEqual(layout.rows.map(({ odd }) => odd), [true, true, false, true, false]);
  const height = layout.rows[0]?.height ?? 0;
  assert.equal(layout.height, 5 * height);
  assert.deepEqual(rowsWithin(layout, height, 3 * height), [1, 3]);
  assert.deepEqual(rowsWithin(layout, height - 1, height + 1), [0, 2]);
  assert.deepEqual(rowsWithin(layout, 1e9, 2e9), [5, 5]);
});

test('the first span that is in sight is found', () => {
  const ends = Float64Array.from([10, 20, 30]);
  assert.deepEqual([0, 10, 11, 30, 31].map((time) => firstAfter(ends, [0, 1, 2], time)), [0, 0, 1, 2, 3]);
});
