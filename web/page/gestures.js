// What mouse and fingers on the timeline mean.
//
//   wheel                zoom about the mouse; over the labels, and with shift, scroll; sideways pan
//   drag                 move the view
//   shift and drag       measure and select a range of time
//   ctrl (or ⌘) and drag zoom into a box
//   click                pin what is under the mouse
//   double click         show all
//   two fingers          zoom and move

import { AXIS, GUTTER, timeAt } from '#scene';
import { NOTHING, pan, zoom } from '#viewport';

/** Zoom by one pixel of wheel: a notch of 100 pixels is a quarter. */
const ZOOM_PER_PX = 1.0025;
/** A trackpad's pinch comes as a wheel with ctrl held, in smaller steps. */
const PINCH_PER_PX = 1.01;
/** Pixels that a wheel of lines or pages moves. */
const WHEEL_PX = [1, 16, 400];
/** Less than this is a click. */
const STILL_PX = 4;

/**
 * @typedef {{ x: number, y: number, inWindow: { x: number, y: number } }} Point  On the canvas, and in the window.
 *
 * @typedef {Object} View  What is moved.
 * @property {() => import('#scene').Scene} scene
 * @property {(range: import('#viewport').Range) => void} setRange
 * @property {(scroll: number) => void} setScroll
 * @property {(range: import('#viewport').Range | undefined) => void} select
 * @property {(box: import('#scene').Rect | undefined) => void} showBox
 * @property {(box: import('#scene').Rect) => void} zoomInto
 * @property {(at: Point | undefined) => void} point
 * @property {(at: Point) => void} click
 * @property {() => void} fit
 */

/**
 * @param {HTMLCanvasElement} canvas
 * @param {View} view
 */
export function listen(canvas, view) {
  /** Fingers and buttons that are down. @type {Map<number, Point>} */
  const down = new Map();
  /** @type {((at: Point) => void) | undefined} */
  let drag;
  /** @type {(() => void) | undefined} */
  let drop;
  /** @type {Point | undefined} */
  let begun;

  /** @param {MouseEvent} event @returns {Point} */
  const within = (event) => {
    const box = canvas.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top, inWindow: { x: event.clientX, y: event.clientY } };
  };

  canvas.addEventListener('wheel', (event) => wheel(event, within(event), view), { passive: false });
  canvas.addEventListener('dblclick', () => view.fit());
  canvas.addEventListener('pointerdown', (event) => {
    if (event.button !== 0) return;
    const at = within(event);
    down.set(event.pointerId, at);
    canvas.setPointerCapture(event.pointerId);
    begun = down.size === 1 ? at : undefined;
    if (down.size === 2) drag = pinch(down, view);
    else if (event.shiftKey) drag = measure(at, view);
    else if (event.ctrlKey || event.metaKey) [drag, drop] = box(at, view);
    else drag = move(at, view);
  });
  canvas.addEventListener('pointermove', (event) => {
    const at = within(event);
    if (down.has(event.pointerId)) down.set(event.pointerId, at);
    const moved = begun === undefined || Math.hypot(at.x - begun.x, at.y - begun.y) >= STILL_PX;
    if (drag !== undefined && moved) {
      begun = undefined;
      canvas.classList.add('dragging');
      drag(at);
    }
    view.point(at);
  });
  canvas.addEventListener('pointerleave', () => {
    if (down.size === 0) view.point(undefined);
  });
  canvas.addEventListener('lostpointercapture', (event) => {
    down.delete(event.pointerId);
    if (begun !== undefined) view.click(begun);
    else drop?.();
    [drag, drop, begun] = [undefined, undefined, undefined];
    canvas.classList.remove('dragging');
  });
}

/**
 * @param {WheelEvent} event
 * @param {Point} at
 * @param {View} view
 */
function wheel(event, at, view) {
  const px = WHEEL_PX[event.deltaMode] ?? 1;
  if (!event.ctrlKey && at.x < GUTTER && !event.shiftKey) return;
  event.preventDefault();
  const scene = view.scene();
  if (event.shiftKey) {
    // Some browsers have turned the wheel already, others leave that to the page.
    view.setScroll(scene.scroll + (event.deltaY || event.deltaX) * px);
    return;
  }
  const extent = scene.table.extent ?? NOTHING;
  const byTime = (event.deltaX * px * (scene.range.to - scene.range.from)) / (scene.width - GUTTER);
  const panned = event.deltaX === 0 ? scene.range : pan(scene.range, byTime, extent);
  const factor = (event.ctrlKey ? PINCH_PER_PX : ZOOM_PER_PX) ** (event.deltaY * px);
  view.setRange(event.deltaY === 0 ? panned : zoom(panned, timeAt(scene, at.x), factor, extent));
}

/**
 * @param {Point} from
 * @param {View} view
 */
function move(from, view) {
  const { scroll, range, width, table } = view.scene();
  const perPixel = (range.to - range.from) / (width - GUTTER);
  return (/** @type {Point} */ at) => {
    if (at.x !== from.x) view.setRange(pan(range, (from.x - at.x) * perPixel, table.extent ?? NOTHING));
    view.setScroll(scroll + from.y - at.y);
  };
}

/**
 * @param {Point} from
 * @param {View} view
 */
function measure(from, view) {
  const begin = timeAt(view.scene(), Math.max(from.x, GUTTER));
  return (/** @type {Point} */ at) => {
    const end = timeAt(view.scene(), Math.max(at.x, GUTTER));
    if (begin !== end) view.select({ from: Math.min(begin, end), to: Math.max(begin, end) });
  };
}

/**
 * @param {Point} from
 * @param {View} view
 * @returns {[(at: Point) => void, () => void]}
 */
function box(from, view) {
  /** @type {import('#scene').Rect | undefined} */
  let rect;
  return [
    (at) => {
      const [x, y] = [Math.max(Math.min(from.x, at.x), GUTTER), Math.max(Math.min(from.y, at.y), AXIS)];
      rect = { x, y, width: Math.max(from.x, at.x) - x, height: Math.max(from.y, at.y) - y };
      view.showBox(rect);
    },
    () => {
      view.showBox(undefined);
      if (rect !== undefined && rect.width > STILL_PX) view.zoomInto(rect);
    },
  ];
}

/**
 * @param {Map<number, Point>} down
 * @param {View} view
 */
function pinch(down, view) {
  const { range, table } = view.scene();
  const spread = () => {
    const [a, b] = [...down.values()];
    if (a === undefined || b === undefined) return undefined;
    return { middle: (a.x + b.x) / 2, length: Math.max(Math.abs(a.x - b.x), 20) };
  };
  const first = spread();
  const fixed = first && timeAt(view.scene(), first.middle);
  return () => {
    const now = spread();
    if (first === undefined || now === undefined || fixed === undefined) return;
    const zoomed = zoom(range, fixed, first.length / now.length, table.extent ?? NOTHING);
    const perPixel = (zoomed.to - zoomed.from) / (view.scene().width - GUTTER);
    view.setRange(pan(zoomed, (first.middle - now.middle) * perPixel, table.extent ?? NOTHING));
  };
}
