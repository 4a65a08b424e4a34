// The canvases of the timeline: the spans, and over them what follows the mouse. Each is drawn at most once a frame, and
// only when it was changed.

import { byId } from '#dom';
import { Pixels } from '#pixels';

export class Layers {
  #canvas = byId('canvas', HTMLCanvasElement);
  #over = byId('marks', HTMLCanvasElement);
  #scroller = byId('scroller', HTMLDivElement);
  #pixels = new Pixels();
  #size = { width: 0, height: 0 };
  /** Read when it changes: to ask for it makes the browser lay out the page. */
  #scroll = 0;
  #isStale = true;
  /** @type {number | undefined} */
  #frame;
  #draw;
  #resized;

  /**
   * @param {(what: { context: CanvasRenderingContext2D, pixels: Pixels, over: CanvasRenderingContext2D, isStale: boolean }) => void} draw
   * @param {() => void} resized
   * @param {() => void} scrolled
   */
  constructor(draw, resized, scrolled) {
    const [context, over] = [this.#canvas.getContext('2d', { alpha: false }), this.#over.getContext('2d')];
    if (context === null || over === null) throw new Error('this browser draws no canvas');
    this.#draw = (/** @type {boolean} */ isStale) => draw({ context, pixels: this.#pixels, over, isStale });
    this.#resized = resized;
    this.#scroller.addEventListener('scroll', () => {
      this.#scroll = this.#scroller.scrollTop;
      scrolled();
    });
    new ResizeObserver(() => this.#resize()).observe(this.#scroller);
  }

  get canvas() {
    return this.#canvas;
  }

  get size() {
    return this.#size;
  }

  get scroll() {
    return this.#scroll;
  }

  /** @param {number} top */
  scrollTo(top) {
    this.#scroller.scrollTop = top;
    this.#scroll = this.#scroller.scrollTop;
  }

  /** Has everything drawn with the next frame, or what follows the mouse only. @param {boolean} [isStale] */
  redraw(isStale = true) {
    this.#isStale ||= isStale;
    this.#frame ??= requestAnimationFrame(() => this.#now());
  }

  #now() {
    if (this.#frame !== undefined) cancelAnimationFrame(this.#frame);
    this.#frame = undefined;
    // Not in sight yet, or not any more: drawn when it is.
    if (this.#size.width === 0 || this.#size.height === 0) return;
    const isStale = this.#isStale;
    this.#isStale = false;
    this.#draw(isStale);
  }

  #resize() {
    const { clientWidth: width, clientHeight: height } = this.#scroller;
    const ratio = devicePixelRatio;
    this.#size = { width, height };
    this.#pixels.resize(width, height, ratio);
    for (const canvas of [this.#canvas, this.#over]) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      canvas.style.width = `${width}px`;
      canvas.style.height = `${height}px`;
      canvas.getContext('2d')?.setTransform(ratio, 0, 0, ratio, 0, 0);
    }
    this.#over.style.marginTop = `${-height}px`;
    this.#resized();
    // The size of a canvas clears it: draw before the browser shows it.
    this.#isStale = true;
    this.#now();
  }
}
