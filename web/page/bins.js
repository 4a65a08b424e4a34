// Distributions: values in bins, the share below a value, round bounds.

import { at, lowest } from '#columns';
import { roundUp } from '#format';

/**
 * @typedef {Object} Bins
 * @property {number} from
 * @property {number} width   Of a bin.
 * @property {number[]} counts
 */

/**
 * Sorted, without those that are missing.
 * @param {ArrayLike<number>} rows
 * @param {(row: number) => number} number
 */
export function valuesOf(rows, number) {
  return Float64Array.from(rows, number).filter(Number.isFinite).sort();
}

/**
 * Bins with round bounds, about `about` of them, from the least to the most.
 * @param {Float64Array} sorted
 * @param {number} about
 * @param {{ from: number, to: number }} [over]  Instead of the values' own range.
 * @returns {Bins}
 */
export function binsOf(sorted, about, over = { from: at(sorted, 0), to: sorted.at(-1) ?? 0 }) {
  const length = over.to - over.from;
  const width = length > 0 ? roundUp(length / about) : 1;
  const from = Math.floor(over.from / width) * width;
  const count = Math.max(Math.floor((over.to - from) / width) + 1, 1);
  const counts = Array.from({ length: count }, () => 0);
  for (const value of sorted) {
    const bin = Math.min(Math.max(Math.floor((value - from) / width), 0), count - 1);
    counts[bin] = (counts[bin] ?? 0) + 1;
  }
  return { from, width, counts };
}

/**
 * The value below which a share of the values lies.
 * @param {Float64Array} sorted
 * @param {number} share  From 0 to 1.
 */
export function quantile(sorted, share) {
  const place = share * (sorted.length - 1);
  const low = Math.floor(place);
  return at(sorted, low) + (place - low) * (at(sorted, Math.min(low + 1, sorted.length - 1)) - at(sorted, low));
}

/**
 * The share of values that are at most this.
 * @param {Float64Array} sorted
 * @param {number} value
 */
export function shareUpTo(sorted, value) {
  return sorted.length === 0 ? 0 : lowest(0, sorted.length, (index) => at(sorted, index) > value) / sorted.length;
}
