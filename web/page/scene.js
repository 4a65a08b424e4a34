// What of a step is in sight, and where: the one walk that the canvas is drawn from, the mouse is looked up in, and a
// test reads.

import { at, lowest } from '#columns';
import { rowsWithin, trackPlace } from '#rows';

/** Height of the time axis. */
export const AXIS = 24;
/** Width of the rows' labels. */
export const GUTTER = 168;
/** A span this near to the mouse is meant, though it be narrower than a pixel. */
const NEAR_PX = 3;
/** What ends so near behind a span is passed over. */
const FREE_PX = 1;
/** So far a mark of an instant reaches to each side, and its edge a pixel further, however low its track. */
export const INSTANT_PX = 4;
/** Height of the strip of nested stages along the foot of their track. */
const NESTED = { roomy: 5, compact: 2, overview: 1 };

/**
 * @typedef {Object} Scene
 * @property {import('#table').Table} table
 * @property {import('#rows').Rows} rows
 * @property {import('#tiles').Tiles} tiles
 * @property {import('#passes').Passes | undefined} passes
 * @property {import('#viewport').Range} range
 * @property {number} width
 * @property {number} height
 * @property {number} scroll  Height that lies above what is in sight.
 *
 * @typedef {{ x: number, y: number, width: number, height: number }} Rect
 *
 * @typedef {Object} Shape
 * @property {import('#tile').Tile} tile
 * @property {number} span
 * @property {import('#tile').Kind} kind
 * @property {number} row   Within the rows that are shown.
 * @property {Rect} rect
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
 * @param {number} row
 */
export function yOf(scene, row) {
  return AXIS + at(scene.rows.top, row) - scene.scroll;
}

/**
 * The rows in sight, from the first to before the last.
 * @param {Scene} scene
 * @returns {[number, number]}
 */
export function visibleRows(scene) {
  return rowsWithin(scene.rows, scene.scroll, scene.scroll + scene.height - AXIS);
}

/**
 * Height of the forward passes at the top of a worker's row.
 * @param {Scene} scene
 * @param {number} row
 */
export function stripOf({ rows }, row) {
  const index = at(rows.index, row);
  return index < 0 ? rows.strip(-1 - index) : 0;
}

/**
 * What is looked at, for what is asked of the server.
 * @param {Scene} scene
 * @returns {import('#tiles').Window}
 */
export function viewOf({ range: { from, to }, width }) {
  return { from, to, pixel: (to - from) / Math.max(width - GUTTER, 1) };
}

/**
 * The tile that has a row's spans, if it is here, and the row's number in it.
 * @param {Scene} scene
 * @param {number} row
 */
export function tileOf(scene, row) {
  const index = at(scene.rows.index, row);
  const view = viewOf(scene);
  if (index < 0) return { tile: scene.tiles.get('workers', -1 - index, view), within: 0 };
  return { tile: scene.tiles.get('tiles', Math.floor(index / scene.table.tileRows), view), within: index };
}

/**
 * Every span in sight from back to front. Of those that would share two pixels only the first is told. A shape holds
 * until the next is told.
 * @param {Scene} scene
 * @param {(shape: Shape) => void} visit
 */
export function eachShape(scene, visit) {
  const [first, last] = visibleRows(scene);
  for (let row = first; row < last; row++) eachShapeOfRow(scene, row, visit);
}

/**
 * @param {Scene} scene
 * @param {number} row
 * @param {(shape: Shape) => void} visit
 */
export function eachShapeOfRow(scene, row, visit) {
  const { density, index, top } = scene.rows;
  if (isOverview(scene, row)) return;
  const { tile, within } = tileOf(scene, row);
  const y = yOf(scene, row) + stripOf(scene, row);
  for (const run of tile?.rows.get(within) ?? []) {
    if (tile === undefined) return;
    if (run.kind === 'sample') {
      walk(scene, tile, run, { row, y: y + 1, height: at(top, row + 1) - at(top, row) - 2 }, visit);
      continue;
    }
    const place = trackPlace(scene.table, at(index, row), density, run.lane, run.track);
    const strip = run.kind === 'nested' ? Math.min(NESTED[density], place.height) : place.height;
    const trackY = y + place.top + place.height - strip;
    // A worker may have more tracks than are in sight.
    if (trackY > scene.height || trackY + strip < AXIS) continue;
    walk(scene, tile, run, { row, y: trackY, height: strip }, visit);
  }
}

