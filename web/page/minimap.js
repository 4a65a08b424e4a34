// The step from begin to end: how many samples were live, its tail shaded, and which part of it is in sight. Dragging on
// it chooses that part.

import { at } from '#columns';
import { liveSamples, tailOf } from '#curve';
import { byId } from '#dom';
import { duration, number, percent } from '#format';
import { GUTTER } from '#scene';
import { readTheme } from '#theme';
import { fit } from '#viewport';

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
  #chosen;

  /** @param {(range: import('#viewport').Range) => void} chosen */
  constructor(chosen) {
    const context = canvas.getContext('2d');
    if (context === null) throw new Error('this browser draws no canvas');
    this.#context = context;
    this.#chosen = chosen;
    canvas.addEventListener('pointerdown', (event) => this.#drag(event));
    new ResizeObserver(() => {
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
    this.draw();
  }

  /** All of the step, as the timeline fits it. */
  get #whole() {
    return fit(this.#shown?.table.extent ?? { from: 0, to: 1e9 });
  }

  #count() {
    const bins = Math.max(canvas.clientWidth - GUTTER, 0);
    if (this.#shown === undefined) return;
    const { table, rows } = this.#shown;
    this.#curve = liveSamples(table, Array.from(rows), bins);
    const tail = tailOf(table);
    const told = tail === undefined ? '' : `; tail ${percent(tail.share)}`;
    canvas.setAttribute('aria-label', `Live samples over time, at most ${number(Math.round(this.#curve.most))}${told}`);
  }

  draw() {
    const context = this.#context;
    const [width, height] = [canvas.clientWidth, canvas.clientHeight];
    canvas.width = Math.round(width * devicePixelRatio);
    canvas.height = Math.round(height * devicePixelRatio);
    context.setTransform(devicePixelRatio, 0, 0, devicePixelRatio, 0, 0);
    const extent = this.#shown?.table.extent;
    if (this.#shown === undefined || extent === undefined) return;
    const theme = readTheme();
    const [live, most] = [this.#curve.live, Math.max(this.#curve.most, 1)];
    const tail = tailOf(this.#shown.table);
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
    this.#drawRange(theme, width, foot);
    this.#drawWords(theme, most, tail);
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

  /**
   * @param {import('#theme').Theme} theme
   * @param {number} most
   * @param {ReturnType<typeof tailOf>} tail
   */
  #drawWords(theme, most, tail) {
    const context = this.#context;
    context.textBaseline = 'middle';
    context.font = `11px ${theme.font}`;
    context.fillStyle = theme.muted;
    context.fillText('live samples', 12, 12);
    context.fillStyle = theme.text;
    context.font = `600 12px ${theme.font}`;
    context.fillText(`${number(Math.round(most))} at most`, 12, 28);
    if (tail === undefined) return;
    context.font = `11px ${theme.font}`;
    const text = `tail ${duration(tail.to - tail.from)} · ${percent(tail.share)}`;
    const length = context.measureText(text).width;
    context.fillStyle = theme.text;
    context.fillText(text, Math.max(Math.min(this.#xOf(tail.from) + 6, canvas.clientWidth - length - 6), GUTTER + 6), 11);
  }

  /** @param {number} time */
  #xOf(time) {
    const { from, to } = this.#whole;
    return GUTTER + ((time - from) / (to - from)) * (canvas.clientWidth - GUTTER);
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
