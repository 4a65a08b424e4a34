// The state of the page in the URL: `#step=3&from=0.25&to=1.5&row=12`, times in seconds from the step's origin.

/**
 * @typedef {Object} State
 * @property {number | undefined} step
 * @property {{ from: number, to: number } | undefined} range  Nanoseconds; absent while everything is shown.
 * @property {number} row  First row in sight.
 */

const S = 1e9;

/**
 * Reads a hash; what makes no sense is as if it were not there.
 * @param {string} hash
 * @returns {State}
 */
export function parse(hash) {
  const values = new URLSearchParams(hash.replace(/^#/, ''));
  const step = numberOf(values.get('step'));
  const from = numberOf(values.get('from'));
  const to = numberOf(values.get('to'));
  const row = numberOf(values.get('row'));
  return {
    step: step !== undefined && Number.isInteger(step) && step >= 0 ? step : undefined,
    range: from !== undefined && to !== undefined && from < to ? { from: from * S, to: to * S } : undefined,
    row: row !== undefined && Number.isInteger(row) && row > 0 ? row : 0,
  };
}

/**
 * Writes what `parse` reads.
 * @param {State} state
 */
export function format(state) {
  const values = new URLSearchParams();
  if (state.step !== undefined) values.set('step', String(state.step));
  if (state.range !== undefined) {
    values.set('from', (state.range.from / S).toFixed(9));
    values.set('to', (state.range.to / S).toFixed(9));
  }
  if (state.row > 0) values.set('row', String(state.row));
  return `#${values}`;
}

/** @param {string | null} text */
function numberOf(text) {
  if (text === null || text.trim() === '') return undefined;
  const value = Number(text);
  return Number.isFinite(value) ? value : undefined;
}
