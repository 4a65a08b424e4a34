// Draws a scene on a canvas.

import { at } from '#columns';
import { axisTime, duration, number, tickStep } from '#format';
import { AXIS, GUTTER, eachSample, eachShape, isOverview, rectOf, stripOf, tileOf, visibleRows, xOf, yOf } from '#scene';
import { eachBar } from '#passes';
import { trackPlace } from '#rows';
import { FLAG, workerName } from '#table';

/** Pixels between ticks, about. */
const TICK_PX = 110;
/** A label is drawn where its bar is wider than this. */
const LABEL_PX = 34;
/** What may lie this much elsewhere is shown to. */
const BOUND_PX = 3;

/**
 * @typedef {import('#scene').Scene} Scene
 * @typedef {import('#theme').Theme} Theme
 *
 * @typedef {Object} Marks
 * @property {import('#scene').Shape | undefined} hover
 * @property {number | undefined} cursor  Where the mouse is, in pixels from the left.
 * @property {import('#viewport').Range | undefined} selected  A range of time.
 * @property {import('#scene').Rect | undefined} box  What is about to be zoomed into.
 * @property {{ row: number, part: number, span: number } | undefined} pinned
 * @property {(row: number) => boolean} isFound  Of a sample: whether the search found it.
 *
 * @typedef {{ context: CanvasRenderingContext2D, scene: Scene, theme: Theme, painter: import('#paint').Painter, marks: Marks }} Picture
 */

/** @param {Picture} picture */
export function draw(picture) {
  const { context, scene, theme, marks } = picture;
  context.fillStyle = theme.surface;
  context.fillRect(0, 0, scene.width, scene.height);
  const step = tickStep(scene.range.to - scene.range.from, (scene.width - GUTTER) / TICK_PX);
  drawBands(picture);
  drawGrid(picture, step);
  clipped(picture, GUTTER, AXIS, () => {
    drawSpans(picture);
    drawTransfers(picture);
    drawVersions(picture);
    drawSelection(picture);
  });
  clipped(picture, 0, AXIS, () => drawLabels(picture));
  drawAxis(picture, step);
  if (marks.box !== undefined) {
    context.strokeStyle = theme.accent;
    context.lineWidth = 1;
    context.setLineDash([4, 3]);
    context.strokeRect(marks.box.x + 0.5, marks.box.y + 0.5, marks.box.width, marks.box.height);
    context.setLineDash([]);
  }
}

/**
 * @param {Picture} picture
 * @param {number} x
 * @param {number} y
 * @param {() => void} inside
 */
function clipped({ context, scene }, x, y, inside) {
  context.save();
  context.beginPath();
  context.rect(x, y, scene.width - x, scene.height - y);
  context.clip();
  inside();
  context.restore();
}

/**
 * @param {Picture} picture
 * @param {number} alpha
 * @param {string} color
 * @param {import('#scene').Rect} rect
 */
function veil({ context }, alpha, color, rect) {
  context.fillStyle = color;
  context.globalAlpha = alpha;
  context.fillRect(rect.x, rect.y, rect.width, rect.height);
  context.globalAlpha = 1;
}

/** @param {Picture} picture */
function drawBands(picture) {
  const { context, scene, theme, marks } = picture;
  const { rows, width } = scene;
  const [first, last] = visibleRows(scene);
  for (let row = first; row < last; row++) {
    const y = yOf(scene, row);
    const height = at(rows.top, row + 1) - at(rows.top, row);
    const index = at(rows.index, row);
    context.fillStyle = theme.band;
    if (rows.odd[row] && !isOverview(scene, row)) context.fillRect(0, y, width, height);
    if (index >= 0 && marks.isFound(index)) veil(picture, 0.12, theme.accent, { x: 0, y, width, height });
    if (index >= 0 && index === marks.pinned?.row) veil(picture, 0.9, theme.accent, { x: 0, y, width: 3, height });
    if (rows.first[row] && !isOverview(scene, row)) {
      context.fillStyle = theme.line;
      context.fillRect(0, y, width, 1);
    }
  }
}

/**
 * @param {Picture} picture
 * @param {number} step
 */
function drawGrid({ context, scene, theme }, step) {
  context.fillStyle = theme.line;
  for (const time of ticks(scene, step)) {
    const x = Math.round(xOf(scene, time));
    if (x > GUTTER) context.fillRect(x, AXIS, 1, scene.height - AXIS);
  }
}

