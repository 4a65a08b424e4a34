// Draws a scene: rectangles into memory, then what is no rectangle over them on the canvas. What follows the mouse is
// drawn on a canvas of its own (marks.js), so that it costs nothing here.

import { at } from '#columns';
import { tickStep } from '#format';
import { drawAxis, drawLabels, ticks } from '#labels';
import { AXIS, GUTTER, INSTANT_PX, eachSample, eachShape, isInstant, isOverview, rectOf, tileOf, visibleRows, xOf, yOf } from '#scene';
import { drawPasses } from '#strips';
import { FLAG } from '#table';
import { write } from '#words';

/** Pixels between ticks, about. */
const TICK_PX = 110;
/** A label is drawn where its bar is wider than this. */
const LABEL_PX = 34;
/** What may lie this much elsewhere is shown to. */
const BOUND_PX = 3;
/** An arrow for a shorter transfer says nothing: its stages cannot be told apart. */
const ARROW_PX = 6;

/**
 * @typedef {import('#scene').Scene} Scene
 * @typedef {import('#theme').Theme} Theme
 *
 * @typedef {Object} Marks
 * @property {{ row: number, part: number, span: number } | undefined} pinned
 * @property {(row: number) => boolean} isFound  Of a sample: whether the search found it.
 *
 * @typedef {{ text: string, ink: string, size: number, rect: import('#scene').Rect }} Word
 * @typedef {{ rect: import('#scene').Rect, draw: (rect: import('#scene').Rect) => void }} Sign  Drawn when all spans are.
 * @typedef {(rect: Sign['rect'], draw: Sign['draw']) => void} PutSign
 *
 * @typedef {Object} Picture
 * @property {CanvasRenderingContext2D} context
 * @property {import('#pixels').Pixels} pixels
 * @property {Scene} scene
 * @property {Theme} theme
 * @property {import('#paint').Painter} painter
 * @property {Marks} marks
 */

/** @param {Picture} picture */
export function draw(picture) {
  const { context, pixels, scene, theme } = picture;
  const step = tickStep(scene.range.to - scene.range.from, (scene.width - GUTTER) / TICK_PX);
  pixels.clip(0, 0);
  pixels.fill(0, 0, scene.width, scene.height, theme.pixels.surface);
  pixels.clip(0, AXIS);
  drawBands(picture);
  drawGrid(picture, step);
  pixels.clip(GUTTER, AXIS);
  const words = drawSpans(picture);
  const line = drawPasses(picture);
  if (scene.rows.density === 'overview') drawOverview(picture);
  pixels.clip(0, 0);
  pixels.put(context);

  context.save();
  context.beginPath();
  context.rect(GUTTER, AXIS, scene.width - GUTTER, scene.height - AXIS);
  context.clip();
  context.textBaseline = 'middle';
  for (const { text, ink, size, rect } of words) write(context, `${size}px ${theme.font}`, ink, text, rect);
  context.strokeStyle = theme.text;
  context.lineWidth = 1;
  context.stroke(line);
  drawTransfers(picture);
  context.restore();
  drawLabels(picture);
  drawAxis(picture, step);
}

/** @param {Picture} picture */
function drawBands({ pixels, scene, theme, marks }) {
  const { rows, width } = scene;
  const [first, last] = visibleRows(scene);
  for (let row = first; row < last; row++) {
    const y = yOf(scene, row);
    const height = at(rows.top, row + 1) - at(rows.top, row);
    const index = at(rows.index, row);
    const isThin = isOverview(scene, row);
    if (rows.odd[row] && !isThin) pixels.fill(0, y, width, height, theme.pixels.band);
    if (index >= 0 && marks.isFound(index)) pixels.veil(0, y, width, height, theme.pixels.accent, 0.12);
    if (index >= 0 && index === marks.pinned?.row) pixels.veil(0, y, 3, height, theme.pixels.accent, 0.9);
    if (rows.first[row] && !isThin) pixels.fill(0, y, width, 1, theme.pixels.line);
  }
}

/**
 * @param {Picture} picture
 * @param {number} step
 */
function drawGrid({ pixels, scene, theme }, step) {
  for (const time of ticks(scene, step)) {
    const x = Math.round(xOf(scene, time));
    if (x > GUTTER) pixels.fill(x, AXIS, 1, scene.height - AXIS, theme.pixels.line);
  }
}

/**
 * @param {Picture} picture
 * @returns {Word[]}  What is to be written on them.
 */
