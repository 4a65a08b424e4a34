import assert from 'node:assert/strict';
import test from 'node:test';

import { binsOf, quantile, shareUpTo, valuesOf } from '#bins';
import { liveSamples, tailOf } from '#curve';
import { roundUp } from '#format';
import { readTable } from '#table';
import { table } from './made.js';

test('live samples are counted by the share of a bin that they were live', () => {
  const made = readTable(table([{ name: 'a', start: 0, end: 100 }, { name: 'b', start: 20, end: 50 }, { name: 'c', start: 90, end: 95 }]));
  const { live, most } = liveSamples(made, [0, 1, 2], 10);
  assert.deepEqual([...live].map((value) => Math.round(value * 1000) / 1000), [1, 1, 2, 2, 2, 1, 1, 1, 1, 1.5]);
  assert.equal(most, 2);
  assert.deepEqual([...liveSamples(made, [], 2).live], [0, 0]);
});

test('the tail begins when nine of ten have ended', () => {
  const samples = Array.from({ length: 20 }, (_, index) => ({ name: `s${index}`, start: 0, end: index < 18 ? 50 : 100 }));
  assert.deepEqual(tailOf(readTable(table(samples))), { from: 50, to: 100, share: 0.5 });
  assert.equal(tailOf(readTable(table([]))), undefined);
});

test('bins hold every value and have round bounds', () => {
  const values = valuesOf([0, 1, 2, 3, 4], (row) => [0.31, NaN, 1.9, 1, Infinity][row]);
  assert.deepEqual([...values], [0.31, 1, 1.9]);
  const { from, width, counts } = binsOf(values, 10);
  assert.deepEqual([Math.round(from * 10) / 10, width, counts.reduce((a, b) => a + b)], [0.2, 0.2, 3]);
  assert.deepEqual(binsOf(Float64Array.of(5, 5), 10), { from: 5, width: 1, counts: [2] });
  for (const [value, expected] of [[1, 1], [1.2, 2], [0.03, 0.05], [700, 1000]]) assert.ok(Math.abs(roundUp(value) - expected) < 1e-9);
});

test('quantiles and shares', () => {
  const values = Float64Array.of(1, 2, 3, 4);
  assert.deepEqual([0, 0.5, 1].map((share) => quantile(values, share)), [1, 2.5, 4]);
  assert.deepEqual([0, 1, 2.5, 9].map((value) => shareUpTo(values, value)), [0, 0.25, 0.5, 1]);
});
