import assert from 'node:assert/strict';
import test from 'node:test';

import { Tiles } from '#tiles';

const VIEW = { from: 0, to: 100, pixel: 1 };

/** Tiles of 300,000 spans each, and the indices of those that were loaded. */
function made() {
  const loaded = [];
  const load = async (_table, _kind, index) => {
    loaded.push(index);
    return { count: 300_000, leftOut: 0 };
  };
  const tiles = new Tiles(load, (error) => assert.equal(error, undefined));
  tiles.use({ step: 1 });
  /** Draws until nothing is awaited any more. @param {number[]} indices */
  const show = async (indices) => {
    for (let drawings = 0; drawings < 20; drawings++) {
      tiles.beginDrawing();
      const here = indices.filter((index) => tiles.get('tiles', index, VIEW) !== undefined);
      if (!tiles.isWaiting) return here;
      await new Promise(setImmediate);
    }
    assert.fail(`asked for without end: ${loaded}`);
  };
  return { loaded, show };
}

test('tiles in sight are loaded once each, be they more than are kept', async () => {
  const { loaded, show } = made();
  const inSight = [0, 1, 2, 3, 4, 5, 6];
  assert.deepEqual(await show(inSight), inSight);
  assert.deepEqual(loaded, inSight);
});

test('what is out of sight is let go, the oldest first', async () => {
  const { loaded, show } = made();
  await show([0, 1, 2, 3, 4]);
  await show([5]);
  await show([3, 4]);
  assert.deepEqual(loaded, [0, 1, 2, 3, 4, 5], 'four are kept');
  await show([2, 1]);
  await show([5]);
  assert.deepEqual(loaded, [0, 1, 2, 3, 4, 5, 1, 5], 'what was asked for last is not the oldest');
});
