// Two steps beside each other, of one run or of two: the same axes, the differences by series, and the samples that changed most.

import { getNumbers, getTable } from '#api';
import { binsOf, valuesOf } from '#bins';
import { colorValue, seriesColor } from '#colors';
import { button, byId, element, headCell, option, swatch, wordsOf } from '#dom';
import { duration, inUnit, number, percent } from '#format';
import { Latest } from '#latest';

const section = byId('compare', HTMLElement);
const select = byId('compare-step', HTMLSelectElement);
const content = byId('compare-content', HTMLElement);

const MOST_CHANGED = 10;
const BINS = 40;
/** A difference below this share is not told by a bar. */
const LEAST = 0.005;

/**
 * @typedef {{ numbers: import('#api').NumbersAnswer, table: import('#table').Table }} Step
 * @typedef {{ name: string, label: string, which: import('#api').Which, step: number }} Other  A step that can be compared with; its name as in the URL.
 *
 * @typedef {Object} Shown
 * @property {Step} of
 * @property {Other[]} others  The one that is meant where nothing is chosen stands first.
 * @property {string} against
 * @property {boolean} dark
 * @property {(against: string) => void} choose
 * @property {(row: number) => void} pin
 */

const asked = new Latest();
/** @type {Shown | undefined} */
let shown;
select.addEventListener('change', () => shown?.choose(select.value));

/**
 * What a step can be compared with. Where there is another run, its step of the same number is meant; else the step
 * before.
 * @param {number} step
 * @param {import('#api').StepEntry[]} own
 * @param {import('#api').StepEntry[]} other  Steps of the other run.
 * @returns {Other[]}
 */
export function othersOf(step, own, other) {
  /** @type {Other[]} */
  const all = [
    ...other.map((of) => ({ name: `other.${of.step}`, label: `other run, step ${of.step}`, which: /** @type {const} */ ('other'), step: of.step })),
    ...own.filter((of) => of.step !== step).map((of) => ({ name: String(of.step), label: `step ${of.step}`, which: /** @type {const} */ ('this'), step: of.step })),
  ];
  const meant = all.find((of) => of.which === 'other' && of.step === step) ?? all.findLast((of) => of.which === 'this' && of.step < step) ?? all[0];
  return meant === undefined ? [] : [meant, ...all.filter((of) => of !== meant)];
}

/** @param {Shown} what */
export async function showCompare(what) {
  shown = what;
  const isLast = asked.begin();
  const chosen = what.others.find(({ name }) => name === what.against) ?? what.others[0];
  const ordered = [...what.others].sort((a, b) => a.which.localeCompare(b.which) || a.step - b.step);
  select.replaceChildren(...ordered.map(({ name, label }) => option(name, label)));
  if (chosen === undefined) {
    content.replaceChildren(element('p', 'of', 'There is no other step to compare with.'));
    return;
  }
  select.value = chosen.name;
  /** @type {Step & { label: string }} */
  let other;
  try {
    const [numbers, table] = await Promise.all([getNumbers(chosen.step, chosen.which), getTable(chosen.step, chosen.which)]);
    other = { numbers, table, label: chosen.label };
  } catch (error) {
    if (isLast()) content.replaceChildren(element('p', 'bad', wordsOf(error)));
    return;
  }
  if (!isLast()) return;
  content.replaceChildren(
    element('div', 'columns', ...[seriesTable(what.of, other, what.dark), element('div', '', changed(what, other), durations(what.of, other))]),
  );
}

/**
 * @param {Step} of
 * @param {Step & { label: string }} other
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
  const [a, b] = [other.label, `step ${of.numbers.step}`];
  const headings = ['', `mean, ${a}`, b, '', `p99, ${a}`, b, ''].map((text) => (text === '' ? element('td', '') : headCell(text)));
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
  if (pairs.length === 0) return element('p', 'of', 'No sample has the same name in both.');
  pairs.sort((a, b) => Math.abs(b.after - b.before) - Math.abs(a.after - a.before));
  const rows = pairs.slice(0, MOST_CHANGED).map(({ row, after, before }) => {
    const open = button(what.of.table.label(row), () => what.pin(row), { className: 'link' });
    return element('tr', '', element('th', '', open), element('td', '', duration(before * 1e9)), element('td', '', duration(after * 1e9)), difference(before, after));
  });
  return element('section', '', element('h3', '', `Samples that changed most, of ${number(pairs.length)} with the same name`), element('table', 'series', element('tbody', '', ...rows)));
}

/**
 * The durations of both steps on one axis.
 * @param {Step} of
 * @param {Step & { label: string }} other
 */
function durations(of, other) {
  const sets = [other, { ...of, label: `step ${of.numbers.step}` }].map(({ table, label }) => {
    return { label, values: valuesOf(table.all(), table.fields.get('duration')?.number ?? (() => NaN)) };
  });
  const all = sets.flatMap(({ values }) => (values.length === 0 ? [] : [values[0] ?? 0, values.at(-1) ?? 0]));
  if (all.length === 0) return '';
  const over = { from: Math.min(...all), to: Math.max(...all) };
  const bins = sets.map(({ label, values }) => ({ label, counts: binsOf(values, BINS, over).counts, of: values.length }));
  const most = Math.max(...bins.flatMap(({ counts, of }) => counts.map((count) => count / of)));
  const charts = bins.map(({ label, counts, of }) => {
    const bars = counts.map((count) => {
      const bar = element('i', '');
      bar.style.height = `${(count / of / most) * 100}%`;
      return bar;
    });
    const chart = element('div', 'bars', ...bars);
    chart.setAttribute('role', 'img');
    chart.setAttribute('aria-label', `Durations of the samples of ${label}`);
    return element('div', 'pair', element('span', '', label), chart);
  });
  const axis = element('div', 'pair', element('span', ''), element('div', 'ends', element('span', '', duration(over.from * 1e9)), element('span', '', duration(over.to * 1e9))));
  return element('section', '', element('h3', '', 'Durations of the samples'), ...charts, axis);
}

/** @param {string} name  e.g. `prefill/forward_duration` */
function words(name) {
  return name.replace(/_duration$/, '').replace(/_(gb_s|mb)$/, '').replaceAll('_', ' ').replace('/', ' ');
}
