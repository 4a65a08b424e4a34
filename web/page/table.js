// The samples of a step in memory: the server's columns, and every field by which they are told, sorted and filtered.

import { at, readColumns } from '#columns';

/**
 * @typedef {'s' | 'tokens' | 'count' | 'number' | 'text' | 'flag'} Unit
 *
 * @typedef {Object} Field
 * @property {string} name    As in filters.
 * @property {string} label   As people read it.
 * @property {Unit} unit
 * @property {(row: number) => number} number  NaN where it is missing, and of texts.
 * @property {(row: number) => string} text    Empty where it is missing.
 *
 * @typedef {Object} Worker
 * @property {string} url
 * @property {'regular' | 'prefill' | 'decode'} role
 * @property {number | null} rank
 * @property {number} legs
 * @property {number} tracks
 *
 * @typedef {Object} Table
 * @property {number} step
 * @property {bigint} originUnixNs
 * @property {import('#viewport').Range | undefined} extent  Nothing when nothing has happened.
 * @property {number} count
 * @property {number} tileRows
 * @property {Worker[]} workers
 * @property {{ name: string, first_ns: number }[]} versions
 * @property {ArrayLike<number>} start   Nanoseconds from the origin.
 * @property {ArrayLike<number>} end
 * @property {ArrayLike<number>} reward
 * @property {ArrayLike<number>} worker  Its number, or −1.
 * @property {ArrayLike<number>} version
 * @property {ArrayLike<number>} flags
 * @property {ArrayLike<number>[]} tracks  Of each lane of a row.
 * @property {(row: number) => string} label  `group/sample`, or the sample alone.
 * @property {(row: number) => number} group  The same for samples of one group; −1 for none.
 * @property {(label: string) => number} find  The row of a label, or −1.
 * @property {() => Int32Array} all  Every row.
 * @property {(field: string) => boolean} has     Whether any sample of the step has a field, whatever a filter leaves.
 * @property {Map<string, Field>} fields
 */

/** Bits of `flags`. */
export const FLAG = /** @type {const} */ ({ evaluation: 1, truncated: 2, failed: 4, open: 8, anomaly: 16 });

/** Sums of a sample's stages, in the order of time. */
export const STAGES = [
  'prefill_bootstrap_queue',
  'prefill_bootstrap',
  'prefill_alloc_wait',
  'prefill_forward',
  'prefill_transfer_queue',
  'decode_prealloc',
  'decode_bootstrap',
  'decode_alloc_wait',
  'decode_transfer',
  'decode_forward',
];
const LANES = ['tracks_request', 'tracks_regular', 'tracks_prefill', 'tracks_decode', 'tracks_user'];

/**
 * @param {ArrayBuffer} buffer
 * @returns {Table}
 */
export function readTable(buffer) {
  const { meta, column } = readColumns(buffer);
  /** @type {string[]} */
  const strings = meta.strings;
  const [name, group] = [column('name'), column('group')];
  const count = name.length;
  /** @param {number} row */
  const label = (row) => {
    const sample = strings[at(name, row)] ?? '';
    return at(group, row) < 0 ? sample : `${strings[at(group, row)]}/${sample}`;
  };
  /** @type {Map<string, number> | undefined} */
  let rows;
  /** @type {Map<string, boolean>} */
  const there = new Map();
  /** @type {Table} */
  const table = {
    step: meta.step,
    originUnixNs: BigInt(meta.origin_unix_ns),
    extent: meta.extent_ns === null ? undefined : { from: meta.extent_ns[0], to: meta.extent_ns[1] },
    count,
    tileRows: meta.tile_rows,
    workers: meta.workers,
    versions: meta.versions,
    start: column('start_ns'),
    end: column('end_ns'),
    reward: column('reward'),
    worker: column('worker'),
    version: column('version'),
    flags: column('flags'),
    tracks: LANES.map(column),
    label,
    group: (/** @type {number} */ row) => at(group, row),
    find: (/** @type {string} */ wanted) => {
      rows ??= new Map(Array.from({ length: count }, (_, row) => [label(row), row]));
      return rows.get(wanted) ?? -1;
    },
    all: () => Int32Array.from({ length: count }, (_, row) => row),
    has: (/** @type {string} */ name) => {
      const known = there.get(name) ?? isThere(table.fields.get(name), count);
      there.set(name, known);
      return known;
    },
    fields: new Map(),
  };
  for (const field of fields(table, column, strings)) table.fields.set(field.name, field);
  return table;
}

