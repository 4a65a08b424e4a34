// The timeline: holds what is shown and has it drawn.

import { getTile } from '#api';
import { at } from '#columns';
import { byId } from '#dom';
import { draw } from '#draw';
import { listen } from '#gestures';
import { painter } from '#paint';
import { arrange, rowsWithin } from '#rows';
import { AXIS, GUTTER, eachShape, shapeAt, timeAt } from '#scene';
import { onThemeChange, readTheme } from '#theme';
import { Tiles } from '#tiles';
import { hideTooltip, showTooltip } from '#tooltip';
import { fit, pan, zoom } from '#viewport';

const NOTHING = { from: 0, to: 1e9 };
/** Share of the view by which a key moves it, and by which one zooms. */
const KEY_PAN = 0.15;
const KEY_ZOOM = 1.4;
/** Height of a worker's forward passes. */
const STRIP = { roomy: 34, compact: 16, overview: 10 };

/**
 * @typedef {{ row: number, part: number, span: number }} Pin  A span by the row of its sample, its part of it, and its place there.
 *
 * @typedef {Object} Told
 * @property {() => void} moved       The view was moved by the user.
 * @property {(pin: Pin | undefined) => void} pinned
 * @property {(range: import('#viewport').Range | undefined) => void} selected
 * @property {(error: unknown) => void} failed
 */

export class Timeline {
  #scroller = byId('scroller', HTMLDivElement);
  #content = byId('content', HTMLDivElement);
  #canvas = byId('canvas', HTMLCanvasElement);
  #context;
  #theme = readTheme();
  #tiles;
  /** @type {import('#table').Table | undefined} */
  #table;
  /** @type {import('#passes').Passes | undefined} */
  #passes;
  /** @type {import('#rows').Rows} */
  #rows = NO_ROWS;
  /** What the rows were made from. @type {{ order: import('#rows').Order, samples: ArrayLike<number> }} */
  #asked = { order: { arrange: 'samples', sort: '', falling: false, density: 'roomy' }, samples: [] };
  /** What the user chose to see; nothing while everything is shown. @type {import('#viewport').Range | undefined} */
  #chosen;
  /** @type {import('#paint').ColorBy} */
  #color = 'stage';
  /** @type {import('#paint').Painter | undefined} */
  #painter;
  /** @type {{ x: number, y: number } | undefined} */
  #mouse;
  /** @type {import('#draw').Marks} */
  #marks = { hover: undefined, cursor: undefined, selected: undefined, box: undefined, pinned: undefined, isFound: () => false };
  /** @type {number | undefined} */
  #frame;
  #size = { width: 0, height: 0 };
  /** When the last drawing began and how long it took, for who measures. */
  #drawings = { count: 0, last_ms: 0 };
  #told;

