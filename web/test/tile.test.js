import assert from 'node:assert/strict';
import test from 'node:test';

import { eachShape, shapeAt } from '#scene';
import { arrange } from '#rows';
import { readTable } from '#table';
import { readTile } from '#tile';
import { tile, table } from './made.js';

const made = readTable(table([{ name: 'a', start: 0, end: 100, users: 1 }]));
const order = { arrange: 'samples', sort: '', falling: false, density: 'roomy' };

/** @param {[number, number][]} stages @param {[number, number]} range @param {'stage' | 'user'} [kind] */
function scene(stages, [from, to], kind) {
  const read = readTile(tile(stages, kind), 100);
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

test('an instant is hidden by no span, and found without looking at those between', () => {
  // 100 pixels for 100 ns; two instants on one pixel, and one that has a pixel of its own.
  const many = Array.from({ length: 100_000 }, (_, index) => [index / 1000, (index + 1) / 1000]);
  const noted = many.toSpliced(30_000, 0, [30, 30], [30, 30]).toSpliced(70_000, 0, [69.998, 69.998]);
  const of = scene(noted, [0, 100], 'user');
  const read = of.tiles.get();
  let asked = 0;
  const { isInstant } = read;
  read.isInstant = (span) => (asked++, isInstant(span));
  const shown = spans(of);
  assert.deepEqual([...read.instants], [30_000, 30_001, 70_000]);
  assert.deepEqual(shown.filter(isInstant), [30_000, 70_000]);
  assert.ok(shown.length <= 104, `${shown.length} spans for 100 pixels`);
  assert.ok(asked <= 2 * shown.length, `${asked} spans are looked at for ${shown.length}`);
  assert.deepEqual(spans(scene(noted, [0, 100])).filter(isInstant), [], 'what is not of the user’s code has no marks');
});

test('what did not complete or has not ended is hidden by no span that did', () => {
  // 100 pixels for 100 ns; two that failed on one pixel, and one that was cut on another.
  const many = Array.from({ length: 1000 }, (_, index) => [index / 10, (index + 1) / 10]);
  for (const [span, outcome] of [[304, 2], [305, 2], [707, 1]]) many[span][2] = outcome;
  const shown = spans(scene(many, [0, 100]));
  assert.deepEqual(shown.filter((span) => many[span].length > 2), [304, 707]);
  assert.ok(shown.length <= 102, `${shown.length} spans for 100 pixels`);
});

test('the mouse finds what it is over, and thin spans beside it', () => {
  const of = scene([[10, 20], [60, 60]], [0, 100]);
  const y = 24 + 40;
  assert.equal(shapeAt(of, 168 + 15, y)?.span, 0);
  assert.equal(shapeAt(of, 168 + 62, y)?.span, 1);
  assert.equal(shapeAt(of, 168 + 40, y), undefined);
  assert.equal(shapeAt(of, 100, y), undefined, 'the labels');
});
