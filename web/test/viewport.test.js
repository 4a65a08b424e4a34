import assert from 'node:assert/strict';
import test from 'node:test';

import { fit, pan, zoom } from '#viewport';

const EXTENT = { from: 0, to: 10e9 };

test('a fit shows everything with a margin, and a moment too', () => {
  const range = fit(EXTENT);
  assert.ok(range.from < 0 && range.to > 10e9);
  const moment = fit({ from: 5, to: 5 });
  assert.ok(moment.to > moment.from);
});

test('zooming keeps the point under the mouse where it is', () => {
  for (const factor of [0.5, 0.9, 1.1, 1.8]) {
    const range = { from: 2e9, to: 6e9 };
    const at = 3e9;
    const zoomed = zoom(range, at, factor, EXTENT);
    assert.ok(Math.abs((zoomed.to - zoomed.from) / (range.to - range.from) - factor) < 1e-9);
    const share = (at - zoomed.from) / (zoomed.to - zoomed.from);
    assert.ok(Math.abs(share - 0.25) < 1e-9, `${share}`);
  }
});

test('zoom ends at a microsecond and at a few times the step', () => {
  let range = fit(EXTENT);
  for (let i = 0; i < 200; i++) range = zoom(range, 5e9, 0.5, EXTENT);
  assert.ok(Math.abs(range.to - range.from - 1000) < 0.01);
  for (let i = 0; i < 200; i++) range = zoom(range, 5e9, 2, EXTENT);
  assert.ok(Math.abs(range.to - range.from - 40e9) < 1);
});

test('panning never loses sight of the step', () => {
  for (const by of [-1e15, 1e15]) {
    const range = pan({ from: 2e9, to: 3e9 }, by, EXTENT);
    assert.ok(range.from < EXTENT.to && range.to > EXTENT.from);
    assert.ok(Math.abs(range.to - range.from - 1e9) < 1);
  }
});
