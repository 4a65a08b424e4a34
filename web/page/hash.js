// The whole state of the page in the URL: `#step=3&from=0.25&to=1.5&sort=reward&filter=…`, times in seconds from the
// step's origin. What is as it is at first is not written.

/**
 * @typedef {'timeline' | 'samples' | 'charts' | 'compare'} Tab
 *
 * @typedef {Object} State
 * @property {number | undefined} step  The last one where nothing is said.
 * @property {Tab} tab
 * @property {import('#viewport').Range | undefined} range     Nanoseconds; absent while everything is shown.
 * @property {string} top                                      Label of the first sample in sight.
 * @property {import('#rows').Order} order
 * @property {import('#paint').ColorBy} color
 * @property {string} filter
 * @property {string} search
 * @property {{ sample: string, part: number, span: number } | undefined} pin
 * @property {import('#viewport').Range | undefined} selected  Nanoseconds.
 * @property {string} against                                 What is compared with: a step, or `other.` and a step of the other run.
 * @property {string} field                                    What is charted.
 * @property {string} other                                    What it is charted against.
 */

const S = 1e9;

/** @returns {State} */
export function initial() {
  return {
    step: undefined,
    tab: 'timeline',
    range: undefined,
    top: '',
    order: { arrange: 'samples', sort: '', falling: false, density: 'roomy' },
    color: 'stage',
    filter: '',
    search: '',
    pin: undefined,
    selected: undefined,
    against: '',
    field: 'duration',
    other: 'tokens',
  };
}

/**
 * Reads a hash; what makes no sense is as if it were not there.
 * @param {string} hash
 * @returns {State}
 */
export function parse(hash) {
  const values = new URLSearchParams(hash.replace(/^#/, ''));
  const first = initial();
  /** @param {string} name */
  const text = (name) => values.get(name) ?? '';
  return {
    step: whole(values.get('step')),
    tab: oneOf(text('tab'), ['timeline', 'samples', 'charts', 'compare']),
    range: rangeOf(values.get('from'), values.get('to')),
    top: text('top'),
    order: {
      arrange: oneOf(text('rows'), ['samples', 'workers', 'both']),
      sort: text('sort'),
      falling: values.get('falling') === '1',
      density: oneOf(text('density'), ['roomy', 'compact', 'overview']),
    },
    color: oneOf(text('color'), ['stage', 'worker', 'reward', 'version']),
    filter: text('filter'),
    search: text('search'),
    pin: pinOf(text('pin')),
    selected: rangeOf(values.get('a'), values.get('b')),
    against: /^(other\.)?\d{1,15}$/.exec(text('against'))?.[0] ?? '',
    field: text('field') || first.field,
    other: text('other') || first.other,
  };
}

/**
 * Writes what `parse` reads.
 * @param {State} state
 */
export function format(state) {
  const values = new URLSearchParams();
  const first = initial();
  /** @param {string} name @param {string | number | undefined} value @param {string | number} [usual] */
  const put = (name, value, usual = '') => {
    if (value !== undefined && value !== usual) values.set(name, String(value));
  };
  put('step', state.step);
  put('tab', state.tab, first.tab);
  put('from', seconds(state.range?.from));
  put('to', seconds(state.range?.to));
  put('top', state.top);
  put('rows', state.order.arrange, first.order.arrange);
  put('sort', state.order.sort);
  put('falling', state.order.falling ? 1 : '');
  put('density', state.order.density, first.order.density);
  put('color', state.color, first.color);
  put('filter', state.filter);
  put('search', state.search);
  if (state.pin !== undefined) put('pin', `${state.pin.part}.${state.pin.span}.${state.pin.sample}`);
  put('a', seconds(state.selected?.from));
  put('b', seconds(state.selected?.to));
  put('against', state.against);
  put('field', state.field, first.field);
  put('other', state.other, first.other);
  return `#${values}`;
}

/** @param {number | undefined} ns */
function seconds(ns) {
  return ns === undefined ? undefined : (ns / S).toFixed(9);
}

/** @param {string | null} from @param {string | null} to */
function rangeOf(from, to) {
  const [a, b] = [numberOf(from), numberOf(to)];
  return a !== undefined && b !== undefined && a < b ? { from: a * S, to: b * S } : undefined;
}

/** @param {string} text */
function pinOf(text) {
  const match = /^(\d{1,9})\.(\d{1,9})\.(.+)$/s.exec(text);
  return match === null ? undefined : { part: Number(match[1]), span: Number(match[2]), sample: match[3] ?? '' };
}

/**
 * @template {string} T
 * @param {string} text
 * @param {[T, ...T[]]} allowed  The first where the text is none of them.
 * @returns {T}
 */
function oneOf(text, allowed) {
  return allowed.find((one) => one === text) ?? allowed[0];
}

/** @param {string | null} text */
function whole(text) {
  const value = numberOf(text);
  return value !== undefined && Number.isInteger(value) && value >= 0 ? value : undefined;
}

/** @param {string | null} text */
function numberOf(text) {
  if (text === null || text.trim() === '') return undefined;
  const value = Number(text);
  return Number.isFinite(value) ? value : undefined;
}
