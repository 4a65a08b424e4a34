// Distributions of a field over the samples: a histogram with the share below each value, and one field against
// another. What is brushed becomes a filter, which holds in the timeline too.

import { binsOf, quantile, shareUpTo, valuesOf } from '#bins';
import { at } from '#columns';
import { byId, element, option } from '#dom';
import { number, percent, roundUp, tellValue } from '#format';
import { readTheme } from '#theme';

const histogram = byId('histogram', HTMLCanvasElement);
const scatter = byId('scatter', HTMLCanvasElement);
const facts = byId('chart-facts', HTMLElement);
const fieldSelect = byId('chart-field', HTMLSelectElement);
const otherSelect = byId('chart-other', HTMLSelectElement);

const EDGE = { left: 58, right: 44, top: 12, foot: 26 };
const BINS = 48;

/**
 * @typedef {Object} Shown
 * @property {import('#table').Table} table
 * @property {ArrayLike<number>} rows
 * @property {string} field
 * @property {string} other
 * @property {(fields: { field: string, other: string }) => void} choose
 * @property {(filter: string) => void} filter
 *
 * @typedef {{ from: number, to: number }} Span
 * @typedef {{ context: CanvasRenderingContext2D, width: number, height: number, theme: import('#theme').Theme, x: Span, y: Span }} Plot
 */

/** @type {Shown | undefined} */
let shown;
/** @type {{ x: Span, y: Span } | undefined} */
let histogramAxes;
/** @type {{ x: Span, y: Span } | undefined} */
let scatterAxes;

for (const select of [fieldSelect, otherSelect]) {
  select.addEventListener('change', () => shown?.choose({ field: fieldSelect.value, other: otherSelect.value }));
}
brush(histogram, () => histogramAxes, ({ x }) => {
  const field = shown?.table.fields.get(shown.field);
  if (field !== undefined) shown?.filter(between(field.name, x));
});
brush(scatter, () => scatterAxes, ({ x, y }) => {
  if (shown !== undefined) shown.filter(`${between(shown.field, x)} and ${between(shown.other, y)}`);
});
for (const canvas of [histogram, scatter]) new ResizeObserver(() => draw()).observe(canvas);

/** @param {Shown} what */
export function showCharts(what) {
  if (shown?.table !== what.table) {
    const fields = [...what.table.fields.values()].filter(({ name, unit }) => unit !== 'text' && unit !== 'flag' && what.table.has(name));
    for (const select of [fieldSelect, otherSelect]) {
      select.replaceChildren(...fields.map(({ name, label }) => option(name, label)));
    }
  }
  shown = what;
  fieldSelect.value = what.field;
  otherSelect.value = what.other;
  draw();
}

function draw() {
  const field = shown?.table.fields.get(shown.field);
  if (shown === undefined || field === undefined || histogram.clientWidth === 0) return;
  const values = valuesOf(shown.rows, field.number);
  facts.replaceChildren(...(values.length === 0 ? ['No sample has this.'] : statistics(values, field)));
  drawHistogram(values, field);
  const other = shown.table.fields.get(shown.other);
  if (other !== undefined) drawScatter(shown.rows, field, other);
}

/**
 * @param {Float64Array} values
 * @param {import('#table').Field} field
 */
function statistics(values, field) {
  const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
  /** @type {[string, string][]} */
  const told = [
    ['samples', number(values.length)],
    ['mean', tellValue(field, mean)],
    ['p10', tellValue(field, quantile(values, 0.1))],
    ['median', tellValue(field, quantile(values, 0.5))],
    ['p90', tellValue(field, quantile(values, 0.9))],
    ['p99', tellValue(field, quantile(values, 0.99))],
    ['max', tellValue(field, quantile(values, 1))],
  ];
  return told.map(([name, value]) => element('span', 'fact', element('b', '', value), ` ${name}`));
}

/**
 * @param {Float64Array} values
 * @param {import('#table').Field} field
 */
