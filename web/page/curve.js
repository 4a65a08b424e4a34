// How many samples were live at a time, and the tail: what is left of the step when nine of ten samples have ended.

import { at } from '#columns';

/** The tail begins when this share of the samples has ended. */
const DONE = 0.9;
/** Of fewer samples a tenth is none. */
const FEWEST = 10;

/**
 * @typedef {{ live: Float64Array, most: number }} Curve  The mean number of live samples in each bin.
 */

/**
 * @param {import('#table').Table} table
 * @param {ArrayLike<number>} rows
 * @param {number} bins
 * @returns {Curve}
 */
export function liveSamples(table, rows, bins) {
  const live = new Float64Array(bins);
  const { extent } = table;
  if (extent === undefined || bins === 0) return { live, most: 0 };
  const width = Math.max(extent.to - extent.from, 1) / bins;
  // Changes of the count per bin; a sample that begins or ends within a bin counts for its share of it.
  const change = new Float64Array(bins + 2);
  /** @param {number} time @param {number} by */
  const step = (time, by) => {
    const place = Math.min(Math.max((time - extent.from) / width, 0), bins);
    const bin = Math.floor(place);
    const share = place - bin;
    change[bin] = at(change, bin) + by * (1 - share);
    change[bin + 1] = at(change, bin + 1) + by * share;
  };
  for (let index = 0; index < rows.length; index++) {
    const row = at(rows, index);
    const [from, to] = [table.start[row] ?? NaN, table.end[row] ?? NaN];
    if (Number.isNaN(from) || Number.isNaN(to)) continue;
    step(from, 1);
    step(to, -1);
  }
  let [sum, most] = [0, 0];
  for (let bin = 0; bin < bins; bin++) {
    sum += at(change, bin);
    live[bin] = sum;
    most = Math.max(most, sum);
  }
  return { live, most };
}

/**
 * @param {import('#table').Table} table
 * @returns {{ from: number, to: number, share: number } | undefined}
 */
export function tailOf(table) {
  if (table.extent === undefined || table.count < FEWEST) return undefined;
  const ends = Float64Array.from(table.end).filter((end) => !Number.isNaN(end)).sort();
  const from = ends[Math.ceil(ends.length * DONE) - 1];
  const to = ends.at(-1);
  const { extent } = table;
  if (from === undefined || to === undefined || extent.to <= extent.from) return undefined;
  return { from, to, share: Math.max(to - from, 0) / (extent.to - extent.from) };
}
