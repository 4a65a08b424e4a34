// The timeline: holds what is shown, listens to mouse and keys, and has it drawn.

import { byId } from '#dom';
import { draw } from '#draw';
import { layOut, rowsWithin } from '#layout';
import { AXIS, GUTTER, eachShape, shapeAt, timeAt } from '#scene';
import { onThemeChange, readTheme } from '#theme';
import { hideTooltip, showTooltip } from '#tooltip';
import { fit, pan, zoom } from '#viewport';

/** Zoom by one pixel of wheel: a notch of 100 pixels is a quarter. */
const ZOOM_PER_PX = 1.0025;
/** Pixels that a wheel of lines or pages moves. */
const WHEEL_PX = [1, 16, 400];
/** How long a sample that was asked for stays marked. */
const FOUND_MS = 2500;

const NOTHING = { from: 0, to: 1e9 };

export class Timeline {
  #scroller = byId('scroller', HTMLDivElement);
  #content = byId('content', HTMLDivElement);
  #canvas = byId('canvas', HTMLCanvasElement);
  #context;
  #theme = readTheme();
  /** @type {import('#model').StepModel | undefined} */
  #model;
  /** @type {import('#layout').Layout} */
  #layout = { rows: [], height: 0 };
  /** What the user chose to see; nothing while everything is shown. @type {import('#viewport').Range | undefined} */
  #chosen;
  /** @type {{ x: number, y: number } | undefined} */
  #mouse;
  /** @type {number | undefined} */
  #found;
  /** @type {number | undefined} */
  #frame;
  #size = { width: 0, height: 0 };
  #changed;

  /** @param {() => void} changed  Called when the user has moved the view. */
  constructor(changed) {
    const context = this.#canvas.getContext('2d', { alpha: false });
    if (context === null) throw new Error('this browser draws no canvas');
    this.#context = context;
    this.#changed = changed;
    this.#listen();
    onThemeChange(() => {
      this.#theme = readTheme();
      this.#redraw();
    });
    new ResizeObserver(() => this.#resize()).observe(this.#scroller);
    this.#resize();
  }

  /**
   * Shows a step. Of the step that is shown already, more of it: then the view stays where it is.
   * @param {import('#model').StepModel | undefined} model
   */
  show(model) {
    const top = this.#model?.step === model?.step ? this.#topSample() : undefined;
    this.#model = model;
    this.#layout = model === undefined ? { rows: [], height: 0 } : layOut(model);
    this.#content.style.height = `${this.#layout.height + AXIS}px`;
    this.#canvas.setAttribute('aria-label', `Timeline of ${model?.samples.count ?? 0} samples`);
    if (top !== undefined) this.#scrollToSample(top.label, top.below);
    this.#redraw();
  }

  /** What the user chose to see; nothing while everything is shown. */
  get chosen() {
    return this.#chosen;
  }

  /** First row in sight. */
  get row() {
    return rowsWithin(this.#layout, this.#scroller.scrollTop, this.#scroller.scrollTop + 1)[0];
  }

  /**
   * @param {import('#viewport').Range | undefined} range
   * @param {number} row
   */
  look(range, row) {
    this.#chosen = range;
    this.#scroller.scrollTop = this.#layout.rows[row]?.top ?? 0;
    this.#redraw();
  }

  /** Shows the whole step. */
  fit() {
    this.#chosen = undefined;
    this.#moved();
  }

  /**
   * Brings a sample into sight and marks it for a while.
   * @param {string} label
   */
  find(label) {
    const sample = this.#model?.samples.label.indexOf(label) ?? -1;
    const row = this.#layout.rows[sample];
    if (row === undefined) return;
    this.#scroller.scrollTop = row.top - (this.#size.height - AXIS - row.height) / 2;
    this.#found = sample;
    this.#redraw();
    setTimeout(() => {
      this.#found = undefined;
      this.#redraw();
    }, FOUND_MS);
  }

  /** What is in sight, for a test to read. */
  shapes() {
    const { model } = this.#scene();
    /** @type {{ sample: string, name: string, lane: string, kind: string, x: number, y: number, width: number, height: number }[]} */
    const found = [];
    eachShape(this.#scene(), ({ span, kind, rect, row }) => {
      const sample = model.samples.label[row.sample] ?? '';
      found.push({ sample, name: model.spans.name[span] ?? '', lane: model.spans.lane[span] ?? '', kind, ...rect });
    });
    return found;
  }

  /** The range of time that is shown. */
  get range() {
    return this.#chosen ?? fit(this.#model?.extent ?? NOTHING);
  }

  /** @returns {import('#scene').Scene} */
  #scene() {
    return {
      model: this.#model ?? EMPTY,
      layout: this.#layout,
      range: this.range,
      scroll: this.#scroller.scrollTop,
      ...this.#size,
    };
  }

