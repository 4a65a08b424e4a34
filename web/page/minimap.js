// The step from begin to end: how many samples were live, its tail shaded, and which part of it is in sight. Dragging on
// it chooses that part.

import { at } from '#columns';
import { liveSamples, tailOf } from '#curve';
import { byId } from '#dom';
import { duration, number, percent } from '#format';
import { GUTTER } from '#scene';
import { readTheme } from '#theme';
import { NOTHING, fit } from '#viewport';
import { widthOf } from '#words';

/** Pixels beside an edge of the part in sight that still mean the edge. */
const EDGE_PX = 5;
/** Free space above the curve. */
const TOP_PX = 4;

const canvas = byId('minimap', HTMLCanvasElement);

/** @typedef {{ table: import('#table').Table, rows: ArrayLike<number> }} Shown */

export class Minimap {
  #context;
  /** @type {Shown | undefined} */
  #shown;
  /** @type {import('#viewport').Range} */
  #range = { from: 0, to: 1 };
  /** @type {import('#curve').Curve} */
  #curve = { live: new Float64Array(), most: 0 };
  /** @type {ReturnType<typeof tailOf>} */
  #tail;
  /** The curve as it was drawn last: only what is in sight moves. @type {HTMLCanvasElement} */
  #drawn = document.createElement('canvas');
  #size = { width: 0, height: 0 };
  #chosen;
  /** @type {number | undefined} */
  #frame;

