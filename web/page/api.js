// What is asked of the source, with the types of the answers.

import { readPasses } from '#passes';
import { openSource } from '#source';
import { readTable } from '#table';
import { readTile } from '#tile';

/**
 * @typedef {Object} RunAnswer
 * @property {string} name
 * @property {string} producer
 * @property {number} created_unix_s
 * @property {{ name: string, state: 'live' | 'ended' | 'interrupted' }[]} writers
 *
 * @typedef {{ rollout_time_s: number | null, tokens_per_s: number | null, reward: number | null, e2e_latency_p99_s: number | null }} ListedMetrics
 *
 * @typedef {Object} StepEntry
 * @property {number} step
 * @property {number} version      Grows with everything that is added to the step.
 * @property {string | null} closed  Why; nothing while it is open.
 * @property {number} requests
 * @property {number} samples
 * @property {number} user_spans
 * @property {ListedMetrics | null} metrics
 *
 * @typedef {Object} StepsAnswer
 * @property {StepEntry[]} steps
 * @property {{ profiles: number, user_records: number }} dropped
 * @property {string[]} damage
 *
 * @typedef {{ part: string, time_s: number, share: number }} PartRow
 *
 * @typedef {Object} SeriesRow
 * @property {string} name
 * @property {string} unit
 * @property {number} count
 * @property {number} mean
 * @property {number} median
 * @property {number} p90
 * @property {number} p99
 * @property {number} max
 *
 * @typedef {Object} NumbersAnswer
 * @property {number} step
 * @property {string | null} closed
 * @property {Record<string, number>} metrics
 * @property {SeriesRow[]} series
 * @property {string} sentence
 * @property {{ check: string, explain: string }[]} findings
 * @property {PartRow[]} breakdown
 * @property {{ sample: string, duration_s: number, worker: string | null, breakdown: PartRow[] } | null} slowest
 *
 * @typedef {string | number | boolean | null} AttrValue
 * @typedef {{ name: string, lane: string, attrs: [string, AttrValue][] }} SpanDetails
 *
 * @typedef {Object} SampleAnswer
 * @property {string | null} group
 * @property {string} sample
 * @property {[string, AttrValue][]} mark     What the user's code said of it.
 * @property {SpanDetails[][]} parts  The requests, then the user's spans.
 * @property {number} left_out
 *
 * @typedef {{ total: number, rows: number[], parts: number[] }} Matches
 */

const source = openSource();

/** Whether asking again may give more. */
export const isFollowed = source.isLive;

/** @returns {Promise<RunAnswer>} */
export const getRun = () => source.json('api/run');

/** @returns {Promise<StepsAnswer>} */
export const getSteps = () => source.json('api/steps');

/** @param {number} step @returns {Promise<NumbersAnswer>} */
export const getNumbers = (step) => source.json(`api/steps/${step}`);

/** @param {number} step */
export const getTable = async (step) => readTable(await source.bytes(`api/steps/${step}/table`));

/**
 * @param {import('#table').Table} table
 * @param {'tiles' | 'workers'} kind
 * @param {number} index
 * @param {import('#tiles').Window} [window]  What of a tile of many spans is wanted; else all.
 */
export const getTile = async (table, kind, index, window) => {
  const query = window === undefined ? '' : `?${new URLSearchParams(Object.entries(window).map(([name, value]) => [name, String(value)]))}`;
  return readTile(await source.bytes(`api/steps/${table.step}/${kind}/${index}${query}`), table.extent?.to ?? 0);
};

/** @param {number} step */
export const getPasses = async (step) => readPasses(await source.bytes(`api/steps/${step}/passes`));

/** @param {number} step @param {number} row @returns {Promise<SampleAnswer>} */
export const getSample = (step, row) => source.json(`api/steps/${step}/samples/${row}`);

/** @param {number} step @param {string} text @returns {Promise<Matches>} */
export const search = (step, text) => source.json(`api/steps/${step}/search?text=${encodeURIComponent(text)}`);
