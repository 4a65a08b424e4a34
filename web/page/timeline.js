// The timeline: holds what is shown and has it drawn.

import { getPasses, getTile } from '#api';
import { at } from '#columns';
import { byId } from '#dom';
import { draw } from '#draw';
import { listen } from '#gestures';
import { Layers } from '#layers';
import { drawMarks } from '#marks';
import { painter } from '#paint';
import { PassWindow } from '#passes';
import { NO_ROWS, arrange, rowsWithin } from '#rows';
import { AXIS, GUTTER, eachShape, shapeAt, timeAt, viewOf } from '#scene';
import { passAt } from '#strips';
import { NO_TABLE } from '#table';
import { onThemeChange, readTheme } from '#theme';
import { Tiles } from '#tiles';
import { hideTooltip, showPass, showSpan } from '#tooltip';
import { NOTHING, fit, pan, zoom } from '#viewport';

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
 * @property {() => void} passesCame  Other forward passes are shown.
 */

export class Timeline {
  #content = byId('content', HTMLDivElement);
  #layers;
  #theme = readTheme();
  #tiles;
  #passWindow;
  /** @type {import('#table').Table | undefined} */
  #table;
  /** Those that the rows have strips for. @type {import('#passes').Passes | undefined} */
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
  /** @type {import('#gestures').Point | undefined} */
  #mouse;
  /** @type {import('#draw').Marks} */
  #marks = { pinned: undefined, isFound: () => false };
  /** @type {Pick<import('#marks').Over, 'selected' | 'box'>} */
  #over = { selected: undefined, box: undefined };
  /** Counts the drawings, for who measures. */
  #drawings = 0;
  #told;

