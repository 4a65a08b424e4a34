import assert from 'node:assert/strict';
import test from 'node:test';

import { lowest, readColumns } from '#columns';
import { columns } from './made.js';

test('columns are read where they lie', () => {
  const { meta, column } = readColumns(columns({ step: 4 }, { a: ['u8', [1, 2, 255]], b: ['f64', [-1.5, NaN]], c: ['i32', [-1]] }));
  assert.deepEqual(meta, { step: 4 });
  assert.deepEqual([...column('a')], [1, 2, 255]);
  assert.deepEqual([...column('b')], [-1.5, NaN]);
  assert.deepEqual([...column('c')], [-1]);
  assert.throws(() => column('d'), /malformed: d/);
});

test('what is cut or strange is refused', () => {
  const whole = columns({}, { a: ['f64', [1, 2]] });
  for (const buffer of [new ArrayBuffer(0), new ArrayBuffer(64), whole.slice(0, 24), whole.slice(0, whole.byteLength - 8)]) {
    assert.throws(() => readColumns(buffer));
  }
});

test('bisection finds the first that holds', () => {
  const values = [1, 3, 3, 7];
  for (const [wanted, expected] of [[0, 0], [2, 1], [3, 1], [7, 3], [8, 4]]) {
    assert.equal(lowest(0, values.length, (index) => values[index] >= wanted), expected);
  }
  assert.equal(lowest(5, 2, () => true), 5);
});
