import assert from 'node:assert/strict';
import test from 'node:test';

import { format, initial, parse } from '#hash';

test('what is written is read', () => {
  const all = {
    step: 3,
    tab: 'charts',
    range: { from: 250_000_000, to: 1_500_000_001 },
    top: 'prompt 17/é&=#',
    order: { arrange: 'both', sort: 'decode_forward', falling: true, density: 'compact' },
    color: 'reward',
    filter: 'e2e_latency > 10 and worker ~ "decode-2"',
    search: '50% </script>',
    pin: { sample: 'a.b/c\nd', part: 2, span: 11 },
    selected: { from: -1e9, to: 1e9 },
    against: 'other.12',
    field: 'tokens',
    other: 'reward',
  };
  for (const state of [all, initial(), { ...initial(), step: 0 }]) assert.deepEqual(parse(format(state)), state);
});

test('what is as it is at first is not written', () => {
  assert.equal(format(initial()), '#');
  assert.equal(format({ ...initial(), step: 3, color: 'worker' }), '#step=3&color=worker');
});

test('nonsense is as if it were not there', () => {
  for (const hash of ['', '#', '#step=x&from=1', '#step=-1&tab=none', '#from=2&to=1', '#from=NaN&to=Infinity', '#step=', '#pin=1.2', '#pin=x.1.a', '#rows=up&density=&color=red', '#against=-1', '#against=else.3']) {
    assert.deepEqual(parse(hash), initial(), hash);
  }
});