  /** @param {Told} told */
  constructor(told) {
    this.#told = told;
    const arrived = (/** @type {unknown} */ error) => {
      if (error !== undefined) told.failed(error);
      this.#layers.redraw();
    };
    this.#tiles = new Tiles(getTile, arrived);
    this.#passWindow = new PassWindow(getPasses, arrived);
    this.#layers = new Layers(
      (layers) => this.#draw(layers),
      // An overview fills the window.
      () => this.#rows.density === 'overview' && this.#arrange(),
      () => this.#moved(),
    );
    this.#listen();
    onThemeChange(() => {
      this.#theme = readTheme();
      this.#painter = undefined;
      this.#layers.redraw();
    });
  }

  #listen() {
    listen(this.#layers.canvas, {
      scene: () => this.#scene(),
      setRange: (range) => this.#setRange(range),
      setScroll: (scroll) => this.#layers.scrollTo(scroll),
      select: (range) => this.#told.selected(range),
      showBox: (box) => {
        this.#over.box = box;
        this.#layers.redraw(false);
      },
      zoomInto: (box) => this.#zoomInto(box),
      point: (point) => {
        this.#mouse = point;
        this.#layers.redraw(false);
      },
      click: (point) => this.#click(point),
      fit: () => this.fit(),
    });
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
    this.#layers.canvas.setAttribute('aria-label', `Timeline of ${samples.length} samples`);
    if (top !== undefined) this.#scrollTo(top.label, top.below);
    this.#layers.redraw();
  }

  #arrange() {
    const { order, samples } = this.#asked;
    this.#rows = this.#table === undefined ? NO_ROWS : arrange(this.#table, order, samples, { room: this.#layers.size.height - AXIS - 1, strip: (worker) => this.#stripOf(worker) });
    this.#content.style.height = `${Math.floor(at(this.#rows.top, this.#rows.count)) + AXIS}px`;
  }

  /** @param {number} worker */
  #stripOf(worker) {
    return this.#passes?.workers.has(worker) ? STRIP[this.#asked.order.density] : 0;
  }

  /**
   * Forward passes are asked for when rows of workers are in sight.
   * @param {number} heard  How many the server has of the step.
   */
  usePasses(heard) {
    if (this.#table !== undefined) this.#passWindow.use(this.#table.step, heard);
    if (this.#asked.order.arrange !== 'samples') this.#layers.redraw();
  }

  /** @param {import('#paint').ColorBy} color */
  colorBy(color) {
    this.#color = color;
    this.#painter = undefined;
    this.#layers.redraw();
  }

  /** @param {import('#draw').Marks} marks */
  mark(marks) {
    this.#marks = marks;
    this.#layers.redraw();
  }

  /** @param {import('#viewport').Range | undefined} selected */
  select(selected) {
    this.#over.selected = selected;
    this.#layers.redraw(false);
  }

  /** What the user chose to see; nothing while everything is shown. */
  get chosen() {
    return this.#chosen;
  }

  /** Label of the first sample in sight, unless it is the very first row. */
  get top() {
    return this.#layers.scroll < 1 ? '' : (this.#topSample()?.label ?? '');
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
    this.#layers.redraw();
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
    this.#layers.scrollTo(this.#layers.scroll + down * (this.#layers.size.height - AXIS) * KEY_PAN);
  }

  /**
   * Brings a sample into sight, with the time that it took unless that is in sight.
   * @param {number} sample  Row of the table.
   */
  reveal(sample) {
    const row = this.#rows.index.indexOf(sample);
    if (row < 0 || this.#table === undefined) return;
    const [top, foot] = [at(this.#rows.top, row), at(this.#rows.top, row + 1)];
    const { scroll } = this.#layers;
    const room = this.#layers.size.height - AXIS;
    if (top < scroll || foot > scroll + room) this.#layers.scrollTo(top - (room - (foot - top)) / 2);
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
    return this.#tiles.isWaiting || this.#passWindow.isWaiting;
  }

  get drawings() {
    return this.#drawings;
  }

  /** The forward passes that are here. */
  get passes() {
    return this.#passes;
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
      scroll: this.#layers.scroll,
      ...this.#layers.size,
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
    this.#layers.scrollTo(at(this.#rows.top, row));
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
    const { scroll } = this.#layers;
    const [row] = rowsWithin(this.#rows, scroll, scroll + 1);
    const index = row < this.#rows.count ? at(this.#rows.index, row) : -1;
    if (index < 0 || this.#table === undefined) return undefined;
    return { label: this.#table.label(index), below: scroll - at(this.#rows.top, row) };
  }

  /**
   * @param {string} label
   * @param {number} below
   */
  #scrollTo(label, below) {
    const row = label === '' ? 0 : this.#rows.index.indexOf(this.#table?.find(label) ?? -1);
    if (row >= 0) this.#layers.scrollTo(at(this.#rows.top, row) + below);
  }

  #moved() {
    this.#layers.redraw();
    this.#told.moved();
  }

  #paintedBy() {
    if (this.#table !== undefined) this.#painter ??= painter(this.#color, this.#table, this.#theme);
    return this.#painter;
  }

  /** @param {Parameters<ConstructorParameters<typeof Layers>[0]>[0]} layers */
  #draw({ context, pixels, over, isStale }) {
    const scene = this.#scene();
    if (isStale) this.#takePasses(scene);
    const painted = this.#paintedBy() ?? NO_PAINTER;
    if (isStale) {
      this.#tiles.beginDrawing();
      draw({ context, pixels, scene, theme: this.#theme, painter: painted, marks: this.#marks });
      this.#layers.canvas.dataset.rows = String(this.#rows.count);
      this.#drawings++;
    }
    const hover = this.#mouse && shapeAt(scene, this.#mouse.x, this.#mouse.y);
    drawMarks({ context: over, scene, theme: this.#theme, over: { ...this.#over, pinned: this.#marks.pinned, hover, cursor: this.#mouse?.x } });
    this.#tell(scene, hover, painted);
  }

  /** What the passes need of height, and what of them is here. @param {import('#scene').Scene} scene */
  #takePasses(scene) {
    const passes = this.#asked.order.arrange === 'samples' ? undefined : this.#passWindow.get(viewOf(scene));
    const before = this.#passes;
    this.#passes = passes;
    scene.passes = passes;
    if (passes !== before) this.#told.passesCame();
    const isHigher = (passes?.workers.size ?? 0) !== (before?.workers.size ?? 0);
    if (!isHigher) return;
    this.#arrange();
    scene.rows = this.#rows;
  }

  /**
   * What is under the mouse, in words.
   * @param {import('#scene').Scene} scene
   * @param {import('#scene').Shape | undefined} hover
   * @param {import('#paint').Painter} painted
   */
  #tell(scene, hover, painted) {
    const mouse = this.#mouse;
    const pass = mouse && passAt(scene, mouse.x, mouse.y);
    if (mouse === undefined || (hover === undefined && pass === undefined) || this.#layers.canvas.classList.contains('dragging')) {
      hideTooltip();
    } else if (hover !== undefined) {
      showSpan(scene.table, hover, mouse.inWindow, painted.of(hover.tile)(hover.span).fill);
    } else if (scene.passes !== undefined && pass !== undefined) {
      showPass(scene.passes, pass, mouse.inWindow);
    }
  }
}

/** @type {import('#paint').Paint} */
const GRAY = { fill: 'gray', ink: 'black', pixel: 0xff808080 };
/** @type {import('#paint').Painter} */
const NO_PAINTER = { of: () => () => GRAY, ofSample: () => GRAY, legend: undefined };
