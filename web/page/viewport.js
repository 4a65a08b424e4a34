// The range of time that is shown, and what zooming and panning do to it. Times in nanoseconds from the origin.

/**
 * @typedef {{ from: number, to: number }} Range
 */

/** What is shown of a step in which nothing has happened. @type {Range} */
export const NOTHING = { from: 0, to: 1e9 };
/** No narrower than this: a microsecond over the whole width. */
const NARROWEST = 1000;
/** No wider than this many times what there is. */
const WIDEST = 4;
/** Share of the range that is left free at both ends of a fit. */
const MARGIN = 0.02;

/**
 * The range that shows everything.
 * @param {Range} extent
 * @returns {Range}
 */
export function fit(extent) {
  const length = Math.max(extent.to - extent.from, NARROWEST);
  return { from: extent.from - length * MARGIN, to: extent.from + length * (1 + MARGIN) };
}

/**
 * Zooms about a point that stays where it is.
 * @param {Range} range
 * @param {number} at
 * @param {number} factor  Above 1 shows more.
 * @param {Range} extent
 */
export function zoom(range, at, factor, extent) {
  const length = range.to - range.from;
  const widest = Math.max((extent.to - extent.from) * WIDEST, NARROWEST);
  const wanted = Math.min(Math.max(length * factor, NARROWEST), widest);
  const share = (at - range.from) / length;
  const from = at - share * wanted;
  return within({ from, to: from + wanted }, extent);
}

/**
 * @param {Range} range
 * @param {number} by
 * @param {Range} extent
 */
export function pan(range, by, extent) {
  return within({ from: range.from + by, to: range.to + by }, extent);
}

/**
 * Keeps a part of what there is in sight.
 * @param {Range} range
 * @param {Range} extent
 * @returns {Range}
 */
export function within(range, extent) {
  const length = range.to - range.from;
  const edge = Math.min(length, Math.max(extent.to - extent.from, NARROWEST)) * 0.1;
  const from = Math.min(Math.max(range.from, extent.from + edge - length), extent.to - edge);
  return { from, to: from + length };
}