function drawHistogram(values, field) {
  const bins = binsOf(values, BINS);
  const x = { from: bins.from, to: bins.from + bins.width * bins.counts.length };
  const most = roundUp(Math.max(...bins.counts, 1));
  const plot = begin(histogram, x, { from: 0, to: most });
  if (plot === undefined) return;
  histogramAxes = { x, y: plot.y };
  const { context, theme } = plot;
  axes(plot, (value) => tellValue(field, value), number);
  context.fillStyle = theme.accent;
  context.globalAlpha = 0.75;
  bins.counts.forEach((count, bin) => {
    const left = xAt(plot, bins.from + bin * bins.width);
    const right = xAt(plot, bins.from + (bin + 1) * bins.width);
    const top = yAt(plot, count);
    context.fillRect(left + 0.5, top, Math.max(right - left - 1, 1), plot.height - EDGE.foot - top);
  });
  context.globalAlpha = 1;
  // The share up to each value, with an axis of its own at the right.
  context.strokeStyle = theme.warn;
  context.lineWidth = 1.5;
  context.beginPath();
  for (let px = EDGE.left; px <= plot.width - EDGE.right; px += 2) {
    const value = x.from + ((px - EDGE.left) / (plot.width - EDGE.left - EDGE.right)) * (x.to - x.from);
    context.lineTo(px, yAt(plot, shareUpTo(values, value) * most));
  }
  context.stroke();
  context.fillStyle = theme.warn;
  context.textAlign = 'left';
  for (const share of [0, 0.5, 1]) context.fillText(percent(share), plot.width - EDGE.right + 5, yAt(plot, share * most));
}

/**
 * @param {ArrayLike<number>} rows
 * @param {import('#table').Field} field
 * @param {import('#table').Field} other
 */
function drawScatter(rows, field, other) {
  const [xs, ys] = [valuesOf(rows, field.number), valuesOf(rows, other.number)];
  if (xs.length === 0 || ys.length === 0) {
    begin(scatter, { from: 0, to: 1 }, { from: 0, to: 1 });
    return;
  }
  const plot = begin(scatter, padded(xs), padded(ys));
  if (plot === undefined) return;
  scatterAxes = { x: plot.x, y: plot.y };
  const { context, theme } = plot;
  axes(plot, (value) => tellValue(field, value), (value) => tellValue(other, value));
  context.fillStyle = theme.accent;
  context.globalAlpha = Math.max(0.22, Math.min(0.7, 400 / rows.length));
  for (let index = 0; index < rows.length; index++) {
    const row = at(rows, index);
    const [a, b] = [field.number(row), other.number(row)];
    if (!Number.isNaN(a) && !Number.isNaN(b)) context.fillRect(xAt(plot, a) - 1.5, yAt(plot, b) - 1.5, 3, 3);
  }
  context.globalAlpha = 1;
}

/** @param {Float64Array} sorted @returns {Span} */
function padded(sorted) {
  const [from, to] = [at(sorted, 0), sorted.at(-1) ?? 0];
  const margin = (to - from) * 0.03 || 1;
  return { from: from - margin, to: to + margin };
}

/**
 * @param {HTMLCanvasElement} canvas
 * @param {Span} x
 * @param {Span} y
 * @returns {Plot | undefined}
 */
function begin(canvas, x, y) {
  const context = canvas.getContext('2d');
  if (context === null) return undefined;
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  canvas.width = Math.round(width * devicePixelRatio);
  canvas.height = Math.round(height * devicePixelRatio);
  context.setTransform(devicePixelRatio, 0, 0, devicePixelRatio, 0, 0);
  return { context, width, height, theme: readTheme(), x, y };
}

/**
 * @param {Plot} plot
 * @param {(value: number) => string} tellX
 * @param {(value: number) => string} tellY
 */