function drawSpans(picture) {
  /** @type {Word[]} */
  const words = [];
  /** @type {import('#tile').Tile | undefined} */
  let tile;
  /** @type {(span: number) => import('#paint').Paint} */
  let paint = () => NO_PAINT;
  /** @type {Sign[]} */
  const signs = [];
  // The walk's rectangle is another's by then.
  /** @type {PutSign} */
  const sign = (rect, draw) => signs.push({ rect: { ...rect }, draw });
  eachShape(picture.scene, (shape) => {
    if (shape.tile !== tile) {
      tile = shape.tile;
      paint = picture.painter.of(tile);
    }
    const of = paint(shape.span);
    // An instant has no other sign: it has ended, and only a leg is odd.
    if (isInstant(shape)) sign(shape.rect, (rect) => drawInstant(picture, rect, of.pixel));
    else drawSpan(picture, shape, of, { words, sign });
  });
  // Over all the spans: one that follows, or lies in it, would cover what a sign says.
  for (const { rect, draw } of signs) draw(rect);
  return words;
}

const NO_PAINT = { fill: 'gray', ink: 'black', pixel: 0 };

/**
 * @param {Picture} picture
 * @param {import('#scene').Shape} shape
 * @param {import('#paint').Paint} paint
 * @param {{ words: Word[], sign: PutSign }} over  What is drawn when all spans are.
 */
function drawSpan(picture, { tile, span, kind, rect }, { pixel, ink }, { words, sign }) {
  const { pixels, theme, painter } = picture;
  const { x, y, width, height } = rect;
  if (kind === 'sample') {
    pixels.veil(x, y, width, height, theme.pixels.muted, 0.06);
    return;
  }
  const stages = painter.legend === undefined;
  const isOpen = tile.isOpen(span);
  if (kind === 'leg') {
    // What a leg took beside the stages that were reported stays a shade.
    pixels.veil(x, y, width, height, stages ? theme.pixels.muted : pixel, stages ? 0.2 : 0.55);
  } else if (stages || kind === 'request' || kind === 'user') {
    const shown = width > 3 ? width - 0.5 : width;
    if (isOpen) pixels.veil(x, y, shown, height, pixel, 0.5);
    else pixels.fill(x, y, shown, height, pixel);
  } else if (kind === 'stage') {
    pixels.veil(x, y, width, height, pixel, tile.nameOf(span).name === 'forward' ? 1 : 0.35);
  }
  // A hair of the surface between a stage and what lies in it.
  if (kind === 'nested' && stages) pixels.veil(x, y - 1, width, 1, theme.pixels.surface, 0.6);
  if (kind === 'stage') drawBound(picture, tile, span, rect);
  if (isOpen) sign(rect, (rect) => drawOpenEnd(picture, rect));
  const outcome = kind === 'request' || kind === 'leg' ? tile.outcome(span) : undefined;
  if (outcome !== undefined) sign(rect, (rect) => drawOutcome(picture, outcome, rect, words));
  if (tile.isOdd(span)) sign(rect, (rect) => drawOdd(picture, rect));
  // A further try begins with a flag.
  if (kind === 'request' && width > 2 && at(tile.attempt, span) > 0) pixels.fill(x, y - 2, 2, height + 4, theme.pixels.text);
  if ((kind === 'stage' || kind === 'user') && width > LABEL_PX && height >= 8) {
    const { name, color } = tile.nameOf(span);
    const isNesting = kind === 'stage' && NESTING.has(color);
    const room = isNesting ? height - 5 : height;
    words.push({ text: name, ink, size: kind === 'user' || isNesting ? 8.5 : 10, rect: { x, y, width, height: room } });
  }
}

/**
 * A diamond, with an edge that tells it from the span that it lies on.
 * @param {Picture} picture
 * @param {import('#scene').Rect} rect
 * @param {number} pixel
 */
function drawInstant({ pixels, theme }, { x, y: top, height }, pixel) {
  const y = top + height / 2;
  for (const [reach, color] of /** @type {const} */ ([[INSTANT_PX + 1, theme.pixels.surface], [INSTANT_PX, pixel]])) {
    for (let down = -reach; down <= reach; down++) {
      const half = reach - Math.abs(down);
      pixels.fill(x - half, y + down, 2 * half + 1, 1, color);
    }
  }
}

/** Stages that have others in them. */
const NESTING = new Set(['prefill/bootstrap_queue', 'prefill/forward', 'decode/prealloc']);

/**
 * Every sample as a line: in the colour of the stage that took longest, or of what else is asked for.
 * @param {Picture} picture
 */
function drawOverview({ pixels, scene, theme, painter, marks }) {
  eachSample(scene, (sample, { x, y, width, height }) => {
    pixels.fill(x, y, width, height, at(scene.table.flags, sample) & FLAG.failed ? theme.pixels.bad : painter.ofSample(sample).pixel);
    if (marks.isFound(sample) || marks.pinned?.row === sample) pixels.fill(GUTTER, y, 6, Math.max(height, 2), theme.pixels.accent);
  });
}

