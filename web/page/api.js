// What the server is asked.

import { readSamples } from '#model';

/**
 * @typedef {Object} RunAnswer
 * @property {string} name
 * @property {string} producer
 * @property {number} created_unix_s
 * @property {{ name: string, state: 'live' | 'ended' | 'interrupted' }[]} writers
 *
 * @typedef {Object} StepEntry
 * @property {number} step
 * @property {number} version      Grows with everything that is added to the step.
 * @property {string | null} closed  Why; nothing while it is open.
 * @property {number} requests
 * @property {number} samples
 * @property {number} user_spans
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
 * @property {PartRow[]} breakdown
 * @property {{ sample: string, duration_s: number, worker: string | null, breakdown: PartRow[] } | null} slowest
 */

/** @returns {Promise<RunAnswer>} */
export function getRun() {
  return get('api/run');
}

/** @returns {Promise<StepsAnswer>} */
export function getSteps() {
  return get('api/steps');
}

/** @param {number} step @returns {Promise<NumbersAnswer>} */
export function getNumbers(step) {
  return get(`api/steps/${step}`);
}

/** @param {number} step */
export async function getSamples(step) {
  return readSamples(await get(`api/steps/${step}/samples`));
}

/**
 * @template T
 * @param {string} path
 * @returns {Promise<T>}
 */
async function get(path) {
  let response;
  try {
    response = await fetch(path);
  } catch {
    throw new Error('The viewer’s server does not answer.');
  }
  const answer = await response.json();
  if (!response.ok) throw new Error(`The run cannot be read: ${answer.error ?? response.statusText}`);
  return answer;
}