/** @param {Picture} picture */
function drawSpans(picture) {
  const { context, scene, theme, marks } = picture;
  context.textBaseline = 'middle';
  eachShape(scene, (shape) => drawSpan(picture, shape));
  drawPasses(picture);
  if (scene.rows.density === 'overview') drawOverview(picture);
  if (marks.hover !== undefined) outline(picture, marks.hover.rect, theme.text);
  if (marks.cursor !== undefined && marks.cursor > GUTTER) {
    veil(picture, 0.5, theme.muted, { x: Math.round(marks.cursor), y: AXIS, width: 1, height: scene.height });
  }
}

/**
 * The forward passes of the workers in sight: a bar for each, as high as its batch, prefill on decode; the line is the
 * KV cache in use.
 * @param {Picture} picture
 */
function drawPasses({ context, scene, theme }) {
  const { passes } = scene;
  const [first, last] = visibleRows(scene);
  for (let row = first; row < last; row++) {
    const worker = -1 - at(scene.rows.index, row);
    const of = passes?.workers.get(worker);
    if (passes === undefined || of === undefined) continue;
    const height = stripOf(scene, row) - 6;
    const foot = yOf(scene, row) + height + 4;
    const view = { ...scene.range, xOf: (/** @type {number} */ time) => xOf(scene, time) };
    const [prefill, decode] = ['prefill/forward', 'decode/forward'].map((id) => theme.spans.get(id)?.fill ?? theme.muted);
    const perRequest = height / Math.max(of.mostRequests, 1);
    context.fillStyle = theme.line;
    context.fillRect(GUTTER, foot, scene.width - GUTTER, 1);
    const line = new Path2D();
    eachBar(passes, worker, view, (bar) => {
      const width = Math.max(bar.width - (bar.width > 3 ? 0.5 : 0), 1);
      context.fillStyle = decode ?? theme.muted;
      context.fillRect(bar.x, foot - bar.decode * perRequest, width, bar.decode * perRequest);
      context.fillStyle = prefill ?? theme.muted;
      context.fillRect(bar.x, foot - (bar.decode + bar.prefill) * perRequest, width, bar.prefill * perRequest);
      const y = foot - (bar.kv / Math.max(of.mostKv, 1)) * height;
      line.lineTo(bar.x, y);
      line.lineTo(bar.x + bar.width, y);
    });
    context.strokeStyle = theme.text;
    context.lineWidth = 1;
    context.stroke(line);
  }
}

/**
 * @param {Picture} picture
 * @param {import('#scene').Shape} shape
 */
function drawSpan(picture, { tile, span, kind, row, rect }) {
  const { context, scene, theme, painter, marks } = picture;
  if (kind === 'sample') {
    veil(picture, 0.06, theme.muted, rect);
    return;
  }
  const { fill, ink } = painter.of(tile, span);
  const stages = painter.legend === undefined;
  const outcome = tile.outcome(span);
  if (kind === 'leg') {
    // What a leg took beside the stages that were reported stays a shade.
    veil(picture, stages ? 0.2 : 0.55, stages ? theme.muted : fill, rect);
  } else if (stages || kind === 'request' || kind === 'user') {
    context.fillStyle = fill;
    context.globalAlpha = tile.isOpen(span) ? 0.5 : 1;
    context.fillRect(rect.x, rect.y, Math.max(rect.width - (rect.width > 3 ? 0.5 : 0), 1), rect.height);
    context.globalAlpha = 1;
  } else if (kind === 'stage') {
    veil(picture, tile.nameOf(span).name === 'forward' ? 1 : 0.35, fill, rect);
  }
  if (kind === 'nested' && stages) {
    // A hair of the surface between a stage and what lies in it.
    veil(picture, 0.6, theme.surface, { ...rect, y: rect.y - 1, height: 1 });
  }
  if (tile.isOpen(span)) drawOpenEnd(picture, rect);
  if (kind === 'stage') drawBound(picture, tile, span, rect);
  if (outcome !== undefined && (kind === 'request' || kind === 'leg')) drawOutcome(picture, outcome, rect);
  if (tile.isOdd(span)) drawOdd(picture, rect);
  if (kind === 'request' && at(tile.attempt, span) > 0 && rect.width > 2) {
    // A further try begins with a flag.
    context.fillStyle = theme.text;
    context.fillRect(rect.x, rect.y - 2, 2, rect.height + 4);
  }
  if ((kind === 'stage' || kind === 'user') && rect.width > LABEL_PX && rect.height >= 8) {
    const nested = kind === 'stage' && hasNested(tile, span);
    const height = nested ? rect.height - 5 : rect.height;
    drawText(picture, kind === 'user' || nested ? 8.5 : 10, ink, tile.nameOf(span).name, { ...rect, height });
  }
  const { pinned } = marks;
  const isPinned = pinned !== undefined && pinned.part === at(tile.part, span) && pinned.span === at(tile.span, span);
  if (isPinned && pinned.row === at(tile.sample, span) && at(scene.rows.index, row) >= 0) outline(picture, rect, theme.accent);
}

