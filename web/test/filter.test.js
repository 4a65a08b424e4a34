import assert from 'node:assert/strict';
import test from 'node:test';

import { FilterError, compile } from '#filter';
import { readTable } from '#table';
import { table } from './made.js';

const S = 1e9;
const { fields } = readTable(
  table([
    { name: 'a', group: 'g', start: 0, end: 2 * S, reward: 1, worker: 1, tokens: 900 },
    { name: 'b', group: 'g', start: 0, end: 12 * S, reward: 0, worker: 1, tokens: 2500, flags: 4 },
    { name: 'c', start: 1 * S, end: 15 * S, worker: 0 },
  ]),
);

test('filters leave what they say', () => {
  for (const [source, expected] of [
    ['', [0, 1, 2]],
    ['  ', [0, 1, 2]],
    ['e2e_latency > 10', [1, 2]],
    ['e2e_latency > 10 and worker ~ decode-2', [1]],
    ['e2e_latency>10 and not worker~DECODE', [2]],
    ['worker = "decode-2:30000 rank 1"', [0, 1]],
    ['duration >= 2000ms and duration <= 12s', [0, 1]],
    ['duration < 0.1min', [0]],
    ['tokens >= 2.5k or reward == 1', [0, 1]],
    ['reward = 0 or reward = 1 and tokens < 1k', [0, 1]],
    ['(reward = 0 or reward = 1) and tokens < 1k', [0]],
    ['reward != 1', [1]],
    ['failed', [1]],
    ['not failed', [0, 2]],
    ['reward', [0]],
    ['group', [0, 1]],
    ['group = ""', [2]],
    ['group != h', [0, 1]],
    ['group != g', []],
    ['group !~ h', [0, 1]],
    ['sample !~ a and start < 1', [1]],
    ['NOT failed AND reward = 1', [0]],
  ]) {
    const test = compile(source, fields);
    assert.deepEqual([0, 1, 2].filter(test), expected, source);
  }
});

test('what cannot be read is told, and where', () => {
  for (const [source, told, at] of [
    ['latency > 1', /no field “latency”: perhaps e2e_latency/, 0],
    ['reward > 1 and nonsense', /no field “nonsense”; there are/, 15],
    ['reward >', /value is missing after >/, 8],
    ['reward > many', /“many” is none/, 9],
    ['reward > 5km', /“5km” is none/, 9],
    ['worker > 5', /worker is a text/, 9],
    ['(reward > 1', /closing parenthesis/, 11],
    ['reward > 1 tokens < 2', /“and” or “or” is missing before tokens/, 11],
    ['reward > 1 and', /missing at the end/, 14],
    ['worker ~ "dec', /quotation mark/, 8],
    ['and', /no field “and”/, 0],
    [')', /no field “\)”/, 0],
  ]) {
    assert.throws(
      () => compile(source, fields),
      (error) => error instanceof FilterError && told.test(error.message) && error.at === at,
      source,
    );
  }
});