  /** @param {Told} told */
  constructor(told) {
    const context = this.#canvas.getContext('2d', { alpha: false });
    if (context === null) throw new Error('this browser draws no canvas');
    this.#context = context;
    this.#told = told;
    this.#tiles = new Tiles(getTile, (error) => {
      if (error !== undefined) told.failed(error);
      this.#redraw();
    });
    listen(this.#canvas, {
      scene: () => this.#scene(),
      setRange: (range) => this.#setRange(range),
      setScroll: (scroll) => {
        this.#scroller.scrollTop = scroll;
      },
      select: (range) => told.selected(range),
      showBox: (box) => {
        this.#marks.box = box;
        this.#redraw();
      },
      zoomInto: (box) => this.#zoomInto(box),
      point: (point) => {
        this.#mouse = point;
        this.#redraw();
      },
      click: (point) => this.#click(point),
      fit: () => this.fit(),
    });
    this.#scroller.addEventListener('scroll', () => this.#moved());
    onThemeChange(() => {
      this.#theme = readTheme();
      this.#painter = undefined;
      this.#redraw();
    });
    new ResizeObserver(() => this.#resize()).observe(this.#scroller);
    this.#resize();
  }

  /**
   * Shows a step's rows. Of the step that is shown already the view stays where it is.
   * @param {import('#table').Table | undefined} table
   * @param {import('#rows').Order} order
   * @param {ArrayLike<number>} samples
   */
  show(table, order, samples) {
    const top = this.#table?.step === table?.step ? this.#topSample() : undefined;
    if (this.#table !== table) this.#tiles.use(table);
    if (this.#table?.step !== table?.step) this.#passes = undefined;
    this.#table = table;
    this.#painter = undefined;
    this.#asked = { order, samples };
    this.#arrange();
    this.#canvas.setAttribute('aria-label', `Timeline of ${samples.length} samples`);
    if (top !== undefined) this.#scrollTo(top.label, top.below);
    this.#redraw();
  }

  #arrange() {
    const { order, samples } = this.#asked;
    this.#rows = this.#table === undefined ? NO_ROWS : arrange(this.#table, order, samples, { room: this.#size.height - AXIS - 1, strip: (worker) => this.#stripOf(worker) });
    this.#content.style.height = `${Math.floor(at(this.#rows.top, this.#rows.count)) + AXIS}px`;
  }

  /** @param {number} worker */
  #stripOf(worker) {
    return this.#passes?.workers.has(worker) ? STRIP[this.#asked.order.density] : 0;
  }

  /** @param {import('#passes').Passes | undefined} passes  Of the step that is shown. */
  showPasses(passes) {
    this.#passes = passes;
    this.#arrange();
    this.#redraw();
  }

  /** @param {import('#paint').ColorBy} color */
  colorBy(color) {
    this.#color = color;
    this.#painter = undefined;
    this.#redraw();
  }

  /** @param {Partial<import('#draw').Marks>} marks */
  mark(marks) {
    Object.assign(this.#marks, marks);
    this.#redraw();
  }

  /** What the user chose to see; nothing while everything is shown. */
  get chosen() {
    return this.#chosen;
  }

  /** Label of the first sample in sight, unless it is the very first row. */
  get top() {
    return this.#scroller.scrollTop < 1 ? '' : (this.#topSample()?.label ?? '');
  }

  /** What the colours stand for, unless for stages. */
  get legend() {
    return this.#paintedBy()?.legend;
  }

  get rows() {
    return this.#rows;
  }

  /**
   * @param {import('#viewport').Range | undefined} range
   * @param {string} [top]  Label of a sample.
   */
  look(range, top) {
    this.#chosen = range;
    if (top !== undefined) this.#scrollTo(top, 0);
    this.#redraw();
  }

  /** Shows the whole step. */
  fit() {
    this.#chosen = undefined;
    this.#moved();
  }

  /**
   * @param {number} right  Shares of the view.
   * @param {number} closer  Steps of zoom.
   */
  step(right, closer) {
    const { range, table } = this.#scene();
    const extent = table.extent ?? NOTHING;
    const length = range.to - range.from;
    const about = this.#mouse === undefined || this.#mouse.x < GUTTER ? range.from + length / 2 : timeAt(this.#scene(), this.#mouse.x);
    this.#setRange(closer === 0 ? pan(range, right * KEY_PAN * length, extent) : zoom(range, about, KEY_ZOOM ** -closer, extent));
  }

  /** @param {number} down  Shares of the window. */
  scroll(down) {
    this.#scroller.scrollTop += down * (this.#size.height - AXIS) * KEY_PAN;
  }

  /**
   * Brings a sample into sight, with the time that it took unless that is in sight.
   * @param {number} sample  Row of the table.
   */
  reveal(sample) {
    const row = this.#rows.index.indexOf(sample);
    if (row < 0 || this.#table === undefined) return;
    const [top, foot] = [at(this.#rows.top, row), at(this.#rows.top, row + 1)];
    const { scrollTop } = this.#scroller;
    const room = this.#size.height - AXIS;
    if (top < scrollTop || foot > scrollTop + room) this.#scroller.scrollTop = top - (room - (foot - top)) / 2;
    const [from, to] = [at(this.#table.start, sample), at(this.#table.end, sample)];
    const { range } = this;
    if (to < range.from || from > range.to) {
      const middle = (from + to - range.from - range.to) / 2;
      this.#chosen = pan(range, middle, this.#table.extent ?? NOTHING);
    }
    this.#moved();
  }

  /** What is in sight, for a test to read. */
  shapes() {
    const scene = this.#scene();
    /** @type {{ sample: string, name: string, lane: string, kind: string, row: number, x: number, y: number, width: number, height: number }[]} */
    const found = [];
    eachShape(scene, ({ tile, span, kind, rect, row }) => {
      const { lane, name } = tile.nameOf(span);
      found.push({ sample: scene.table.label(at(tile.sample, span)), name, lane, kind, row, ...rect });
    });
    return found;
  }

  /** Whether spans in sight have not come yet. */
  get isWaiting() {
    this.shapes();
    return this.#tiles.isWaiting;
  }

  get drawings() {
    return { ...this.#drawings };
  }

  /** The range of time that is shown. */
  get range() {
    return this.#chosen ?? fit(this.#table?.extent ?? NOTHING);
  }

  /** @returns {import('#scene').Scene} */
  #scene() {
    return {
      table: this.#table ?? NO_TABLE,
      rows: this.#rows,
      tiles: this.#tiles,
      passes: this.#passes,
      range: this.range,
      scroll: this.#scroller.scrollTop,
      ...this.#size,
    };
  }

  /** @param {import('#viewport').Range} range */
  #setRange(range) {
    this.#chosen = range;
    this.#moved();
  }

  /** @param {import('#scene').Rect} box */
  #zoomInto(box) {
    const scene = this.#scene();
    const [from, to] = [timeAt(scene, box.x), timeAt(scene, box.x + box.width)];
    const [row] = rowsWithin(this.#rows, scene.scroll + box.y - AXIS, scene.scroll + box.y - AXIS + 1);
    this.#scroller.scrollTop = at(this.#rows.top, row);
    this.#setRange(zoom({ from, to }, (from + to) / 2, 1, scene.table.extent ?? NOTHING));
  }

  /** @param {{ x: number, y: number }} point */
  #click(point) {
    const scene = this.#scene();
    const shape = shapeAt(scene, point.x, point.y);
    if (shape !== undefined) {
      const { tile, span } = shape;
      this.#told.pinned({ row: at(tile.sample, span), part: at(tile.part, span), span: at(tile.span, span) });
      return;
    }
    const [row] = rowsWithin(this.#rows, scene.scroll + point.y - AXIS, scene.scroll + point.y - AXIS + 1);
    const index = row < this.#rows.count ? at(this.#rows.index, row) : -1;
    if (point.x < GUTTER && point.y > AXIS && index >= 0) this.#told.pinned({ row: index, part: 0, span: 0 });
    else {
      this.#told.pinned(undefined);
      this.#told.selected(undefined);
    }
  }

  /** The first sample in sight, and how far above the top it begins. */
  #topSample() {
    const { scrollTop } = this.#scroller;
    const [row] = rowsWithin(this.#rows, scrollTop, scrollTop + 1);
    const index = row < this.#rows.count ? at(this.#rows.index, row) : -1;
    if (index < 0 || this.#table === undefined) return undefined;
    return { label: this.#table.label(index), below: scrollTop - at(this.#rows.top, row) };
  }

  /**
   * @param {string} label
   * @param {number} below
   */
  #scrollTo(label, below) {
    const row = label === '' ? 0 : this.#rows.index.indexOf(this.#table?.find(label) ?? -1);
    if (row >= 0) this.#scroller.scrollTop = at(this.#rows.top, row) + below;
  }

  #moved() {
    this.#redraw();
    this.#told.moved();
  }

  #resize() {
    const { clientWidth: width, clientHeight: height } = this.#scroller;
    const ratio = devicePixelRatio;
    this.#size = { width, height };
    this.#canvas.width = Math.round(width * ratio);
    this.#canvas.height = Math.round(height * ratio);
    this.#canvas.style.width = `${width}px`;
    this.#canvas.style.height = `${height}px`;
    // An overview fills the window.
    if (this.#rows.density === 'overview') this.#arrange();
    // The size of a canvas clears it: draw before the browser shows it.
    this.#draw();
  }

  #redraw() {
    this.#frame ??= requestAnimationFrame(() => this.#draw());
  }

  #paintedBy() {
    if (this.#table !== undefined) this.#painter ??= painter(this.#color, this.#table, this.#theme);
    return this.#painter;
  }

  #draw() {
    if (this.#frame !== undefined) cancelAnimationFrame(this.#frame);
    this.#frame = undefined;
    const began = performance.now();
    const scene = this.#scene();
    const painted = this.#paintedBy() ?? NO_PAINTER;
    const hover = this.#mouse && shapeAt(scene, this.#mouse.x, this.#mouse.y);
    this.#context.setTransform(devicePixelRatio, 0, 0, devicePixelRatio, 0, 0);
    const marks = { ...this.#marks, hover, cursor: this.#mouse?.x };
    draw({ context: this.#context, scene, theme: this.#theme, painter: painted, marks });
    this.#canvas.dataset.rows = String(this.#rows.count);
    if (hover === undefined || this.#mouse === undefined || this.#canvas.classList.contains('dragging')) {
      hideTooltip();
    } else {
      const box = this.#canvas.getBoundingClientRect();
      showTooltip(scene.table, hover, { x: box.left + this.#mouse.x, y: box.top + this.#mouse.y }, painted.of(hover.tile, hover.span).fill);
    }
    this.#drawings.count++;
    this.#drawings.last_ms = performance.now() - began;
  }
}

/** @type {import('#paint').Painter} */
const NO_PAINTER = { of: () => ({ fill: 'gray', ink: 'black' }), ofSample: () => 'gray', legend: undefined };

/** @type {import('#rows').Rows} */
const NO_ROWS = {
  count: 0,
  index: new Int32Array(),
  top: new Float64Array(1),
  first: new Uint8Array(),
  odd: new Uint8Array(),
  density: 'roomy',
  samples: 0,
  strip: () => 0,
};

/** @type {import('#table').Table} */
const NO_TABLE = {
  step: -1,
  originUnixNs: 0n,
  extent: undefined,
  count: 0,
  tileRows: 1,
  workers: [],
  versions: [],
  start: [],
  end: [],
  reward: [],
  worker: [],
  version: [],
  flags: [],
  tracks: [],
  label: () => '',
  group: () => -1,
  find: () => -1,
  fields: new Map(),
};
