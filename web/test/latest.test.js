import assert from 'node:assert/strict';
import test from 'node:test';

import { Latest, whenChanged } from '#latest';

test('an answer that comes late does not replace a newer one', async () => {
  const latest = new Latest();
  const shown = [];
  /** @param {string} name @param {Promise<void>} answer */
  const ask = async (name, answer) => {
    const isLast = latest.begin();
    await answer;
    if (isLast()) shown.push(name);
  };
  let first = () => {};
  const slow = ask('first', new Promise((resolve) => (first = resolve)));
  await ask('second', Promise.resolve());
  first();
  await slow;
  assert.deepEqual(shown, ['second']);
});

test('what has not changed is not shown again', () => {
  const shown = [];
  const show = whenChanged((a, b) => shown.push([a, b]));
  show(1, NaN);
  show(1, NaN);
  show(2, NaN);
  show(1, NaN);
  assert.deepEqual(shown, [[1, NaN], [2, NaN], [1, NaN]]);
});
