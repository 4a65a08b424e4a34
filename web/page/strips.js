// The forward passes along the rows of workers: a bar for each, as high as its batch, prompts on top of tokens; the line
// is the KV cache that the batch uses.

import { at } from '#columns';
import { eachBar } from '#passes';
import { GUTTER, stripOf, visibleRows, xOf, yOf } from '#scene';

/** Free height above and below a strip. */
const MARGIN = 6;

/**
 * @param {import('#draw').Picture} picture
 * @returns {Path2D}  The lines, to be drawn over the bars.
 */
export function drawPasses({ pixels, scene, theme }) {
  const line = new Path2D();
  const { passes } = scene;
  if (passes === undefined) return line;
  const [prefill, decode] = ['prefill/forward', 'decode/forward'].map((id) => theme.spans.get(id)?.pixel ?? theme.pixels.muted);
  for (const { worker, foot, height } of strips(scene)) {
    const of = passes.workers.get(worker);
    if (of === undefined) continue;
    const perRequest = height / Math.max(of.mostRequests, 1);
    const perToken = height / Math.max(of.mostKv, 1);
    pixels.fill(GUTTER, foot, scene.width - GUTTER, 1, theme.pixels.line);
    let isFirst = true;
    eachBar(passes, worker, barsOf(scene), (bar) => {
      const width = bar.width > 3 ? bar.width - 0.5 : bar.width;
      if (bar.decode > 0) pixels.fill(bar.x, foot - bar.decode * perRequest, width, bar.decode * perRequest, decode ?? 0);
      if (bar.prefill > 0) pixels.fill(bar.x, foot - (bar.decode + bar.prefill) * perRequest, width, bar.prefill * perRequest, prefill ?? 0);
      if (bar.lost) pixels.fill(bar.x, foot - height, 2, height, theme.pixels.bad);
      const y = foot - bar.kv * perToken;
      if (isFirst) line.moveTo(bar.x, y);
      else line.lineTo(bar.x, y);
      line.lineTo(bar.x + bar.width, y);
      isFirst = false;
    });
  }
  return line;
}

/**
 * The pass under a point.
 * @param {import('#scene').Scene} scene
 * @param {number} x
 * @param {number} y
 * @returns {number | undefined}
 */
export function passAt(scene, x, y) {
  if (scene.passes === undefined || x < GUTTER) return undefined;
  const strip = strips(scene).find(({ foot, height }) => y >= foot - height && y <= foot);
  /** @type {number | undefined} */
  let found;
  if (strip !== undefined) {
    eachBar(scene.passes, strip.worker, barsOf(scene), (bar) => {
      if (x >= bar.x - 1 && x <= bar.x + bar.width + 1) found = bar.pass;
    });
  }
  return found;
}

/**
 * Those in sight.
 * @param {import('#scene').Scene} scene
 */
function strips(scene) {
  const [first, last] = visibleRows(scene);
  const found = [];
  for (let row = first; row < last; row++) {
    const height = stripOf(scene, row) - MARGIN;
    if (height > 0) found.push({ worker: -1 - at(scene.rows.index, row), height, foot: yOf(scene, row) + height + 4 });
  }
  return found;
}

/** @param {import('#scene').Scene} scene */
function barsOf(scene) {
  return { ...scene.range, xOf: (/** @type {number} */ time) => xOf(scene, time) };
}
