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
 * @property {boolean} against    Whether there is another run to compare with.
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
 * @property {number} passes       Forward passes; they do not change the version.
 * @property {ListedMetrics | null} metrics
 *
 * @typedef {Object} StepsAnswer
 * @property {StepEntry[]} steps
 * @property {{ profiles: number, user_records: number }} dropped
 * @property {string[]} damage
 * @property {boolean} reading     Whether more is being read from a foreign file.
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
 * @typedef {Object} CallPasses  The forward passes that one call of a request sat in.
 * @property {number} part
 * @property {string} role
 * @property {string} worker
 * @property {boolean} is_exact  Else they are those that may have run meanwhile.
 * @property {number} count
 * @property {number} busy_s
 * @property {number} mean_batch
 * @property {number} slowest_s
 * @property {number} not_found
 * @property {number} lost  Of those, at least.
 * @property {number} shared_with
 *
 * @typedef {{ total: number, rows: number[], parts: number[], left_out: number }} Matches  `left_out` samples were not looked at.
 */

const source = openSource();

/** Whether asking again may give more. */
export const isFollowed = source.isLive;

/** @returns {Promise<RunAnswer>} */
export const getRun = () => source.json('api/run');

/** @typedef {'this' | 'other'} Which  The run that is shown, or the one that it is compared with. */

/** @param {Which} which */
const pathOf = (which) => (which === 'this' ? 'api/steps' : 'against/api/steps');

/** @param {Which} [which] @returns {Promise<StepsAnswer>} */
export const getSteps = (which = 'this') => source.json(pathOf(which));

/** @param {number} step @param {Which} [which] @returns {Promise<NumbersAnswer>} */
export const getNumbers = (step, which = 'this') => source.json(`${pathOf(which)}/${step}`);

/** @param {number} step @param {Which} [which] */
export const getTable = async (step, which = 'this') => readTable(await source.bytes(`${pathOf(which)}/${step}/table`));

/**
 * @param {import('#table').Table} table
 * @param {'tiles' | 'workers'} kind
 * @param {number} index
 * @param {import('#tiles').Window} [window]  What of a tile of many spans is wanted; else all.
 */
export const getTile = async (table, kind, index, window) => {
  return readTile(await source.bytes(`api/steps/${table.step}/${kind}/${index}${queryOf(window)}`), table.extent?.to ?? 0);
};

/** @param {import('#tiles').Window} [window] */
const queryOf = (window) => (window === undefined ? '' : `?${new URLSearchParams(Object.entries(window).map(([name, value]) => [name, String(value)]))}`);

/** @param {number} step @param {import('#tiles').Window} window  What is looked at. */
export const getPasses = async (step, window) => readPasses(await source.bytes(`api/steps/${step}/passes${queryOf(window)}`));

/** @param {number} step @param {number} row @returns {Promise<SampleAnswer>} */
export const getSample = (step, row) => source.json(`api/steps/${step}/samples/${row}`);

/** @param {number} step @param {number} row @returns {Promise<CallPasses[]>} */
export const getSamplePasses = (step, row) => source.json(`api/steps/${step}/samples/${row}/passes`);

/** @param {number} step @param {string} text @returns {Promise<Matches>} */
export const search = (step, text) => source.json(`api/steps/${step}/search?text=${encodeURIComponent(text)}`);
