// What of a step is in sight, and where: the one walk that the canvas is drawn from, the mouse is looked up in, and a
// test reads.

import { NESTED, firstAfter, rowsWithin } from '#layout';

/** Height of the time axis. */
export const AXIS = 26;
/** Width of the rows' labels. */
export const GUTTER = 168;
/** A span this near to the mouse is meant, though it be narrower than a pixel. */
const NEAR_PX = 3;

/**
 * @typedef {Object} Scene
 * @property {import('#model').StepModel} model
 * @property {import('#layout').Layout} layout
 * @property {import('#viewport').Range} range
 * @property {number} width
 * @property {number} height
 * @property {number} scroll  Height that lies above what is in sight.
 *
 * @typedef {'sample' | 'request' | 'leg' | 'stage' | 'nested' | 'user'} Kind
 *
 * @typedef {{ x: number, y: number, width: number, height: number }} Rect
 *
 * @typedef {{ span: number, kind: Kind, rect: Rect, row: import('#layout').Row }} Shape
 */

/**
 * @param {Scene} scene
 * @param {number} time
 */
export function xOf(scene, time) {
  const { range, width } = scene;
  return GUTTER + ((time - range.from) / (range.to - range.from)) * (width - GUTTER);
}

/**
 * @param {Scene} scene
 * @param {number} x
 */
export function timeAt(scene, x) {
  const { range, width } = scene;
  return range.from + ((x - GUTTER) / (width - GUTTER)) * (range.to - range.from);
}

/**
 * @param {Scene} scene
 * @param {import('#layout').Row} row
 */
export function yOf(scene, row) {
  return AXIS + row.top - scene.scroll;
}

/**
 * The rows in sight.
 * @param {Scene} scene
 */
export function visibleRows(scene) {
  const [first, last] = rowsWithin(scene.layout, scene.scroll, scene.scroll + scene.height - AXIS);
  return scene.layout.rows.slice(first, last);
}

/**
 * Every span in sight from back to front. Of those that would share one pixel only the first is told.
 * @param {Scene} scene
 * @param {(shape: Shape) => void} visit
 */
export function eachShape(scene, visit) {
  for (const row of visibleRows(scene)) {
    const y = yOf(scene, row);
    if (row.root >= 0) walk(scene, row, 'sample', [row.root], y + 1, row.height - 2, visit);
    for (const track of row.tracks) {
      const top = y + track.top;
      walk(scene, row, track.kind, track.spans, top, track.height, visit);
      walk(scene, row, 'stage', track.stages, top, track.height, visit);
      walk(scene, row, 'nested', track.nested, top + track.height - NESTED, NESTED, visit);
    }
  }
}

/**
 * The span under a point: of those that hold it the frontmost, else the nearest of the thin ones beside it.
 * @param {Scene} scene
 * @param {number} x
 * @param {number} y
 * @returns {Shape | undefined}
 */
export function shapeAt(scene, x, y) {
  if (x < GUTTER || y < AXIS) return undefined;
  /** @type {Shape | undefined} */
  let found;
  let distance = NEAR_PX;
  eachShape(scene, (shape) => {
    const { rect } = shape;
    if (shape.kind === 'sample' || y < rect.y || y >= rect.y + rect.height) return;
    const away = Math.max(rect.x - x, x - (rect.x + rect.width), 0);
    if (away <= distance) {
      found = shape;
      distance = away;
    }
  });
  return found;
}

/**
 * @param {Scene} scene
 * @param {import('#layout').Row} row
 * @param {Kind} kind
 * @param {number[]} list
 * @param {number} y
 * @param {number} height
 * @param {(shape: Shape) => void} visit
 */
function walk(scene, row, kind, list, y, height, visit) {
  const { spans } = scene.model;
  let reached = -Infinity;
  for (let at = firstAfter(spans.end, list, scene.range.from); at < list.length; at++) {
    const span = list[at] ?? 0;
    const start = spans.start[span] ?? 0;
    if (start > scene.range.to) return;
    const left = Math.max(xOf(scene, start), GUTTER);
    const right = Math.min(xOf(scene, spans.end[span] ?? start), scene.width);
    const width = Math.max(right - left, 1);
    if (left + width <= reached + 0.5) continue;
    reached = left + width;
    visit({ span, kind, row, rect: { x: left, y, width, height } });
  }
}
