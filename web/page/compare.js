// Two steps beside each other: the same axes, the differences by series, and the samples that changed most.

import { getNumbers, getTable } from '#api';
import { binsOf, valuesOf } from '#bins';
import { colorValue, seriesColor } from '#colors';
import { byId, element, swatch } from '#dom';
import { duration, inUnit, number, percent } from '#format';

const section = byId('compare', HTMLElement);
const select = byId('compare-step', HTMLSelectElement);
const content = byId('compare-content', HTMLElement);

const MOST_CHANGED = 10;
const BINS = 40;
/** A difference below this share is not told by a bar. */
const LEAST = 0.005;

/**
 * @typedef {{ numbers: import('#api').NumbersAnswer, table: import('#table').Table }} Step
 *
 * @typedef {Object} Shown
 * @property {Step} of
 * @property {import('#api').StepEntry[]} steps
 * @property {number | undefined} against
 * @property {boolean} dark
 * @property {(step: number) => void} choose
 * @property {(row: number) => void} pin
 */

let asked = 0;
/** @type {Shown | undefined} */
let shown;
select.addEventListener('change', () => shown?.choose(Number(select.value)));

/** @param {Shown} what */
export async function showCompare(what) {
  shown = what;
  const ask = ++asked;
  const others = what.steps.filter(({ step }) => step !== what.of.numbers.step);
  select.replaceChildren(...others.map(({ step }) => Object.assign(element('option', '', `Step ${step}`), { value: String(step) })));
  if (others.length === 0) {
    content.replaceChildren(element('p', 'of', 'There is no other step to compare with.'));
    return;
  }
  const chosen = others.find(({ step }) => step === what.against) ?? others.findLast(({ step }) => step < what.of.numbers.step) ?? others[0];
  const against = chosen?.step ?? 0;
  select.value = String(against);
  let other;
  try {
    const [numbers, table] = await Promise.all([getNumbers(against), getTable(against)]);
    other = { numbers, table };
  } catch (error) {
    content.replaceChildren(element('p', 'bad', error instanceof Error ? error.message : String(error)));
    return;
  }
  if (ask !== asked || section.hidden) return;
  content.replaceChildren(
    element('div', 'columns', ...[seriesTable(what.of, other, what.dark), element('div', '', changed(what, other), durations(what.of, other))]),
  );
}

/**
 * @param {Step} of
 * @param {Step} other
 * @param {boolean} dark
 */
function seriesTable(of, other, dark) {
  const rows = of.numbers.series.flatMap((series) => {
    const before = other.numbers.series.find(({ name }) => name === series.name);
    if (before === undefined) return [];
    const id = seriesColor(series.name);
    const name = element('th', '', id === undefined ? element('i', 'swatch none') : swatch(colorValue(id, dark)), words(series.name));
    name.scope = 'row';
    const cells = [before.mean, series.mean, before.p99, series.p99].map((value) => element('td', '', inUnit(value, series.unit)));
    return [element('tr', '', name, ...cells.slice(0, 2), difference(before.mean, series.mean), ...cells.slice(2), difference(before.p99, series.p99))];
  });
  const [a, b] = [`step ${other.numbers.step}`, `step ${of.numbers.step}`];
  const headings = ['', `mean, ${a}`, b, '', `p99, ${a}`, b, ''].map((text) => {
    const cell = element(text === '' ? 'td' : 'th', '', text);
    if (cell instanceof HTMLTableCellElement) cell.scope = text === '' ? '' : 'col';
    return cell;
  });
  return element('table', 'series', element('thead', '', element('tr', '', ...headings)), element('tbody', '', ...rows));
}

/**
 * @param {number} before
 * @param {number} after
 */
function difference(before, after) {
  const share = before === 0 ? 0 : (after - before) / before;
  const cell = element('td', 'difference');
  if (Math.abs(share) < LEAST) {
    cell.append(element('span', 'of', '='));
    return cell;
  }
  const bar = element('i', share > 0 ? 'more' : 'less');
  bar.style.width = `${Math.min(Math.abs(share), 1) * 36}px`;
  cell.append(element('span', '', `${share > 0 ? '+' : '−'}${percent(Math.abs(share))}`), bar);
  return cell;
}

/**
 * @param {Shown} what
 * @param {Step} other
 */
function changed(what, other) {
  const [now, before] = [what.of.table.fields.get('duration'), other.table.fields.get('duration')];
  if (now === undefined || before === undefined) return '';
  const pairs = Array.from({ length: what.of.table.count }, (_, row) => {
    const match = other.table.find(what.of.table.label(row));
    return { row, after: now.number(row), before: match < 0 ? NaN : before.number(match) };
  }).filter(({ after, before }) => !Number.isNaN(after - before));
  if (pairs.length === 0) return element('p', 'of', 'No sample has the same name in both steps.');
  pairs.sort((a, b) => Math.abs(b.after - b.before) - Math.abs(a.after - a.before));
  const rows = pairs.slice(0, MOST_CHANGED).map(({ row, after, before }) => {
    const open = element('button', 'link', what.of.table.label(row));
    open.type = 'button';
    open.addEventListener('click', () => what.pin(row));
    return element('tr', '', element('th', '', open), element('td', '', duration(before * 1e9)), element('td', '', duration(after * 1e9)), difference(before, after));
  });
  return element('section', '', element('h3', '', `Samples that changed most, of ${number(pairs.length)} with the same name`), element('table', 'series', element('tbody', '', ...rows)));
}

/**
 * The durations of both steps on one axis.
 * @param {Step} of
 * @param {Step} other
 */
function durations(of, other) {
  const sets = [other, of].map(({ table, numbers }) => {
    const rows = Array.from({ length: table.count }, (_, row) => row);
    return { step: numbers.step, values: valuesOf(rows, table.fields.get('duration')?.number ?? (() => NaN)) };
  });
  const all = sets.flatMap(({ values }) => (values.length === 0 ? [] : [values[0] ?? 0, values.at(-1) ?? 0]));
  if (all.length === 0) return '';
  const over = { from: Math.min(...all), to: Math.max(...all) };
  const bins = sets.map(({ step, values }) => ({ step, counts: binsOf(values, BINS, over).counts, of: values.length }));
  const most = Math.max(...bins.flatMap(({ counts, of }) => counts.map((count) => count / of)));
  const charts = bins.map(({ step, counts, of }) => {
    const bars = counts.map((count) => {
      const bar = element('i', '');
      bar.style.height = `${(count / of / most) * 100}%`;
      return bar;
    });
    const chart = element('div', 'bars', ...bars);
    chart.setAttribute('role', 'img');
    chart.setAttribute('aria-label', `Durations of the samples of step ${step}`);
    return element('div', 'pair', element('span', '', `step ${step}`), chart);
  });
  const axis = element('div', 'pair', element('span', ''), element('div', 'ends', element('span', '', duration(over.from * 1e9)), element('span', '', duration(over.to * 1e9))));
  return element('section', '', element('h3', '', 'Durations of the samples'), ...charts, axis);
}

/** @param {string} name  e.g. `prefill/forward_duration` */
function words(name) {
  return name.replace(/_duration$/, '').replace(/_(gb_s|mb)$/, '').replaceAll('_', ' ').replace('/', ' ');
}
