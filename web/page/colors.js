// The one table of colours: what the canvas, the legend and the panels draw with.
//
// Work is cool, waiting is warm: blue and green compute, cyan moves the KV cache, everything from sand to purple is
// somebody waiting. Within a lane any two colours stay apart for people with protan, deutan and tritan vision, and
// nearly so across lanes; test/colors.test.js holds the distances.

/**
 * @typedef {'request' | 'prefill' | 'decode' | 'user'} Section
 *
 * @typedef {Object} Color
 * @property {string} id
 * @property {Section} section  Heading of the legend that it stands under.
 * @property {string} label
 * @property {string} light     On the light theme.
 * @property {string} dark      On the dark theme.
 */

/** @type {readonly Color[]} */
export const COLORS = [
  color('request', 'request', 'request', '#b4bac6', '#6f7785'),
  color('queue', 'request', 'queue', '#90511c', '#935e2f'),
  color('forward', 'request', 'forward', '#265e69', '#106f7f'),
  color('prefill/bootstrap_queue', 'prefill', 'bootstrap queue', '#d9c18d', '#f2c471'),
  color('prefill/bootstrap', 'prefill', 'bootstrap', '#967e0d', '#9b8419'),
  color('prefill/alloc_wait', 'prefill', 'alloc wait', '#eb9210', '#e69732'),
  color('prefill/forward', 'prefill', 'forward', '#3c69bb', '#6674d4'),
  color('prefill/transfer_queue', 'prefill', 'transfer queue', '#8bbfea', '#7ab9d5'),
  color('decode/prealloc', 'decode', 'prealloc', '#de95a5', '#e99eab'),
  color('decode/bootstrap', 'decode', 'bootstrap', '#852143', '#9b2f5e'),
  color('decode/alloc_wait', 'decode', 'alloc wait', '#b574b8', '#af78c0'),
  color('decode/transfer', 'decode', 'transfer', '#75dee7', '#87e2e8'),
  color('decode/forward', 'decode', 'forward', '#489a5d', '#52a667'),
  color('user', 'user', 'your code', '#9a82e4', '#9689f4'),
];

const BY_ID = new Map(COLORS.map((entry) => [entry.id, entry]));

/** Parts of a breakdown, by the name that the server gives them. @type {Record<string, string>} */
const PARTS = {
  gateway: 'request',
  'earlier tries': 'request',
  queue: 'queue',
  'prefill bootstrap queue': 'prefill/bootstrap_queue',
  'prefill queue': 'queue',
  'prefill forward': 'prefill/forward',
  'decode prealloc': 'decode/prealloc',
  'KV transfer': 'decode/transfer',
  'decode queue': 'queue',
  'decode forward': 'decode/forward',
  forward: 'forward',
  'user code': 'user',
};

/** A series' statistics stand beside the colour of its spans. @type {Record<string, string>} */
const SERIES = {
  'request/queue_time': 'queue',
  'prefill/queue_time': 'queue',
};

/**
 * The colour of a span. Each span has one; what the table does not know is the user's.
 * @param {string} lane
 * @param {string} name
 */
export function spanColor(lane, name) {
  if (lane === 'user') return 'user';
  if (name === 'queue') return 'queue';
  // A worker that does everything computes the prompt and generates in the colours of the two that share it.
  if (lane === 'request' && (name === 'prefill' || name === 'decode')) return `${name}/forward`;
  const id = lane === 'request' ? name : `${lane}/${name}`;
  return BY_ID.has(id) ? id : 'request';
}

/**
 * The colour of a part of a breakdown; nothing where no span is that part.
 * @param {string} part
 */
export function partColor(part) {
  return PARTS[part];
}

/**
 * The colour of a series' spans; nothing where no span shows it.
 * @param {string} name  e.g. `prefill/forward_duration`
 */
export function seriesColor(name) {
  const id = SERIES[name] ?? name.replace(/_duration$/, '');
  return BY_ID.has(id) ? id : undefined;
}

/**
 * @param {string} id
 * @param {boolean} dark
 */
export function colorValue(id, dark) {
  const entry = BY_ID.get(id) ?? COLORS[0];
  if (entry === undefined) return 'gray';
  return dark ? entry.dark : entry.light;
}

/**
 * @param {string} id
 * @param {Section} section
 * @param {string} label
 * @param {string} light
 * @param {string} dark
 * @returns {Color}
 */
function color(id, section, label, light, dark) {
  return { id, section, label, light, dark };
}