function axes(plot, tellX, tellY) {
  const { context, theme, width, height } = plot;
  context.font = `11px ${theme.font}`;
  context.textBaseline = 'middle';
  for (const value of marks(plot.x, (width - EDGE.left) / 110)) {
    const px = xAt(plot, value);
    context.fillStyle = theme.line;
    context.fillRect(px, EDGE.top, 1, height - EDGE.top - EDGE.foot);
    context.fillStyle = theme.muted;
    context.textAlign = 'center';
    context.fillText(tellX(value), px, height - EDGE.foot + 13);
  }
  for (const value of marks(plot.y, height / 50)) {
    const py = yAt(plot, value);
    context.fillStyle = theme.line;
    context.fillRect(EDGE.left, py, width - EDGE.left - EDGE.right, 1);
    context.fillStyle = theme.muted;
    context.textAlign = 'right';
    context.fillText(tellY(value), EDGE.left - 6, py);
  }
  context.textAlign = 'left';
}

/** Round values within a range. @param {Span} span @param {number} about */
function marks({ from, to }, about) {
  const step = roundUp((to - from) / Math.max(about, 1));
  const found = [];
  for (let mark = Math.ceil(from / step); mark * step <= to && found.length < 50; mark++) found.push(mark * step);
  return found;
}

/** @param {Plot} plot @param {number} value */
function xAt({ x, width }, value) {
  return EDGE.left + ((value - x.from) / (x.to - x.from)) * (width - EDGE.left - EDGE.right);
}

/** @param {Plot} plot @param {number} value */
function yAt({ y, height }, value) {
  return height - EDGE.foot - ((value - y.from) / (y.to - y.from)) * (height - EDGE.top - EDGE.foot);
}

/** @param {string} field @param {Span} span */
function between(field, { from, to }) {
  return `${field} >= ${Number(from.toPrecision(4))} and ${field} <= ${Number(to.toPrecision(4))}`;
}

/**
 * Lets a stretch, or a box, of a chart be chosen by dragging.
 * @param {HTMLCanvasElement} canvas
 * @param {() => { x: Span, y: Span } | undefined} axesOf
 * @param {(chosen: { x: Span, y: Span }) => void} chosen
 */
function brush(canvas, axesOf, chosen) {
  const veil = element('div', 'brush');
  veil.hidden = true;
  canvas.parentElement?.append(veil);
  const isFlat = canvas === histogram;
  canvas.addEventListener('pointerdown', (event) => {
    if (event.button !== 0) return;
    const box = canvas.getBoundingClientRect();
    /** @param {PointerEvent} of */
    const within = (of) => ({ x: of.clientX - box.left, y: of.clientY - box.top });
    const from = within(event);
    let to = from;
    /** @param {PointerEvent} moved */
    const move = (moved) => {
      to = within(moved);
      const [left, top] = [Math.min(from.x, to.x), isFlat ? EDGE.top : Math.min(from.y, to.y)];
      veil.hidden = false;
      veil.style.left = `${canvas.offsetLeft + left}px`;
      veil.style.top = `${canvas.offsetTop + top}px`;
      veil.style.width = `${Math.abs(from.x - to.x)}px`;
      veil.style.height = `${isFlat ? box.height - EDGE.top - EDGE.foot : Math.abs(from.y - to.y)}px`;
    };
    const stop = () => {
      canvas.removeEventListener('pointermove', move);
      veil.hidden = true;
      const of = axesOf();
      if (of === undefined || Math.abs(from.x - to.x) < 3) return;
      /** @param {number} px */
      const xOf = (px) => of.x.from + ((px - EDGE.left) / (box.width - EDGE.left - EDGE.right)) * (of.x.to - of.x.from);
      /** @param {number} px */
      const yOf = (px) => of.y.from + ((box.height - EDGE.foot - px) / (box.height - EDGE.top - EDGE.foot)) * (of.y.to - of.y.from);
      chosen({
        x: { from: xOf(Math.min(from.x, to.x)), to: xOf(Math.max(from.x, to.x)) },
        y: { from: yOf(Math.max(from.y, to.y)), to: yOf(Math.min(from.y, to.y)) },
      });
    };
    canvas.setPointerCapture(event.pointerId);
    canvas.addEventListener('pointermove', move);
    canvas.addEventListener('lostpointercapture', stop, { once: true });
  });
}
