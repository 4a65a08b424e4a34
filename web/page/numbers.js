// The numbers of a step: a table for each side, and the slowest sample taken apart.

import { colorValue, partColor, seriesColor } from '#colors';
import { button, byId, element, headCell, swatch } from '#dom';
import { duration, inUnit, number, percent } from '#format';

const section = byId('numbers', HTMLElement);

const COLUMNS = /** @type {const} */ (['count', 'mean', 'median', 'p90', 'p99', 'max']);
/** Tables, and which stand under each other. */
const TABLES = [
  [
    { prefix: 'request/', title: 'Request' },
    { prefix: 'decode/', title: 'Decode' },
  ],
  [{ prefix: 'prefill/', title: 'Prefill' }],
];
/** Parts of the slowest sample below this share are not worth a line. */
const LEAST_SHARE = 0.01;
/** Series that are a part of the one above them. */
const NESTED = new Set([
  'prefill/bootstrap_duration',
  'prefill/alloc_wait_duration',
  'prefill/transfer_queue_duration',
  'decode/bootstrap_duration',
  'decode/alloc_wait_duration',
]);

/**
 * @param {import('#api').NumbersAnswer | undefined} answer
 * @param {boolean} dark
 * @param {(sample: string) => void} find
 */
export function showNumbers(answer, dark, find) {
  if (answer === undefined) {
    section.replaceChildren();
    return;
  }
  const columns = TABLES.flatMap((sides) => {
    const tables = sides.flatMap(({ prefix, title }) => {
      const rows = answer.series.filter(({ name }) => name.startsWith(prefix));
      return rows.length === 0 ? [] : [table(title, prefix, rows, dark)];
    });
    return tables.length === 0 ? [] : [element('div', '', ...tables)];
  });
  section.replaceChildren(...columns, ...(answer.slowest === null ? [] : [slowest(answer.slowest, dark, find)]));
}

/**
 * @param {string} title
 * @param {string} prefix
 * @param {import('#api').SeriesRow[]} rows
 * @param {boolean} dark
 */
function table(title, prefix, rows, dark) {
  const head = element('tr', '', headCell(title), ...COLUMNS.map((name) => headCell(name)));
  const body = rows.map((row) => {
    const id = seriesColor(row.name);
    const label = row.name.slice(prefix.length).replace(/_duration$/, '').replace(/_(gb_s|mb)$/, '').replaceAll('_', ' ');
    const unit = row.unit === 's' || row.unit === '' ? '' : element('small', '', ` ${row.unit}`);
    const mark = id === undefined ? element('i', 'swatch none') : swatch(colorValue(id, dark));
    const name = element('th', NESTED.has(row.name) ? 'nested' : '', mark, label, unit);
    name.scope = 'row';
    name.title = `perf/${row.name}`;
    const values = COLUMNS.map((column) => (column === 'count' ? number(row.count) : inUnit(row[column], row.unit)));
    return element('tr', '', name, ...values.map((value) => element('td', '', value)));
  });
  return element('table', '', element('thead', '', head), element('tbody', '', ...body));
}

/**
 * @param {NonNullable<import('#api').NumbersAnswer['slowest']>} sample
 * @param {boolean} dark
 * @param {(sample: string) => void} find
 */
function slowest(sample, dark, find) {
  const show = button(sample.sample, () => find(sample.sample), { title: 'Show it in the timeline', className: 'link' });
  const rows = sample.breakdown.filter(({ share }) => share >= LEAST_SHARE).map(({ part, time_s, share }) => {
    const id = partColor(part);
    const mark = id === undefined ? element('i', 'swatch none') : swatch(colorValue(id, dark));
    const name = element('th', '', mark, part);
    name.scope = 'row';
    return element('tr', '', name, element('td', '', duration(time_s * 1e9)), element('td', '', percent(share)));
  });
  return element(
    'div',
    'slowest',
    element('h3', '', 'Slowest sample'),
    element('p', '', show, ` ${duration(sample.duration_s * 1e9)}`),
    element('table', '', element('tbody', '', ...rows)),
    sample.worker === null ? '' : element('p', 'worker', `answered by ${sample.worker}`),
  );
}
