import assert from 'node:assert/strict';
import test from 'node:test';

import { format, parse } from '#hash';

test('what is written is read', () => {
  for (const state of [
    { step: 3, range: { from: 250_000_000, to: 1_500_000_001 }, row: 12 },
    { step: 0, range: undefined, row: 0 },
    { step: undefined, range: { from: -1e9, to: 1e9 }, row: 1 },
  ]) {
    assert.deepEqual(parse(format(state)), state);
  }
});

test('nonsense is as if it were not there', () => {
  for (const hash of ['', '#', '#step=x&from=1', '#step=-1&row=1.5', '#from=2&to=1', '#from=NaN&to=Infinity', '#step=']) {
    assert.deepEqual(parse(hash), { step: undefined, range: undefined, row: 0 }, hash);
  }
});
