// Where the rows, tracks and spans of a step stand, top to bottom. What stands where from left to right is the
// viewport's; so zooming and panning lay out nothing.
//
// A row is a sample. In it, from the top: its requests as thin bars, the legs of workers that do everything, the
// prefill legs, the decode legs, the user's own spans. Each is a track of its own kind, and one more for each that
// overlaps: what ran at the same time never hides what it ran beside. Stages lie in their leg's track, nested stages
// in a strip along the foot of it.

/**
 * @typedef {'request' | 'leg' | 'user'} TrackKind
 *
 * @typedef {Object} Track
 * @property {TrackKind} kind
 * @property {string} lane
 * @property {number} top     From the top of its row.
 * @property {number} height
 * @property {number[]} spans   Requests, legs or the user's spans; like the next two in order of start, without overlap.
 * @property {number[]} stages  Stages of the legs.
 * @property {number[]} nested  Stages within stages.
 *
 * @typedef {{ track: Track, level: number }} Place  Of a span: its track, and how deep it lies in it.
 *
 * @typedef {Object} Row
 * @property {number} sample
 * @property {number} root      The span that covers the whole sample, or -1.
 * @property {number} top
 * @property {number} height
 * @property {boolean} first    Whether it begins a group.
 * @property {boolean} odd      Groups alternate.
 * @property {Track[]} tracks
 *
 * @typedef {Object} Layout
 * @property {Row[]} rows
 * @property {number} height
 */

/** @type {Record<TrackKind, number>} */
const HEIGHT = { request: 4, leg: 15, user: 8 };
const PADDING = 4;
const GAP = 1;
/** Two lines of text must fit beside a row. */
const LOWEST_ROW = 34;
/** Height of the strip of nested stages. */
export const NESTED = 5;

/** Order of tracks in a row, by kind and lane. */
const ORDER = ['request request', 'leg request', 'leg prefill', 'leg decode', 'user user'];

/**
 * @param {import('#model').StepModel} model
 * @returns {Layout}
 */
export function layOut(model) {
  /** @type {Row[]} */
  const rows = [];
  let top = 0;
  let odd = false;
  for (let sample = 0; sample < model.samples.count; sample++) {
    const group = model.samples.group[sample];
    const first = sample === 0 || group === undefined || group !== model.samples.group[sample - 1];
    if (first) odd = !odd;
    const row = layOutRow(model, sample, top, { first, odd });
    rows.push(row);
    top += row.height;
  }
  return { rows, height: top };
}

/**
 * The rows that touch a stretch of height, from the first to before the last.
 * @param {Layout} layout
 * @param {number} from
 * @param {number} to
 * @returns {[number, number]}
 */
export function rowsWithin(layout, from, to) {
  const first = lowest(layout.rows.length, (at) => bottom(layout.rows[at]) > from);
  const last = lowest(layout.rows.length, (at) => (layout.rows[at]?.top ?? 0) >= to);
  return [first, Math.max(first, last)];
}

/**
 * The first of `spans`, which are in order and do not overlap, that ends after `time`.
 * @param {Float64Array} ends
 * @param {number[]} spans
 * @param {number} time
 */
export function firstAfter(ends, spans, time) {
  return lowest(spans.length, (at) => (ends[spans[at] ?? 0] ?? 0) >= time);
}

/**
 * The smallest of 0 … count for which `holds`, which never turns false again.
 * @param {number} count
 * @param {(at: number) => boolean} holds
 */
function lowest(count, holds) {
  let low = 0;
  let high = count;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (holds(middle)) high = middle;
    else low = middle + 1;
  }
  return low;
}

/** @param {Row | undefined} row */
function bottom(row) {
  return row === undefined ? 0 : row.top + row.height;
}

/**
 * @param {import('#model').StepModel} model
 * @param {number} sample
 * @param {number} top
 * @param {{ first: boolean, odd: boolean }} group
 * @returns {Row}
 */
function layOutRow(model, sample, top, group) {
  const { spans, samples } = model;
  const from = samples.firstSpan[sample] ?? 0;
  const to = samples.firstSpan[sample + 1] ?? from;
  /** @type {Map<number, Place>} */
  const places = new Map();
  /** @type {Map<string, Track[]>} */
  const lanes = new Map(ORDER.map((key) => [key, []]));
  let root = -1;
  for (const span of inOrder(spans, from, to)) {
    const lane = spans.lane[span] ?? '';
    const parent = places.get(spans.parent[span] ?? -1);
    if (lane === 'sample') {
      root = span;
    } else if (lane === 'user') {
      place(spans, lanes, { kind: 'user', lane }, span);
    } else if (parent === undefined || parent.track.kind === 'request') {
      const kind = parent === undefined && lane === 'request' ? 'request' : 'leg';
      places.set(span, { track: place(spans, lanes, { kind, lane }, span), level: 0 });
    } else {
      const list = parent.level === 0 ? parent.track.stages : parent.track.nested;
      list.push(span);
      places.set(span, { track: parent.track, level: parent.level + 1 });
    }
  }
  const tracks = ORDER.flatMap((key) => lanes.get(key) ?? []);
  let height = PADDING;
  for (const track of tracks) {
    track.top = height;
    height += track.height + GAP;
  }
  return { sample, root, top, height: Math.max(height + PADDING - GAP, LOWEST_ROW), ...group, tracks };
}

/**
 * The spans of a sample in order of start, parents before their children.
 * @param {import('#model').Spans} spans
 * @param {number} from
 * @param {number} to
 */
function inOrder(spans, from, to) {
  const order = Array.from({ length: to - from }, (_, at) => from + at);
  return order.sort((a, b) => depth(spans, a) - depth(spans, b) || (spans.start[a] ?? 0) - (spans.start[b] ?? 0) || a - b);
}

/**
 * @param {import('#model').Spans} spans
 * @param {number} span
 */
function depth(spans, span) {
  let found = 0;
  for (let at = spans.parent[span] ?? -1; at >= 0; at = spans.parent[at] ?? -1) found++;
  return found;
}

/**
 * Puts a span into the first track of its kind and lane in which nothing overlaps it.
 * @param {import('#model').Spans} spans
 * @param {Map<string, Track[]>} lanes
 * @param {{ kind: TrackKind, lane: string }} of
 * @param {number} span
 */
function place(spans, lanes, of, span) {
  const tracks = lanes.get(`${of.kind} ${of.lane}`) ?? lanes.get('user user') ?? [];
  const start = spans.start[span] ?? 0;
  let track = tracks.find((other) => (spans.end[other.spans.at(-1) ?? span] ?? 0) <= start);
  if (track === undefined) {
    track = { ...of, top: 0, height: HEIGHT[of.kind], spans: [], stages: [], nested: [] };
    tracks.push(track);
  }
  track.spans.push(span);
  return track;
}
