// Draws a scene on a canvas.

import { spanColor } from '#colors';
import { axisTime, number, tickStep } from '#format';
import { AXIS, GUTTER, eachShape, visibleRows, xOf, yOf } from '#scene';

/** Pixels between ticks, about. */
const TICK_PX = 110;
/** A label is drawn where its bar is wider than this. */
const LABEL_PX = 34;

/**
 * @typedef {import('#scene').Scene} Scene
 * @typedef {import('#theme').Theme} Theme
 *
 * @typedef {Object} Marks
 * @property {import('#scene').Shape | undefined} hover
 * @property {number | undefined} cursor  Where the mouse is, in pixels from the left.
 * @property {number | undefined} found   A sample that was asked for.
 */

/**
 * @param {CanvasRenderingContext2D} context
 * @param {Scene} scene
 * @param {Theme} theme
 * @param {Marks} marks
 */
export function draw(context, scene, theme, marks) {
  context.fillStyle = theme.surface;
  context.fillRect(0, 0, scene.width, scene.height);
  const step = tickStep(scene.range.to - scene.range.from, (scene.width - GUTTER) / TICK_PX);
  drawBands(context, scene, theme, marks);
  drawGrid(context, scene, theme, step);
  clipped(context, GUTTER, AXIS, scene, () => drawSpans(context, scene, theme, marks));
  clipped(context, 0, AXIS, scene, () => drawLabels(context, scene, theme));
  drawAxis(context, scene, theme, step, marks.cursor);
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {number} x
 * @param {number} y
 * @param {Scene} scene
 * @param {() => void} inside
 */
function clipped(context, x, y, scene, inside) {
  context.save();
  context.beginPath();
  context.rect(x, y, scene.width - x, scene.height - y);
  context.clip();
  inside();
  context.restore();
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {Scene} scene
 * @param {Theme} theme
 * @param {Marks} marks
 */
function drawBands(context, scene, theme, marks) {
  for (const row of visibleRows(scene)) {
    const y = yOf(scene, row);
    context.fillStyle = theme.band;
    if (row.odd) context.fillRect(0, y, scene.width, row.height);
    if (row.sample === marks.found) {
      context.fillStyle = theme.accent;
      context.globalAlpha = 0.14;
      context.fillRect(0, y, scene.width, row.height);
      context.globalAlpha = 1;
    }
    if (row.first) {
      context.fillStyle = theme.line;
      context.fillRect(0, y, scene.width, 1);
    }
  }
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {Scene} scene
 * @param {Theme} theme
 * @param {number} step
 */
function drawGrid(context, scene, theme, step) {
  context.fillStyle = theme.line;
  for (const time of ticks(scene, step)) {
    const x = Math.round(xOf(scene, time));
    if (x > GUTTER) context.fillRect(x, AXIS, 1, scene.height - AXIS);
  }
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {Scene} scene
 * @param {Theme} theme
 * @param {Marks} marks
 */
function drawSpans(context, scene, theme, marks) {
  context.textBaseline = 'middle';
  const { spans } = scene.model;
  eachShape(scene, ({ span, kind, rect }) => {
    const name = spans.name[span] ?? '';
    const color = theme.spans.get(spanColor(spans.lane[span] ?? '', name)) ?? { fill: theme.muted, ink: theme.text };
    if (kind === 'sample') {
      context.fillStyle = theme.muted;
      context.globalAlpha = 0.07;
      context.fillRect(rect.x, rect.y, rect.width, rect.height);
      context.globalAlpha = 1;
      return;
    }
    if (kind === 'leg') {
      drawLeg(context, theme, rect);
    } else {
      context.fillStyle = color.fill;
      context.globalAlpha = spans.open[span] ? 0.55 : 1;
      context.fillRect(rect.x, rect.y, Math.max(rect.width - (rect.width > 3 ? 0.5 : 0), 1), rect.height);
      context.globalAlpha = 1;
    }
    if (kind === 'nested') {
      // A hair of the surface between a stage and what lies in it.
      context.fillStyle = theme.surface;
      context.globalAlpha = 0.6;
      context.fillRect(rect.x, rect.y - 1, rect.width, 1);
      context.globalAlpha = 1;
    }
    if (kind === 'request' || kind === 'leg') drawOutcome(context, scene, theme, span, rect);
    if ((kind === 'stage' || kind === 'user') && rect.width > LABEL_PX) {
      const nested = kind === 'stage' && hasNested(scene, span);
      drawText(context, theme, kind === 'user' || nested ? 8.5 : 10, color.ink, name, {
        ...rect,
        height: nested ? rect.height - 5 : rect.height,
      });
    }
  });
  if (marks.hover !== undefined) {
    const { rect } = marks.hover;
    context.strokeStyle = theme.text;
    context.lineWidth = 1.5;
    context.strokeRect(rect.x - 0.5, rect.y - 0.5, rect.width + 1, rect.height + 1);
  }
  if (marks.cursor !== undefined && marks.cursor > GUTTER) {
    context.fillStyle = theme.muted;
    context.globalAlpha = 0.5;
    context.fillRect(Math.round(marks.cursor), AXIS, 1, scene.height);
    context.globalAlpha = 1;
  }
}

/**
 * What a leg took beside the stages that were reported stays an empty outline.
 * @param {CanvasRenderingContext2D} context
 * @param {Theme} theme
 * @param {import('#scene').Rect} rect
 */
function drawLeg(context, theme, rect) {
  context.fillStyle = theme.muted;
  context.globalAlpha = 0.2;
  context.fillRect(rect.x, rect.y, rect.width, rect.height);
  context.globalAlpha = 1;
}

/**
 * A red head on what did not complete.
 * @param {CanvasRenderingContext2D} context
 * @param {Scene} scene
 * @param {Theme} theme
 * @param {number} span
 * @param {import('#scene').Rect} rect
 */
function drawOutcome(context, scene, theme, span, rect) {
  const outcome = scene.model.spans.outcome.get(span);
  if (outcome === undefined) return;
  context.fillStyle = theme.bad;
  context.fillRect(rect.x, rect.y, rect.width, Math.min(rect.height, 4));
  if (rect.height > 8 && rect.width > LABEL_PX) {
    drawText(context, theme, 10, theme.bad, outcome, { ...rect, y: rect.y + 3, height: rect.height - 3 });
  }
}

/**
 * @param {Scene} scene
 * @param {number} span
 */
function hasNested(scene, span) {
  const { parent, count } = scene.model.spans;
  // Children follow their parent at once.
  return span + 1 < count && parent[span + 1] === span;
}

/**
 * A text inside a rectangle, or nothing where it does not fit.
 * @param {CanvasRenderingContext2D} context
 * @param {Theme} theme
 * @param {number} size
 * @param {string} ink
 * @param {string} text
 * @param {import('#scene').Rect} rect
 */
function drawText(context, theme, size, ink, text, rect) {
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

/**
 * @param {CanvasRenderingContext2D} context
 * @param {Scene} scene
 * @param {Theme} theme
 */
function drawLabels(context, scene, theme) {
  const { samples } = scene.model;
  context.textBaseline = 'middle';
  for (const row of visibleRows(scene)) {
    const y = yOf(scene, row);
    const middle = y + row.height / 2;
    context.fillStyle = theme.text;
    context.font = `500 12px ${theme.font}`;
    const below = describe(samples, row.sample);
    const up = below === '' ? 0 : 7;
    context.fillText(ellipsis(context, samples.label[row.sample] ?? '', GUTTER - 40), 12, middle - up);
    context.fillStyle = theme.muted;
    context.font = `11px ${theme.font}`;
    context.fillText(ellipsis(context, below, GUTTER - 40), 12, middle + 8);
    context.font = `600 8.5px ${theme.font}`;
    for (const track of row.tracks.filter(({ kind }) => kind === 'leg')) {
      const letter = track.lane === 'prefill' ? 'P' : track.lane === 'decode' ? 'D' : '';
      context.fillText(letter, GUTTER - 14, y + track.top + track.height / 2 + 0.5);
    }
  }
  context.fillStyle = theme.line;
  context.fillRect(GUTTER - 1, 0, 1, scene.height);
}

/**
 * @param {import('#model').Samples} samples
 * @param {number} sample
 */
function describe(samples, sample) {
  const reward = samples.reward[sample] ?? null;
  const tokens = samples.tokens[sample] ?? null;
  return [
    reward === null ? '' : `reward ${number(reward)}`,
    tokens === null ? '' : `${number(tokens)} tokens`,
    samples.evaluation[sample] ? 'evaluation' : '',
  ]
    .filter((text) => text !== '')
    .join(' · ');
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {Scene} scene
 * @param {Theme} theme
 * @param {number} step
 * @param {number | undefined} cursor
 */
function drawAxis(context, scene, theme, step, cursor) {
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
  context.fillText('sample', 12, AXIS / 2);
  if (cursor !== undefined && cursor > GUTTER) {
    const time = scene.range.from + ((cursor - GUTTER) / (scene.width - GUTTER)) * (scene.range.to - scene.range.from);
    const text = axisTime(time, step / 100, largest);
    const width = context.measureText(text).width + 10;
    const left = Math.min(Math.max(cursor - width / 2, GUTTER), scene.width - width);
    context.fillStyle = theme.text;
    context.fillRect(left, 3, width, AXIS - 8);
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
  return Array.from({ length: Math.max(last - first + 1, 0) }, (_, at) => (first + at) * step);
}
