// Spans of some rows in memory: the server's columns, run by run.

import { spanColor } from '#colors';
import { at, readColumns } from '#columns';

/**
 * @typedef {'sample' | 'request' | 'leg' | 'stage' | 'nested' | 'user'} Kind
 *
 * @typedef {{ kind: Kind, lane: number, track: number, first: number, last: number }} Run  Spans from `first` to before `last`: in order, and none overlaps another.
 *
 * @typedef {Object} Tile
 * @property {number} count
 * @property {number} leftOut  Spans that cannot be seen in the window that was asked for.
 * @property {Map<number, Run[]>} rows   The runs of each row, from back to front.
 * @property {ArrayLike<number>} start   Nanoseconds from the origin, as are all times.
 * @property {Float64Array} end          An open span ends with the step so far.
 * @property {ArrayLike<number>} bound   It may lie this much earlier or later.
 * @property {ArrayLike<number>} parent  Index, or −1.
 * @property {ArrayLike<number>} sample  Row of its sample in the table.
 * @property {ArrayLike<number>} part    Within its sample, from 1; 0 is the sample itself.
 * @property {ArrayLike<number>} span    Within its part.
 * @property {ArrayLike<number>} worker  Its number, or −1.
 * @property {ArrayLike<number>} attempt
 * @property {ArrayLike<number>} name    Index of its name.
 * @property {SpanName[]} names
 * @property {(span: number) => SpanName} nameOf
 * @property {(span: number) => boolean} isOpen
 * @property {(span: number) => boolean} isInstant  It took no time: something that happened.
 * @property {ArrayLike<number>} instants  All such spans, in order.
 * @property {(span: number) => boolean} isUnplain  It did not complete or has not ended, or a value of it cannot be true.
 * @property {ArrayLike<number>} unplain  All such spans, in order.
 * @property {(span: number) => boolean} isOdd      A value of it cannot be true.
 * @property {(span: number) => string | undefined} outcome  How it ended, unless it completed.
 * @property {(row: number) => [number, number][]} transfersOf  KV caches of a row: from which span to which.
 *
 * @typedef {{ lane: string, name: string, color: string }} SpanName
 */

/** @type {readonly Kind[]} */
const KINDS = ['sample', 'request', 'leg', 'stage', 'nested', 'user'];
const OUTCOMES = [undefined, 'truncated', 'failed', 'aborted'];
const [OPEN, ODD] = [1, 2];

/**
 * @param {ArrayBuffer} buffer
 * @param {number} last  Where open spans end.
 * @returns {Tile}
 */
export function readTile(buffer, last) {
  const { meta, column } = readColumns(buffer);
  /** @type {SpanName[]} */
  const names = meta.names.map(readName);
  const [start, ends, name, flags, outcome] = ['start_ns', 'end_ns', 'name', 'flags', 'outcome'].map(column);
  if (!start || !ends || !name || !flags || !outcome) throw new Error('the server’s answer is malformed: a tile');
  // Written in place: the buffer is this tile's own.
  const end = /** @type {Float64Array} */ (ends);
  /** @param {number} span */
  const isInstant = (span) => at(end, span) === at(start, span) && (at(flags, span) & OPEN) === 0;
  /** @param {number} span */
  const isUnplain = (span) => at(flags, span) !== 0 || at(outcome, span) !== 0;
  /** @type {[number[], number[]]} */
  const [instants, unplain] = [[], []];
  for (let span = 0; span < end.length; span++) {
    if (!(at(end, span) >= at(start, span))) end[span] = Math.max(last, at(start, span));
    if (isInstant(span)) instants.push(span);
    if (isUnplain(span)) unplain.push(span);
  }
  return {
    count: start.length,
    leftOut: meta.left_out ?? 0,
    rows: readRuns(column),
    start,
    end,
    bound: column('bound_ns'),
    parent: column('parent'),
    sample: column('sample'),
    part: column('part'),
    span: column('span'),
    worker: column('worker'),
    attempt: column('attempt'),
    name,
    names,
    nameOf: (span) => names[at(name, span)] ?? { lane: '', name: '', color: 'request' },
    isOpen: (span) => (at(flags, span) & OPEN) !== 0,
    isInstant,
    instants,
    isUnplain,
    unplain,
    isOdd: (span) => (at(flags, span) & ODD) !== 0,
    outcome: (span) => OUTCOMES[at(outcome, span)],
    transfersOf: transfersBy(column),
  };
}

/**
 * @param {(name: string) => ArrayLike<number>} column
 * @returns {Tile['transfersOf']}
 */
function transfersBy(column) {
  const [from, to, sample] = [column('transfer_from'), column('transfer_to'), column('sample')];
  /** @type {Map<number, [number, number][]>} */
  const byRow = new Map();
  for (let index = 0; index < from.length; index++) {
    const row = at(sample, at(from, index));
    const of = byRow.get(row) ?? [];
    byRow.set(row, of);
    of.push([at(from, index), at(to, index)]);
  }
  return (row) => byRow.get(row) ?? NONE;
}

/** @type {[number, number][]} */
const NONE = [];

/**
 * @param {(name: string) => ArrayLike<number>} column
 * @returns {Map<number, Run[]>}
 */
function readRuns(column) {
  const [row, kind, lane, track, first] = ['run_row', 'run_kind', 'run_lane', 'run_track', 'run_first'].map(column);
  /** @type {Map<number, Run[]>} */
  const rows = new Map();
  for (let run = 0; run < (row?.length ?? 0); run++) {
    const of = at(row ?? [], run);
    const runs = rows.get(of) ?? [];
    rows.set(of, runs);
    runs.push({
      kind: KINDS[at(kind ?? [], run)] ?? 'user',
      lane: at(lane ?? [], run),
      track: at(track ?? [], run),
      first: at(first ?? [], run),
      last: at(first ?? [], run + 1),
    });
  }
  return rows;
}

/** @param {string} laneAndName @returns {SpanName} */
function readName(laneAndName) {
  const slash = laneAndName.indexOf('/');
  const [lane, name] = [laneAndName.slice(0, slash), laneAndName.slice(slash + 1)];
  return { lane, name, color: spanColor(lane === 'regular' ? 'request' : lane, name) };
}
