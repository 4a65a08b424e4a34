import assert from 'node:assert/strict';
import test from 'node:test';

import { eachShape, shapeAt } from '#scene';
import { arrange } from '#rows';
import { readTable } from '#table';
import { readTile } from '#tile';
import { tile, table } from './made.js';

const made = readTable(table([{ name: 'a', start: 0, end: 100 }]));
const order = { arrange: 'samples', sort: '', falling: false, density: 'roomy' };

/** @param {[number, number][]} stages @param {[number, number]} range */
function scene(stages, [from, to]) {
  const read = readTile(tile(stages), 100);
  return { table: made, rows: arrange(made, order, [0]), tiles: { get: () => read }, passes: undefined, range: { from, to }, width: 268, height: 200, scroll: 0 };
}

/** @param {object} of */
function spans(of) {
  const found = [];
  eachShape(of, ({ span }) => found.push(span));
  return found;
}

test('an open span ends with the step so far', () => {
  const read = readTile(tile([[0, 40], [50, NaN]]), 100);
  assert.deepEqual([...read.end], [40, 100]);
  assert.deepEqual([read.isOpen(0), read.isOpen(1)], [false, true]);
  assert.deepEqual(read.nameOf(0), { lane: 'decode', name: 'forward', color: 'decode/forward' });
});

test('what is in sight is told once a pixel', () => {
  // 100 pixels for 100 ns.
  assert.deepEqual(spans(scene([[0, 10], [10, 30], [30, 100]], [0, 100])), [0, 1, 2]);
  assert.deepEqual(spans(scene([[0, 10], [10, 30], [30, 100]], [15, 25])), [1]);
  assert.deepEqual(spans(scene([[0, 10], [10, 30], [60, 100]], [35, 55])), []);
  const many = Array.from({ length: 100_000 }, (_, index) => [index / 1000, (index + 1) / 1000]);
  const shown = spans(scene(many, [0, 100]));
  assert.ok(shown.length >= 50 && shown.length <= 100, `${shown.length} of 100000 spans for 100 pixels`);
  assert.equal(spans(scene(many, [50.0005, 50.0095])).length, 10, 'closer, each of them');
});

test('the mouse finds what it is over, and thin spans beside it', () => {
  const of = scene([[10, 20], [60, 60]], [0, 100]);
  const y = 24 + 40;
  assert.equal(shapeAt(of, 168 + 15, y)?.span, 0);
  assert.equal(shapeAt(of, 168 + 62, y)?.span, 1);
  assert.equal(shapeAt(of, 168 + 40, y), undefined);
  assert.equal(shapeAt(of, 100, y), undefined, 'the labels');
});
