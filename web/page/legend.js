// The colours, named: those of the stages, or of what else spans are coloured by.

import { COLORS, colorValue } from '#colors';
import { byId, element, swatch } from '#dom';
import { number } from '#format';

const legend = byId('legend', HTMLDivElement);

/** @type {Record<import('#colors').Section, string>} */
const HEADINGS = { request: '', prefill: 'Prefill', decode: 'Decode', user: '' };

/**
 * @param {import('#table').Table | undefined} table
 * @param {{ label: string, fill: string }[] | undefined} other  Nothing for stages.
 * @param {boolean} dark
 * @param {number} unplaced  Forward passes of workers that have no row.
 */
export function showLegend(table, other, dark, unplaced) {
  if (table === undefined) {
    legend.replaceChildren();
    return;
  }
  const note = unplaced === 0 ? '' : element('span', 'entry', `${number(unplaced)} forward ${unplaced === 1 ? 'pass' : 'passes'} of workers that served nothing here`);
  if (other !== undefined) {
    legend.replaceChildren(...other.map(({ label, fill }) => element('span', 'entry', swatch(fill), label)), note);
    return;
  }
  const used = usedColors(table);
  const groups = Object.entries(HEADINGS).map(([section, heading]) => {
    const entries = COLORS.filter((color) => color.section === section && used(color.id));
    if (entries.length === 0) return '';
    const items = entries.map(({ id, label }) => element('span', 'entry', swatch(colorValue(id, dark)), label));
    if (section === 'user') items.push(element('span', 'entry', diamond(colorValue('user', dark)), 'an instant of it'));
    return element('span', 'group', heading === '' ? '' : element('b', '', heading), ...items);
  });
  legend.replaceChildren(...groups, note);
}

/** @param {string} color */
function diamond(color) {
  const made = swatch(color);
  made.classList.add('instant');
  return made;
}

/**
 * Whether the step has spans of a colour, as far as its samples' sums tell.
 * @param {import('#table').Table} table
 * @returns {(id: string) => boolean}
 */
function usedColors(table) {
  const roles = new Set(table.workers.map(({ role }) => role));
  const isPair = roles.has('prefill') || roles.has('decode');
  /** @type {Record<string, string>} */
  const asked = { request: 'requests', queue: 'queue_time', user: 'user_time' };
  return (id) => {
    if (id === 'forward') return roles.has('regular') && !isPair;
    if (!isPair && roles.has('regular') && (id === 'prefill/forward' || id === 'decode/forward')) return true;
    return table.has(asked[id] ?? id.replace('/', '_'));
  };
}