/**
 * Whether a row is a sample of an overview, which is drawn without its spans.
 * @param {Scene} scene
 * @param {number} row
 */
export function isOverview(scene, row) {
  return scene.rows.density === 'overview' && at(scene.rows.index, row) >= 0;
}

/**
 * The samples of an overview: one for each line of pixels, the longest where several share it.
 * @param {Scene} scene
 * @param {(sample: number, rect: Rect) => void} visit
 */
export function eachSample(scene, visit) {
  const { rows, table } = scene;
  const [first, last] = visibleRows(scene);
  let row = first;
  while (row < last) {
    if (!isOverview(scene, row)) {
      row++;
      continue;
    }
    const y = yOf(scene, row);
    const foot = Math.max(y + 1, yOf(scene, row + 1));
    let longest = row;
    for (row++; row < last && yOf(scene, row + 1) <= Math.floor(y) + 1; row++) {
      if (lengthOf(table, at(rows.index, row)) > lengthOf(table, at(rows.index, longest))) longest = row;
    }
    const sample = at(rows.index, longest);
    const [from, to] = [xOf(scene, at(table.start, sample)), xOf(scene, at(table.end, sample))];
    const left = Math.max(from, GUTTER);
    const width = Math.max(Math.min(to, scene.width) - left, 1);
    const gap = foot - y > 4 ? 1 : 0;
    if (to >= GUTTER && from <= scene.width) visit(sample, { x: left, y, width, height: foot - y - gap });
  }
}

/**
 * @param {import('#table').Table} table
 * @param {number} sample
 */
function lengthOf(table, sample) {
  return at(table.end, sample) - at(table.start, sample);
}

/**
 * Where a span would be drawn, in sight or not.
 * @param {Scene} scene
 * @param {number} row
 * @param {import('#tile').Tile} tile
 * @param {import('#tile').Run} run
 * @param {number} span
 * @returns {Rect}
 */
export function rectOf(scene, row, tile, run, span) {
  const place = trackPlace(scene.table, at(scene.rows.index, row), scene.rows.density, run.lane, run.track);
  const x = xOf(scene, at(tile.start, span));
  return { x, y: yOf(scene, row) + place.top, width: xOf(scene, at(tile.end, span)) - x, height: place.height };
}

/**
 * The span under a point: of those that hold it the frontmost, else the nearest of the thin ones beside it.
 * @param {Scene} scene
 * @param {number} x
 * @param {number} y
 * @returns {Shape | undefined}
 */
export function shapeAt(scene, x, y) {
  const row = rowAt(scene, y);
  if (x < GUTTER || row === undefined) return undefined;
  if (isOverview(scene, row)) return sampleAt(scene, row, x);
  /** @type {Shape | undefined} */
  let found;
  let distance = NEAR_PX;
  eachShapeOfRow(scene, row, (shape) => {
    const { rect } = shape;
    if (shape.kind === 'sample' || y < rect.y || y >= rect.y + rect.height) return;
    // The mark of an instant lies over all that is beside it.
    const isMark = isInstant(shape) && Math.abs(x - rect.x) <= INSTANT_PX;
    const away = isMark ? -1 : Math.max(rect.x - x, x - (rect.x + rect.width), 0);
    if (away <= distance) {
      found = { ...shape, rect: { ...rect } };
      distance = away;
    }
  });
  return found;
}

/**
 * @param {Scene} scene
 * @param {number} row
 * @param {number} x
 * @returns {Shape | undefined}
 */