  #listen() {
    const canvas = this.#canvas;
    this.#scroller.addEventListener('scroll', () => this.#moved());
    canvas.addEventListener('wheel', (event) => this.#wheel(event), { passive: false });
    canvas.addEventListener('dblclick', () => this.fit());
    canvas.addEventListener('pointerdown', (event) => this.#drag(event));
    canvas.addEventListener('pointermove', (event) => this.#point(event));
    canvas.addEventListener('pointerleave', () => this.#point(undefined));
  }

  /** @param {WheelEvent} event */
  #wheel(event) {
    const px = WHEEL_PX[event.deltaMode] ?? 1;
    const { x } = this.#within(event);
    // Over the labels, and with shift, the wheel scrolls; sideways it pans.
    if (x < GUTTER || event.shiftKey) return;
    event.preventDefault();
    const scene = this.#scene();
    const extent = scene.model.extent ?? NOTHING;
    const byTime = (event.deltaX * px * (scene.range.to - scene.range.from)) / (scene.width - GUTTER);
    const panned = event.deltaX === 0 ? scene.range : pan(scene.range, byTime, extent);
    const factor = ZOOM_PER_PX ** (event.deltaY * px);
    this.#chosen = event.deltaY === 0 ? panned : zoom(panned, timeAt(scene, x), factor, extent);
    this.#moved();
  }

  /** @param {PointerEvent} event */
  #drag(event) {
    if (event.button !== 0) return;
    const { scroll, range, width, model } = this.#scene();
    const [x, y] = [event.clientX, event.clientY];
    const perPixel = (range.to - range.from) / (width - GUTTER);
    /** @param {PointerEvent} at */
    const move = (at) => {
      if (at.clientX !== x) this.#chosen = pan(range, (x - at.clientX) * perPixel, model.extent ?? NOTHING);
      this.#scroller.scrollTop = scroll + y - at.clientY;
      this.#moved();
    };
    const stop = () => {
      this.#canvas.classList.remove('dragging');
      this.#canvas.removeEventListener('pointermove', move);
      this.#canvas.removeEventListener('lostpointercapture', stop);
    };
    this.#canvas.setPointerCapture(event.pointerId);
    this.#canvas.classList.add('dragging');
    this.#canvas.addEventListener('pointermove', move);
    this.#canvas.addEventListener('lostpointercapture', stop);
  }

  /** @param {PointerEvent | undefined} event */
  #point(event) {
    this.#mouse = event && this.#within(event);
    this.#redraw();
  }

  /** @param {MouseEvent} event */
  #within(event) {
    const box = this.#canvas.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  }

  /** The first sample in sight, and how far above the top it begins. */
  #topSample() {
    const row = this.#layout.rows[this.row];
    const label = row && this.#model?.samples.label[row.sample];
    return label === undefined ? undefined : { label, below: this.#scroller.scrollTop - (row?.top ?? 0) };
  }

  /**
   * @param {string} label
   * @param {number} below
   */
  #scrollToSample(label, below) {
    const row = this.#layout.rows[this.#model?.samples.label.indexOf(label) ?? -1];
    if (row !== undefined) this.#scroller.scrollTop = row.top + below;
  }

  #moved() {
    this.#redraw();
    this.#changed();
  }

  #resize() {
    const { clientWidth: width, clientHeight: height } = this.#scroller;
    const ratio = devicePixelRatio;
    this.#size = { width, height };
    this.#canvas.width = Math.round(width * ratio);
    this.#canvas.height = Math.round(height * ratio);
    this.#canvas.style.width = `${width}px`;
    this.#canvas.style.height = `${height}px`;
    // The size of a canvas clears it: draw before the browser shows it.
    this.#draw();
  }

  #redraw() {
    this.#frame ??= requestAnimationFrame(() => this.#draw());
  }

  #draw() {
    if (this.#frame !== undefined) cancelAnimationFrame(this.#frame);
    this.#frame = undefined;
    const scene = this.#scene();
    const hover = this.#mouse && shapeAt(scene, this.#mouse.x, this.#mouse.y);
    this.#context.setTransform(devicePixelRatio, 0, 0, devicePixelRatio, 0, 0);
    draw(this.#context, scene, this.#theme, { hover, cursor: this.#mouse?.x, found: this.#found });
    this.#canvas.dataset.rows = String(this.#layout.rows.length);
    if (hover === undefined || this.#mouse === undefined || this.#canvas.classList.contains('dragging')) {
      hideTooltip();
    } else {
      const box = this.#canvas.getBoundingClientRect();
      showTooltip(scene.model, hover, { x: box.left + this.#mouse.x, y: box.top + this.#mouse.y }, this.#theme.dark);
    }
  }
}

/** @type {import('#model').StepModel} */
const EMPTY = {
  step: 0,
  originUnixNs: 0n,
  extent: undefined,
  samples: { count: 0, label: [], group: [], evaluation: [], reward: [], tokens: [], firstSpan: new Int32Array(1) },
  spans: {
    count: 0,
    name: [],
    lane: [],
    parent: new Int32Array(),
    start: new Float64Array(),
    end: new Float64Array(),
    open: [],
    bound: new Float64Array(),
    outcome: new Map(),
  },
  attrs: () => [],
};
