// Which rows there are, in which order, and where each stands from top to bottom. What stands where from left to right
// is the viewport's; so zooming and panning arrange nothing.
//
// A row is a sample, or a worker. In a sample's row, from the top: its requests, the legs of workers that do everything,
// the prefill legs, the decode legs, the user's own spans; each lane has one track more for each that overlaps.

import { at, lowest } from '#columns';

/**
 * @typedef {'samples' | 'workers' | 'both'} Arrangement
 * @typedef {'roomy' | 'compact' | 'overview'} Density  An overview has every row in sight, be it a part of a pixel.
 *
 * @typedef {Object} Order
 * @property {Arrangement} arrange
 * @property {string} sort      A field's name; empty is by group.
 * @property {boolean} falling
 * @property {Density} density
 *
 * @typedef {Object} Rows
 * @property {number} count
 * @property {Int32Array} index     Of the sample; −1 − the worker's number for a worker.
 * @property {Float64Array} top     One entry more than there are rows.
 * @property {Uint8Array} first     Whether it begins a group.
 * @property {Uint8Array} odd       Groups alternate.
 * @property {Density} density
 * @property {number} samples
 * @property {(worker: number) => number} strip  Height of a worker's forward passes, above its requests.
 */

/** Heights of the tracks of the lanes, free space, and the least height of a row. */
const HEIGHTS = /** @type {const} */ ({
  roomy: { lanes: [5, 15, 15, 15, 9], gap: 1, padding: 4, least: 34, worker: 11 },
  compact: { lanes: [2, 6, 6, 6, 4], gap: 0, padding: 1, least: 12, worker: 4 },
  overview: { lanes: [], gap: 0, padding: 0, least: 0, worker: 2 },
});
/** A row of an overview is no higher. */
const MOST_OVERVIEW = 24;
/** Beyond this a canvas is scrolled by more than browsers allow. */
const MOST_TRACKS = 4096;

/**
 * @param {import('#table').Table} table
 * @param {Order} order
 * @param {ArrayLike<number>} samples  Those that a filter has left, by row of the table.
 * @param {{ room?: number, strip?: (worker: number) => number }} [more]  Height that an overview fills, and of the strips of forward passes.
 * @returns {Rows}
 */
export function arrange(table, order, samples, { room = 0, strip = () => 0 } = {}) {
  const workers = order.arrange === 'samples' ? 0 : table.workers.length;
  const shown = order.arrange === 'workers' ? [] : sorted(table, order, samples);
  const count = workers + shown.length;
  const rows = {
    count,
    index: new Int32Array(count),
    top: new Float64Array(count + 1),
    first: new Uint8Array(count),
    odd: new Uint8Array(count),
    density: order.density,
    samples: shown.length,
    strip,
  };
  let odd = 0;
  for (let row = 0; row < count; row++) {
    const index = row < workers ? -1 - row : at(shown, row - workers);
    rows.index[row] = index;
    const group = index < 0 ? -1 : table.group(index);
    const before = at(rows.index, row - 1);
    // Sorted otherwise, groups are torn apart, and each row stands for itself.
    const isAlone = group < 0 || before < 0 || order.sort !== '';
    const first = row === 0 || row === workers || isAlone || group !== table.group(before);
    if (first) odd = 1 - odd;
    rows.first[row] = first ? 1 : 0;
    rows.odd[row] = odd;
    rows.top[row + 1] = at(rows.top, row) + heightOf(table, index, order.density) + (index < 0 ? strip(-1 - index) : 0);
  }
  if (order.density === 'overview') {
    const left = Math.max(room - at(rows.top, workers), 1) / Math.max(shown.length, 1);
    for (let row = workers; row < count; row++) rows.top[row + 1] = at(rows.top, row) + Math.min(left, MOST_OVERVIEW);
  }
  return rows;
}

/**
 * The rows that touch a stretch of height, from the first to before the last.
 * @param {Rows} rows
 * @param {number} from
 * @param {number} to
 * @returns {[number, number]}
 */
export function rowsWithin(rows, from, to) {
  const first = lowest(0, rows.count, (row) => at(rows.top, row + 1) > from);
  return [first, lowest(first, rows.count, (row) => at(rows.top, row) >= to)];
}

/**
 * Where a track of a lane stands in its row.
 * @param {import('#table').Table} table
 * @param {number} index  Of the row, as in `Rows.index`.
 * @param {Density} density
 * @param {number} lane
 * @param {number} track
 * @returns {{ top: number, height: number }}
 */
export function trackPlace(table, index, density, lane, track) {
  const { lanes, gap, padding, worker } = HEIGHTS[density];
  if (index < 0) return { top: padding + track * (worker + gap), height: worker };
  let top = padding;
  for (let above = 0; above < lane; above++) top += tracksOf(table, index, above) * ((lanes[above] ?? 0) + gap);
  const height = lanes[lane] ?? 0;
  return { top: top + track * (height + gap), height };
}

/**
 * @param {import('#table').Table} table
 * @param {number} index
 * @param {Density} density
 */
function heightOf(table, index, density) {
  const { lanes, gap, padding, least, worker } = HEIGHTS[density];
  if (index < 0) {
    const tracks = Math.min(table.workers[-1 - index]?.tracks ?? 0, MOST_TRACKS);
    return Math.max(2 * padding + tracks * (worker + gap), least);
  }
  let height = 2 * padding - gap;
  for (let lane = 0; lane < lanes.length; lane++) height += tracksOf(table, index, lane) * ((lanes[lane] ?? 0) + gap);
  return Math.max(height, least);
}

/**
 * @param {import('#table').Table} table
 * @param {number} index
 * @param {number} lane
 */
function tracksOf(table, index, lane) {
  return Math.min(at(table.tracks[lane] ?? [], index), MOST_TRACKS);
}

/**
 * @param {import('#table').Table} table
 * @param {Order} order
 * @param {ArrayLike<number>} samples
 */
function sorted(table, order, samples) {
  const list = Int32Array.from(samples);
  const field = table.fields.get(order.sort);
  if (field === undefined) return order.falling ? list.reverse() : list;
  const sign = order.falling ? -1 : 1;
  if (field.unit === 'text') {
    const texts = Array.from(list, field.text);
    const by = Array.from(list.keys()).sort((a, b) => sign * compareTexts(texts[a] ?? '', texts[b] ?? '') || a - b);
    return Int32Array.from(by, (place) => at(list, place));
  }
  const values = Float64Array.from(list, field.number);
  const by = Array.from(list.keys()).sort((a, b) => compareNumbers(at(values, a), at(values, b), sign) || a - b);
  return Int32Array.from(by, (place) => at(list, place));
}

/** @param {string} a @param {string} b */
function compareTexts(a, b) {
  return a < b ? -1 : a > b ? 1 : 0;
}

/**
 * What is missing comes last, whichever way.
 * @param {number} a
 * @param {number} b
 * @param {number} sign
 */
function compareNumbers(a, b, sign) {
  if (Number.isNaN(a) || Number.isNaN(b)) return Number(Number.isNaN(a)) - Number(Number.isNaN(b));
  return sign * (a - b);
}

/** @type {Rows} */
export const NO_ROWS = {
  count: 0,
  index: new Int32Array(),
  top: new Float64Array(1),
  first: new Uint8Array(),
  odd: new Uint8Array(),
  density: 'roomy',
  samples: 0,
  strip: () => 0,
};