  /** @param {(range: import('#viewport').Range) => void} chosen */
  constructor(chosen) {
    const context = canvas.getContext('2d');
    if (context === null) throw new Error('this browser draws no canvas');
    this.#context = context;
    this.#chosen = chosen;
    canvas.addEventListener('pointerdown', (event) => this.#drag(event));
    new ResizeObserver(() => {
      this.#size = { width: canvas.clientWidth, height: canvas.clientHeight };
      for (const of of [canvas, this.#drawn]) {
        of.width = Math.round(this.#size.width * devicePixelRatio);
        of.height = Math.round(this.#size.height * devicePixelRatio);
      }
      this.#count();
      this.draw();
    }).observe(canvas);
  }

  /**
   * @param {import('#table').Table | undefined} table
   * @param {ArrayLike<number>} rows  Samples that a filter has left.
   */
  show(table, rows) {
    this.#shown = table && { table, rows };
    this.#count();
    this.draw();
  }

  /** @param {import('#viewport').Range} range */
  look(range) {
    this.#range = range;
    this.#frame ??= requestAnimationFrame(() => this.#drawOver());
  }

  /** All of the step, as the timeline fits it. */
  get #whole() {
    return fit(this.#shown?.table.extent ?? NOTHING);
  }

  #count() {
    const bins = Math.max(this.#size.width - GUTTER, 0);
    if (this.#shown === undefined) return;
    const { table, rows } = this.#shown;
    this.#curve = liveSamples(table, rows, bins);
    this.#tail = tailOf(table);
    const told = this.#tail === undefined ? '' : `; tail ${percent(this.#tail.share)}`;
    canvas.setAttribute('aria-label', `Live samples over time, at most ${number(Math.round(this.#curve.most))}${told}`);
  }

  /** Draws the curve anew, and what is in sight of it. */
  draw() {
    const context = this.#drawn.getContext('2d');
    const { width, height } = this.#size;
    if (context === null || width === 0) return;
    context.setTransform(devicePixelRatio, 0, 0, devicePixelRatio, 0, 0);
    context.clearRect(0, 0, width, height);
    this.#drawCurve(context);
    this.#drawOver();
  }

  #drawOver() {
    if (this.#frame !== undefined) cancelAnimationFrame(this.#frame);
    this.#frame = undefined;
    const context = this.#context;
    const { width, height } = this.#size;
    if (width === 0) return;
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, canvas.width, canvas.height);
    context.drawImage(this.#drawn, 0, 0);
    context.setTransform(devicePixelRatio, 0, 0, devicePixelRatio, 0, 0);
    if (this.#shown?.table.extent === undefined) return;
    const theme = readTheme();
    this.#drawRange(theme, width, height - 1);
    this.#drawWords(theme);
  }

  /** @param {CanvasRenderingContext2D} context */
  #drawCurve(context) {
    const { height } = this.#size;
    const extent = this.#shown?.table.extent;
    if (this.#shown === undefined || extent === undefined) return;
    const theme = readTheme();
    const [live, most, tail] = [this.#curve.live, Math.max(this.#curve.most, 1), this.#tail];
    const foot = height - 1;
    if (tail !== undefined) {
      const [from, to] = [this.#xOf(tail.from), this.#xOf(tail.to)];
      context.fillStyle = theme.warn;
      context.globalAlpha = 0.16;
      context.fillRect(from, 0, to - from, foot);
      context.globalAlpha = 1;
    }
    const [left, right] = [this.#xOf(extent.from), this.#xOf(extent.to)];
    context.beginPath();
    context.moveTo(left, foot);
    for (let bin = 0; bin < live.length; bin++) {
      const x = left + ((bin + 0.5) / live.length) * (right - left);
      context.lineTo(x, foot - (at(live, bin) / most) * (foot - TOP_PX));
    }
    context.lineTo(right, foot);
    context.fillStyle = theme.accent;
    context.globalAlpha = 0.28;
    context.fill();
    context.globalAlpha = 1;
    context.strokeStyle = theme.accent;
    context.lineWidth = 1;
    context.stroke();
  }

  /**
   * @param {import('#theme').Theme} theme
   * @param {number} width
   * @param {number} foot
   */
  #drawRange(theme, width, foot) {
    const context = this.#context;
    const [from, to] = [Math.max(this.#xOf(this.#range.from), GUTTER), Math.min(this.#xOf(this.#range.to), width)];
    context.fillStyle = theme.surface;
    context.globalAlpha = 0.62;
    context.fillRect(GUTTER, 0, from - GUTTER, foot);
    context.fillRect(to, 0, width - to, foot);
    context.globalAlpha = 1;
    context.strokeStyle = theme.muted;
    context.strokeRect(from + 0.5, 0.5, Math.max(to - from - 1, 1), foot - 0.5);
  }

  /** @param {import('#theme').Theme} theme */
  #drawWords(theme) {
    const [context, tail] = [this.#context, this.#tail];
    context.textBaseline = 'middle';
    context.font = `11px ${theme.font}`;
    context.fillStyle = theme.muted;
    context.fillText('live samples', 12, 12);
    context.fillStyle = theme.text;
    context.font = `600 12px ${theme.font}`;
    context.fillText(`${number(Math.round(Math.max(this.#curve.most, 1)))} at most`, 12, 28);
    if (tail === undefined) return;
    context.font = `11px ${theme.font}`;
    const text = `tail ${duration(tail.to - tail.from)} · ${percent(tail.share)}`;
    const length = widthOf(context, text);
    context.fillStyle = theme.text;
    context.fillText(text, Math.max(Math.min(this.#xOf(tail.from) + 6, this.#size.width - length - 6), GUTTER + 6), 11);
  }

  /** @param {number} time */
  #xOf(time) {
    const { from, to } = this.#whole;
    return GUTTER + ((time - from) / (to - from)) * (this.#size.width - GUTTER);
  }

  /** @param {PointerEvent} event */
  #drag(event) {
    const box = canvas.getBoundingClientRect();
    const whole = this.#whole;
    /** @param {PointerEvent} at */
    const timeOf = (at) => whole.from + ((at.clientX - box.left - GUTTER) / (box.width - GUTTER)) * (whole.to - whole.from);
    const [begin, range] = [timeOf(event), this.#range];
    const edge = (EDGE_PX / (box.width - GUTTER)) * (whole.to - whole.from);
    const isPart = range.to - range.from < (whole.to - whole.from) * 0.98;
    const [onFrom, onTo] = [Math.abs(begin - range.from) < edge, Math.abs(begin - range.to) < edge];
    const inside = isPart && begin > range.from && begin < range.to;
    /** @param {PointerEvent} at */
    const move = (at) => {
      const time = timeOf(at);
      const wanted =
        isPart && (onFrom || onTo)
          ? { from: onFrom ? time : range.from, to: onFrom ? range.to : time }
          : inside
            ? { from: range.from + time - begin, to: range.to + time - begin }
            : { from: Math.min(begin, time), to: Math.max(begin, time) };
      if (wanted.to - wanted.from > (whole.to - whole.from) * 1e-6) this.#chosen(wanted);
    };
    canvas.setPointerCapture(event.pointerId);
    canvas.addEventListener('pointermove', move);
    canvas.addEventListener('lostpointercapture', () => canvas.removeEventListener('pointermove', move), { once: true });
  }
}
