// What lies over the timeline and follows the mouse: drawn on a canvas of its own, so that the spans below it are not
// drawn again for it.

import { at } from '#columns';
import { axisTime, duration, tickStep } from '#format';
import { largestOf } from '#labels';
import { AXIS, GUTTER, eachShapeOfRow, timeAt, xOf } from '#scene';
import { widthOf, write } from '#words';

/**
 * @typedef {Object} Over
 * @property {import('#scene').Shape | undefined} hover
 * @property {number | undefined} cursor  Where the mouse is, in pixels from the left.
 * @property {import('#viewport').Range | undefined} selected  A range of time.
 * @property {import('#scene').Rect | undefined} box  What is about to be zoomed into.
 * @property {import('#draw').Marks['pinned']} pinned
 *
 * @typedef {{ context: CanvasRenderingContext2D, scene: import('#scene').Scene, theme: import('#theme').Theme, over: Over }} Layer
 */

/** @param {Layer} layer */
export function drawMarks(layer) {
  const { context, scene, theme, over } = layer;
  context.clearRect(0, 0, scene.width, scene.height);
  context.save();
  context.beginPath();
  context.rect(GUTTER, AXIS, scene.width - GUTTER, scene.height - AXIS);
  context.clip();
  drawPinned(layer);
  if (over.hover !== undefined) outline(context, over.hover.rect, theme.text);
  if (over.cursor !== undefined && over.cursor > GUTTER) veil(context, 0.5, theme.muted, { x: Math.round(over.cursor), y: AXIS, width: 1, height: scene.height });
  drawVersions(layer);
  drawSelection(layer);
  context.restore();
  drawCursorTime(layer);
  if (over.box === undefined) return;
  context.strokeStyle = theme.accent;
  context.lineWidth = 1;
  context.setLineDash([4, 3]);
  context.strokeRect(over.box.x + 0.5, over.box.y + 0.5, over.box.width, over.box.height);
  context.setLineDash([]);
}

/** @param {Layer} layer */
function drawPinned({ context, scene, theme, over: { pinned } }) {
  const row = pinned === undefined ? -1 : scene.rows.index.indexOf(pinned.row);
  if (pinned === undefined || row < 0) return;
  eachShapeOfRow(scene, row, ({ tile, span, rect }) => {
    if (at(tile.part, span) === pinned.part && at(tile.span, span) === pinned.span) outline(context, rect, theme.accent);
  });
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {number} alpha
 * @param {string} color
 * @param {import('#scene').Rect} rect
 */
function veil(context, alpha, color, rect) {
  context.fillStyle = color;
  context.globalAlpha = alpha;
  context.fillRect(rect.x, rect.y, rect.width, rect.height);
  context.globalAlpha = 1;
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {import('#scene').Rect} rect
 * @param {string} color
 */
function outline(context, rect, color) {
  context.strokeStyle = color;
  context.lineWidth = 1.5;
  context.strokeRect(rect.x - 0.5, rect.y - 0.5, rect.width + 1, rect.height + 1);
}

/**
 * Where the weights changed while the step was going on.
 * @param {Layer} layer
 */
function drawVersions({ context, scene, theme }) {
  const { versions } = scene.table;
  if (versions.length < 2) return;
  context.textBaseline = 'middle';
  for (const { name, first_ns } of versions) {
    const x = Math.round(xOf(scene, first_ns));
    if (x < GUTTER || x > scene.width) continue;
    veil(context, 0.8, theme.accent, { x, y: AXIS, width: 1, height: scene.height });
    write(context, `10px ${theme.font}`, theme.accent, `weights ${name}`, { x: x - 1, y: AXIS, width: 130, height: 12 });
  }
}

/**
 * The selected range, with its length: what a ruler tells.
 * @param {Layer} layer
 */
function drawSelection({ context, scene, theme, over: { selected } }) {
  if (selected === undefined) return;
  const [from, to] = [xOf(scene, selected.from), xOf(scene, selected.to)];
  veil(context, 0.1, theme.accent, { x: from, y: AXIS, width: to - from, height: scene.height });
  for (const x of [from, to]) veil(context, 0.9, theme.accent, { x: Math.round(x), y: AXIS, width: 1, height: scene.height });
  context.textBaseline = 'middle';
  context.font = `600 11px ${theme.font}`;
  label(context, theme, duration(selected.to - selected.from), { middle: (from + to) / 2, y: AXIS + 3, width: scene.width, fill: theme.accent });
}

/** @param {Layer} layer */
function drawCursorTime({ context, scene, theme, over: { cursor } }) {
  if (cursor === undefined || cursor <= GUTTER) return;
  context.textBaseline = 'middle';
  context.font = `11px ${theme.font}`;
  const step = tickStep(scene.range.to - scene.range.from, (scene.width - GUTTER) / 110) / 100;
  label(context, theme, axisTime(timeAt(scene, cursor), step, largestOf(scene)), { middle: cursor, y: 3, width: scene.width, fill: theme.text });
}

/**
 * @param {CanvasRenderingContext2D} context  With its font set.
 * @param {import('#theme').Theme} theme
 * @param {string} text
 * @param {{ middle: number, y: number, width: number, fill: string }} place
 */
function label(context, theme, text, { middle, y, width: room, fill }) {
  const width = widthOf(context, text) + 12;
  const left = Math.min(Math.max(middle - width / 2, GUTTER), room - width);
  context.fillStyle = fill;
  context.fillRect(left, y, width, 17);
  context.fillStyle = theme.surface;
  context.fillText(text, left + 6, y + 9);
}