/**
 * What has not ended runs out in stripes.
 * @param {Picture} picture
 * @param {import('#scene').Rect} rect
 */
function drawOpenEnd({ pixels, theme }, rect) {
  for (let x = rect.x + rect.width - 4; x > Math.max(rect.x, rect.x + rect.width - 40); x -= 8) {
    pixels.fill(x, rect.y, 3, rect.height, theme.pixels.surface);
  }
}

/**
 * Where a stage may lie as well: a line from its ends as far as the clocks' offset is unsure.
 * @param {Picture} picture
 * @param {import('#tile').Tile} tile
 * @param {number} span
 * @param {import('#scene').Rect} rect
 */
function drawBound({ pixels, scene, theme }, tile, span, rect) {
  const bound = (at(tile.bound, span) / (scene.range.to - scene.range.from)) * (scene.width - GUTTER);
  // The first of a leg shows it for all: they move together.
  if (bound < BOUND_PX || rect.height < 8 || at(tile.parent, span) < 0 || !isFirstStage(tile, span)) return;
  const reach = Math.min(bound, scene.width);
  const y = rect.y + rect.height / 2;
  pixels.veil(rect.x - reach, y, 2 * reach, 1, theme.pixels.text, 0.75);
  for (const x of [rect.x - reach, rect.x + reach]) pixels.veil(x, y - 3, 1, 7, theme.pixels.text, 0.75);
}

/**
 * @param {import('#tile').Tile} tile
 * @param {number} span
 */
function isFirstStage(tile, span) {
  return at(tile.span, span) === at(tile.span, at(tile.parent, span)) + 1;
}

/**
 * A red head on what did not complete.
 * @param {Picture} picture
 * @param {string} outcome
 * @param {import('#scene').Rect} rect
 * @param {Word[]} words
 */
function drawOutcome({ pixels, theme }, outcome, rect, words) {
  pixels.fill(rect.x, rect.y, Math.max(rect.width, 2), Math.min(rect.height, 4), theme.pixels.bad);
  if (rect.height > 8 && rect.width > LABEL_PX) words.push({ text: outcome, ink: theme.bad, size: 10, rect: { ...rect, y: rect.y + 3, height: rect.height - 3 } });
}

/**
 * A corner on a leg that reported what cannot be true.
 * @param {Picture} picture
 * @param {import('#scene').Rect} rect
 */
function drawOdd({ pixels, theme }, rect) {
  const size = Math.min(rect.height, rect.width, 8);
  for (let down = 0; down < size; down++) pixels.fill(rect.x + rect.width - size + down, rect.y + down, size - down, 1, theme.pixels.warn);
}

/**
 * KV caches on their way, as arrows from the prefill to the decode leg.
 * @param {Picture} picture
 */
function drawTransfers({ context, scene, theme }) {
  const [first, last] = visibleRows(scene);
  if (scene.rows.density !== 'roomy') return;
  context.strokeStyle = theme.text;
  context.fillStyle = theme.text;
  context.lineWidth = 1;
  for (let row = first; row < last; row++) {
    const { tile } = tileOf(scene, row);
    const index = at(scene.rows.index, row);
    if (tile === undefined || index < 0) continue;
    for (const [from, to] of tile.transfersOf(index)) {
      const stretch = xOf(scene, at(tile.end, to)) - xOf(scene, at(tile.start, to));
      if (stretch < ARROW_PX || at(tile.end, to) < scene.range.from || at(tile.start, from) > scene.range.to) continue;
      const [sent, received] = [runOf(tile, index, from), runOf(tile, index, to)];
      if (sent === undefined || received === undefined) continue;
      const a = rectOf(scene, row, tile, sent, from);
      const b = rectOf(scene, row, tile, received, to);
      // It arrived before it was sent: one of the two is placed by a guess.
      context.setLineDash(a.x + a.width > b.x + b.width + 1 ? [3, 3] : []);
      arrow(context, a.x + a.width, a.y + a.height, b.x + b.width, b.y);
      context.setLineDash([]);
    }
  }
}

/**
 * @param {import('#tile').Tile} tile
 * @param {number} row
 * @param {number} span
 */
function runOf(tile, row, span) {
  return tile.rows.get(row)?.find((run) => run.first <= span && span < run.last);
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {number} x
 * @param {number} y
 * @param {number} toX
 * @param {number} toY
 */
function arrow(context, x, y, toX, toY) {
  const middle = (y + toY) / 2;
  context.beginPath();
  context.moveTo(x, y - 2);
  context.bezierCurveTo(x, middle + 3, toX, middle - 3, toX, toY + 4);
  context.stroke();
  context.beginPath();
  context.moveTo(toX, toY + 6);
  context.lineTo(toX - 3, toY);
  context.lineTo(toX + 3, toY);
  context.fill();
}