/**
 * @param {Field | undefined} field
 * @param {number} count
 */
function isThere(field, count) {
  for (let row = 0; field !== undefined && row < count; row++) {
    if (field.unit === 'text' ? field.text(row) !== '' : !Number.isNaN(field.number(row))) return true;
  }
  return false;
}

/**
 * A worker as it is named on the page: its URL without what all have, and its rank where it has one.
 * @param {Worker | undefined} worker
 */
export function workerName(worker) {
  if (worker === undefined) return '';
  const host = worker.url.replace(/^https?:\/\//, '').replace(/\/$/, '');
  return worker.rank === null ? host : `${host} rank ${worker.rank}`;
}

/**
 * @param {Table} table
 * @param {(name: string) => ArrayLike<number>} column
 * @param {string[]} strings
 * @returns {Field[]}
 */
function fields(table, column, strings) {
  const [name, group, prefillWorker] = [column('name'), column('group'), column('prefill_worker')];
  const s = /** @param {number} ns */ (ns) => ns / 1e9;
  /** @param {string} field @param {string} label @param {(row: number) => string} text @returns {Field} */
  const text = (field, label, text) => ({ name: field, label, unit: 'text', number: () => NaN, text });
  /** @param {string} field @param {Unit} unit @param {(row: number) => number} number @returns {Field} */
  const computed = (field, unit, number) => ({
    name: field,
    label: field.replaceAll('_', ' '),
    unit,
    number,
    text: (row) => (Number.isNaN(number(row)) ? '' : String(number(row))),
  });
  /** @param {string} field @param {Unit} unit */
  const plain = (field, unit) => {
    const values = column(field);
    return computed(field, unit, (row) => values[row] ?? NaN);
  };
  return [
    text('sample', 'sample', (row) => strings[at(name, row)] ?? ''),
    text('group', 'group', (row) => strings[at(group, row)] ?? ''),
    computed('start', 's', (row) => s(table.start[row] ?? NaN)),
    computed('duration', 's', (row) => s((table.end[row] ?? NaN) - (table.start[row] ?? NaN))),
    plain('reward', 'number'),
    plain('tokens', 'tokens'),
    plain('prompt_tokens', 'tokens'),
    plain('requests', 'count'),
    plain('attempts', 'count'),
    plain('e2e_latency', 's'),
    plain('queue_time', 's'),
    ...STAGES.map((stage) => plain(stage, 's')),
    plain('user_time', 's'),
    text('worker', 'worker', (row) => workerName(table.workers[at(table.worker, row)])),
    text('prefill_worker', 'prefill worker', (row) => workerName(table.workers[at(prefillWorker, row)])),
    text('weight_version', 'weight version', (row) => table.versions[at(table.version, row)]?.name ?? ''),
    ...Object.entries(FLAG).map(([flag, bit]) => computed(flag, 'flag', (row) => (at(table.flags, row) & bit ? 1 : 0))),
  ];
}

/** Where there is none yet. @type {Table} */
export const NO_TABLE = {
  step: -1,
  originUnixNs: 0n,
  extent: undefined,
  count: 0,
  tileRows: 1,
  workers: [],
  versions: [],
  start: [],
  end: [],
  reward: [],
  worker: [],
  version: [],
  flags: [],
  tracks: [],
  label: () => '',
  group: () => -1,
  find: () => -1,
  all: () => new Int32Array(),
  has: () => false,
  fields: new Map(),
};