/**
 * Every sample as a line: in the colour of the stage that took longest, or of what else is asked for.
 * @param {Picture} picture
 */
function drawOverview({ context, scene, theme, painter, marks }) {
  eachSample(scene, (sample, { x, y, width, height }) => {
    context.fillStyle = at(scene.table.flags, sample) & FLAG.failed ? theme.bad : painter.ofSample(sample);
    context.fillRect(x, y, width, height);
    if (!marks.isFound(sample) && marks.pinned?.row !== sample) return;
    context.fillStyle = theme.accent;
    context.fillRect(GUTTER, y, 6, Math.max(height, 2));
  });
}

/**
 * @param {Picture} picture
 * @param {import('#scene').Rect} rect
 * @param {string} color
 */
function outline({ context }, rect, color) {
  context.strokeStyle = color;
  context.lineWidth = 1.5;
  context.strokeRect(rect.x - 0.5, rect.y - 0.5, rect.width + 1, rect.height + 1);
}

/**
 * What has not ended runs out in stripes.
 * @param {Picture} picture
 * @param {import('#scene').Rect} rect
 */
function drawOpenEnd({ context, theme }, rect) {
  context.fillStyle = theme.surface;
  for (let x = rect.x + rect.width - 4; x > Math.max(rect.x, rect.x + rect.width - 40); x -= 8) {
    context.fillRect(x, rect.y, 3, rect.height);
  }
}

/**
 * Where a stage may lie as well: a line from its ends as far as the clocks' offset is unsure.
 * @param {Picture} picture
 * @param {import('#tile').Tile} tile
 * @param {number} span
 * @param {import('#scene').Rect} rect
 */
