import assert from 'node:assert/strict';
import test from 'node:test';

import { readSamples } from '#model';
import { table } from './table.js';

test('columns become samples, spans and attributes', () => {
  const answer = table([
    { group: 'g', name: 'a', spans: [['sample', 'sample', null, 0, 10], ['request', 'request', 0, 0, null, { outcome: 'failed', status: 502 }]] },
    { group: null, name: 'b', spans: [['sample', 'sample', null, 5, 10]] },
  ]);
  const model = readSamples(answer);
  assert.deepEqual(model.samples.label, ['g/a', 'b']);
  assert.deepEqual([...model.samples.firstSpan], [0, 2, 3]);
  assert.deepEqual(model.spans.open, [false, true, false]);
  // An open span ends with the step so far.
  assert.equal(model.spans.end[1], model.extent?.to);
  assert.deepEqual(model.attrs(1), [['outcome', 'failed'], ['status', 502]]);
  assert.deepEqual(model.attrs(0), []);
  assert.deepEqual([...model.spans.outcome], [[1, 'failed']]);
});

test('parents that would lead in circles or elsewhere are dropped', () => {
  const answer = table([
    { group: null, name: 'a', spans: [['x', 'request', null, 0, 1], ['x', 'request', 2, 0, 1], ['x', 'request', 2, 0, 1]] },
    { group: null, name: 'b', spans: [['x', 'request', 0, 0, 1], ['x', 'request', 99, 0, 1], ['x', 'request', 3, 0, 1]] },
  ]);
  assert.deepEqual([...readSamples(answer).spans.parent], [-1, -1, -1, -1, -1, 3]);
});

test('times that are none and ends before their starts are borne', () => {
  const model = readSamples(table([{ group: null, name: 'a', spans: [['x', 'user', null, 10, 5], ['x', 'user', null, -1e18, 3]] }]));
  assert.deepEqual([...model.spans.end], [10, 3]);
});

test('an answer that is none is refused by the name of what is wrong', () => {
  const good = table([{ group: null, name: 'a', spans: [['x', 'user', null, 0, 1]] }]);
  /** @type {[unknown, RegExp][]} */
  const cases = [
    [null, /answer/],
    [{}, /strings/],
    [{ ...good, samples: { ...good.samples, reward: [] } }, /samples\.reward/],
    [{ ...good, samples: { ...good.samples, first_span: [1, 0] } }, /first_span/],
    [{ ...good, spans: { ...good.spans, end_ns: 'x' } }, /spans\.end_ns/],
    [{ ...good, extent_ns: [1] }, /extent_ns/],
  ];
  for (const [answer, message] of cases) assert.throws(() => readSamples(answer), message);
});