function sampleAt(scene, row, x) {
  const { tile, within } = tileOf(scene, row);
  const run = tile?.rows.get(within)?.find(({ kind }) => kind === 'sample');
  if (tile === undefined || run === undefined) return undefined;
  const [left, right] = [xOf(scene, at(tile.start, run.first)), xOf(scene, at(tile.end, run.first))];
  if (x < left - NEAR_PX || x > right + NEAR_PX) return undefined;
  const y = yOf(scene, row);
  return { tile, span: run.first, kind: 'sample', row, rect: { x: left, y, width: right - left, height: Math.max(yOf(scene, row + 1) - y, 1) } };
}

/**
 * The row at a height of the canvas.
 * @param {Scene} scene
 * @param {number} y
 */
function rowAt(scene, y) {
  if (y < AXIS) return undefined;
  const height = y - AXIS + scene.scroll;
  const [row] = rowsWithin(scene.rows, height, height + 1);
  return row < scene.rows.count ? row : undefined;
}

/**
 * Whether a shape is something that happened in the user's code, and took no time: it is drawn as a mark.
 * @param {Shape} shape
 */
export function isInstant({ tile, span, kind }) {
  return kind === 'user' && tile.isInstant(span);
}

/** The shape that is told: one for all, since a frame has tens of thousands. @type {Shape} */
const told = { tile: /** @type {any} */ (undefined), span: 0, kind: 'sample', row: 0, rect: { x: 0, y: 0, width: 0, height: 0 } };

/**
 * @param {Scene} scene
 * @param {import('#tile').Tile} tile
 * @param {import('#tile').Run} run
 * @param {{ row: number, y: number, height: number }} place
 * @param {(shape: Shape) => void} visit
 */
function walk(scene, tile, run, { row, y, height }, visit) {
  const { start, end } = tile;
  const { from, to } = scene.range;
  const perTime = (scene.width - GUTTER) / (to - from);
  const { rect } = told;
  let span = lowest(run.first, run.last, (index) => at(end, index) >= from);
  while (span < run.last && at(start, span) <= to) {
    const left = Math.max(GUTTER + (at(start, span) - from) * perTime, GUTTER);
    const right = Math.min(GUTTER + (at(end, span) - from) * perTime, scene.width);
    const width = Math.max(right - left, 1);
    const next = span + 1;
    // What ends on the pixels that are taken is passed over.
    const reached = from + (left + width + FREE_PX - GUTTER) / perTime;
    let following = next < run.last && at(end, next) < reached ? nextEnding(end, next + 1, run.last, reached) : next;
    // A mark is not hidden by the span before it, only by another mark.
    if (following > next && !isMark(tile, run.kind, span)) following = firstMark(tile, run.kind, next, following);
    told.tile = tile;
    told.kind = run.kind;
    told.row = row;
    told.span = span;
    rect.x = left;
    rect.y = y;
    rect.width = following > next ? width + FREE_PX : width;
    rect.height = height;
    visit(told);
    span = following;
  }
}

/**
 * Whether a span says more than that time was taken: as an instant of the user's code, or by what is not plain about it.
 * @param {import('#tile').Tile} tile
 * @param {import('#tile').Kind} kind
 * @param {number} span
 */
function isMark(tile, kind, span) {
  return (kind === 'user' && tile.isInstant(span)) || tile.isUnplain(span);
}

/**
 * The first mark from `from` to before `last`; `last` where there is none.
 * @param {import('#tile').Tile} tile
 * @param {import('#tile').Kind} kind
 * @param {number} from
 * @param {number} last
 */
function firstMark({ instants, unplain }, kind, from, last) {
  let first = last;
  for (const marks of kind === 'user' ? [instants, unplain] : [unplain]) {
    const place = lowest(0, marks.length, (index) => at(marks, index) >= from);
    first = Math.min(marks[place] ?? last, first);
  }
  return first;
}

/**
 * The first span from `from` to before `last` that ends at a time or later. Mostly it is near.
 * @param {Float64Array} end
 * @param {number} from
 * @param {number} last
 * @param {number} time
 */
function nextEnding(end, from, last, time) {
  let [low, high, stride] = [from, from, 1];
  while (high < last && at(end, high) < time) {
    low = high + 1;
    high += stride;
    stride *= 2;
  }
  return lowest(low, Math.min(high, last), (index) => at(end, index) >= time);
}