function drawBound(picture, tile, span, rect) {
  const { scene, theme } = picture;
  const bound = xOf(scene, at(tile.start, span) + at(tile.bound, span)) - xOf(scene, at(tile.start, span));
  // The first of a leg shows it for all: they move together.
  if (bound < BOUND_PX || rect.height < 8 || at(tile.parent, span) < 0 || !isFirstStage(tile, span)) return;
  const reach = Math.min(bound, scene.width);
  const y = rect.y + rect.height / 2;
  veil(picture, 0.75, theme.text, { x: rect.x - reach, y, width: 2 * reach, height: 1 });
  for (const x of [rect.x - reach, rect.x + reach]) veil(picture, 0.75, theme.text, { x, y: y - 3, width: 1, height: 7 });
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
 */
function drawOutcome(picture, outcome, rect) {
  const { context, theme } = picture;
  context.fillStyle = theme.bad;
  context.fillRect(rect.x, rect.y, Math.max(rect.width, 2), Math.min(rect.height, 4));
  if (rect.height > 8 && rect.width > LABEL_PX) {
    drawText(picture, 10, theme.bad, outcome, { ...rect, y: rect.y + 3, height: rect.height - 3 });
  }
}

/**
 * A corner on a leg that reported what cannot be true.
 * @param {Picture} picture
 * @param {import('#scene').Rect} rect
 */
function drawOdd({ context, theme }, rect) {
  const size = Math.min(rect.height, rect.width, 8);
  context.fillStyle = theme.warn;
  context.beginPath();
  context.moveTo(rect.x + rect.width - size, rect.y);
  context.lineTo(rect.x + rect.width, rect.y);
  context.lineTo(rect.x + rect.width, rect.y + size);
  context.fill();
}

/**
 * KV caches on their way, as arrows from the prefill to the decode leg.
 * @param {Picture} picture
 */
function drawTransfers(picture) {
  const { context, scene, theme } = picture;
  const [first, last] = visibleRows(scene);
  if (scene.rows.density !== 'roomy') return;
  context.strokeStyle = theme.text;
  context.fillStyle = theme.text;
  context.lineWidth = 1;
  for (let row = first; row < last; row++) {
    const { tile } = tileOf(scene, row);
    const index = at(scene.rows.index, row);
    if (tile === undefined || index < 0) continue;
    for (const [from, to] of tile.transfers) {
      if (at(tile.sample, from) !== index) continue;
      const stretch = xOf(scene, at(tile.end, to)) - xOf(scene, at(tile.start, to));
      // Where the stages are too narrow to be told apart, an arrow says nothing.
      if (stretch < 6) continue;
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

/**
 * Where the weights changed while the step was going on.
 * @param {Picture} picture
 */
function drawVersions(picture) {
  const { context, scene, theme } = picture;
  const { versions } = scene.table;
  if (versions.length < 2) return;
  context.textBaseline = 'middle';
  for (const { name, first_ns } of versions) {
    const x = Math.round(xOf(scene, first_ns));
    if (x < GUTTER || x > scene.width) continue;
    veil(picture, 0.8, theme.accent, { x, y: AXIS, width: 1, height: scene.height });
    drawText(picture, 10, theme.accent, `weights ${name}`, { x: x - 1, y: AXIS, width: 130, height: 12 });
  }
}

/**
 * The selected range, with its length: what a ruler tells.
 * @param {Picture} picture
 */
function drawSelection(picture) {
  const { context, scene, theme, marks } = picture;
  if (marks.selected === undefined) return;
  const [from, to] = [xOf(scene, marks.selected.from), xOf(scene, marks.selected.to)];
  veil(picture, 0.1, theme.accent, { x: from, y: AXIS, width: to - from, height: scene.height });
  for (const x of [from, to]) veil(picture, 0.9, theme.accent, { x: Math.round(x), y: AXIS, width: 1, height: scene.height });
  const text = duration(marks.selected.to - marks.selected.from);
  context.font = `600 11px ${theme.font}`;
  const width = context.measureText(text).width + 12;
  const left = Math.min(Math.max((from + to - width) / 2, GUTTER), scene.width - width);
  context.fillStyle = theme.accent;
  context.fillRect(left, AXIS + 3, width, 17);
  context.fillStyle = theme.surface;
  context.fillText(text, left + 6, AXIS + 12);
}

/**
 * @param {import('#tile').Tile} tile
 * @param {number} span
 */
function hasNested(tile, span) {
  return NESTING.has(tile.nameOf(span).color);
}

/** Stages that have others in them. */
const NESTING = new Set(['prefill/bootstrap_queue', 'prefill/forward', 'decode/prealloc']);

/**
 * A text inside a rectangle, or nothing where it does not fit.
 * @param {Picture} picture
 * @param {number} size
 * @param {string} ink
 * @param {string} text
 * @param {import('#scene').Rect} rect
 */
function drawText({ context, theme }, size, ink, text, rect) {
  context.font = `${size}px ${theme.font}`;
  context.fillStyle = ink;
  const shown = ellipsis(context, text, rect.width - 8);
  if (shown.length > 2) context.fillText(shown, rect.x + 4, rect.y + rect.height / 2 + 0.5);
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {string} text
 * @param {number} width
 */
function ellipsis(context, text, width) {
  if (text.length < 40 && context.measureText(text).width <= width) return text;
  let keep = Math.min(text.length, Math.floor(width / 4));
  while (keep > 0 && context.measureText(`${text.slice(0, keep)}…`).width > width) keep--;
  return keep === 0 ? '' : `${text.slice(0, keep)}…`;
}

/** @param {Picture} picture */
function drawLabels(picture) {
  const { context, scene, theme } = picture;
  const { table, rows } = scene;
  const [first, last] = visibleRows(scene);
  context.textBaseline = 'middle';
  for (let row = first; row < last; row++) {
    const index = at(rows.index, row);
    if (isOverview(scene, row)) continue;
    // Of a row that is higher than the window the label stays in sight.
    const [top, foot] = [Math.max(yOf(scene, row), AXIS), Math.min(yOf(scene, row + 1), scene.height)];
    const middle = index < 0 ? Math.min(top + 18, (top + foot) / 2) : (top + foot) / 2;
    const roomy = rows.density === 'roomy' || index < 0;
    const below = roomy ? describe(table, index) : '';
    context.fillStyle = theme.text;
    context.font = `500 ${roomy ? 12 : 10}px ${theme.font}`;
    const label = index < 0 ? workerName(table.workers[-1 - index]) : table.label(index);
    context.fillText(ellipsis(context, label, GUTTER - 36), 12, middle - (below === '' ? 0 : 7));
    context.fillStyle = theme.muted;
    context.font = `11px ${theme.font}`;
    context.fillText(ellipsis(context, below, GUTTER - 36), 12, middle + 8);
    if (index < 0 || !roomy) continue;
    context.font = `600 8.5px ${theme.font}`;
    for (const [lane, letter] of LETTERS) {
      for (let track = 0; track < at(table.tracks[lane] ?? [], index); track++) {
        const place = trackPlace(table, index, rows.density, lane, track);
        const y = yOf(scene, row) + place.top + place.height / 2 + 0.5;
        if (y > AXIS && y < scene.height) context.fillText(letter, GUTTER - 14, y);
      }
    }
  }
  context.fillStyle = theme.line;
  context.fillRect(GUTTER - 1, 0, 1, scene.height);
}

/** Lanes of prefill and decode. @type {[number, string][]} */
const LETTERS = [
  [2, 'P'],
  [3, 'D'],
];

/**
 * @param {import('#table').Table} table
 * @param {number} index
 */
function describe(table, index) {
  if (index < 0) {
    const worker = table.workers[-1 - index];
    return worker === undefined ? '' : `${worker.role} · ${number(worker.legs)} requests`;
  }
  const [reward, tokens] = [table.reward[index] ?? NaN, table.fields.get('tokens')?.number(index) ?? NaN];
  return [
    Number.isNaN(reward) ? '' : `reward ${number(reward)}`,
    Number.isNaN(tokens) ? '' : `${number(tokens)} tokens`,
    at(table.flags, index) & FLAG.evaluation ? 'evaluation' : '',
  ]
    .filter((text) => text !== '')
    .join(' · ');
}

/**
 * @param {Picture} picture
 * @param {number} step
 */
function drawAxis({ context, scene, theme, marks: { cursor } }, step) {
  context.fillStyle = theme.surface;
  context.fillRect(0, 0, scene.width, AXIS);
  context.fillStyle = theme.line;
  context.fillRect(0, AXIS - 1, scene.width, 1);
  context.fillStyle = theme.muted;
  context.font = `11px ${theme.font}`;
  context.textBaseline = 'middle';
  const largest = Math.max(Math.abs(scene.range.from), Math.abs(scene.range.to));
  for (const time of ticks(scene, step)) {
    const x = Math.round(xOf(scene, time));
    if (x < GUTTER) continue;
    context.fillRect(x, AXIS - 6, 1, 5);
    context.fillText(axisTime(time, step, largest), x + 5, AXIS / 2);
  }
  const { rows } = scene;
  const workers = rows.count - rows.samples;
  const counts = [workers === 0 ? '' : `${number(workers)} workers`, rows.samples === 0 ? '' : `${number(rows.samples)} samples`];
  context.fillText(counts.filter((text) => text !== '').join(', '), 12, AXIS / 2);
  if (cursor !== undefined && cursor > GUTTER) {
    const time = scene.range.from + ((cursor - GUTTER) / (scene.width - GUTTER)) * (scene.range.to - scene.range.from);
    const text = axisTime(time, step / 100, largest);
    const width = context.measureText(text).width + 10;
    const left = Math.min(Math.max(cursor - width / 2, GUTTER), scene.width - width);
    context.fillStyle = theme.text;
    context.fillRect(left, 3, width, AXIS - 7);
    context.fillStyle = theme.surface;
    context.fillText(text, left + 5, AXIS / 2);
  }
}

/**
 * @param {Scene} scene
 * @param {number} step
 */
function ticks(scene, step) {
  const first = Math.ceil(scene.range.from / step);
  const last = Math.floor(scene.range.to / step);
  return Array.from({ length: Math.max(last - first + 1, 0) }, (_, index) => (first + index) * step);
}
