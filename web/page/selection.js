// Statistics of a range of time: what the samples that are shown did in it.

import { getTile } from '#api';
import { COLORS, colorValue } from '#colors';
import { at, lowest } from '#columns';
import { button, byId, element, swatch, wordsOf } from '#dom';
import { counted, duration, number, percent } from '#format';
import { Latest } from '#latest';

const panel = byId('selection', HTMLElement);

/**
 * @typedef {import('#viewport').Range} Range
 * @typedef {{ time_ns: number, spans: number }} Sum
 */

/** A range that is still being dragged is not added up. */
const STILL_MS = 120;

const asked = new Latest();

/**
 * @param {import('#table').Table} table
 * @param {ArrayLike<number>} rows  Samples that a filter has left.
 * @param {Range} range
 * @param {{ dark: boolean, zoom: () => void, close: () => void }} how
 */
export async function showSelection(table, rows, range, how) {
  const isLast = asked.begin();
  const within = Array.from(rows).filter((row) => at(table.start, row) <= range.to && at(table.end, row) >= range.from);
  const ended = within.filter((row) => at(table.end, row) <= range.to).length;
  const began = within.filter((row) => at(table.start, row) >= range.from).length;
  const facts = [
    ['length', duration(range.to - range.from)],
    ['samples', number(within.length)],
    ['began · ended in it', `${number(began)} · ${number(ended)}`],
    ['live at a time', number(meanLive(table, within, range))],
  ];
  const list = element('dl', 'attributes', ...facts.flatMap(([name = '', value = '']) => [element('dt', '', name), element('dd', '', value)]));
  const [zoom, close] = [button('Zoom in', how.zoom), button('×', how.close, { title: 'Close' })];
  const stages = element('div', '', element('p', 'of', 'adding up the stages…'));
  panel.hidden = false;
  panel.replaceChildren(element('header', '', element('h2', '', 'Selected time'), zoom, close), list, element('h3', '', 'Stages'), stages);

  await new Promise((resolve) => setTimeout(resolve, STILL_MS));
  if (!isLast()) return;
  /** @type {Map<string, Sum>} */
  const sums = new Map();
  /** @type {Map<number, Set<number>>} */
  const tiles = new Map();
  for (const row of within) {
    const tile = Math.floor(row / table.tileRows);
    tiles.set(tile, (tiles.get(tile) ?? new Set()).add(row));
  }
  let done = 0;
  for (const [index, wanted] of tiles) {
    try {
      addUp(await getTile(table, 'tiles', index), wanted, range, sums);
    } catch (error) {
      if (isLast()) stages.replaceChildren(element('p', 'bad', wordsOf(error)));
      return;
    }
    if (!isLast()) return;
    done++;
    if (done % 8 === 0 || done === tiles.size) stages.replaceChildren(stageTable(sums, how.dark, done / tiles.size));
  }
  if (tiles.size === 0) stages.replaceChildren(element('p', 'of', 'Nothing happened here.'));
}

export function hideSelection() {
  asked.begin();
  panel.hidden = true;
  panel.replaceChildren();
}

/**
 * Adds the time of each stage that lies in a range. Stages within stages are not added to those that hold them.
 * @param {import('#tile').Tile} tile
 * @param {Set<number>} rows
 * @param {Range} range
 * @param {Map<string, Sum>} sums  By colour, which tells the stage and its side.
 */
function addUp(tile, rows, range, sums) {
  for (const row of rows) {
    for (const run of tile.rows.get(row) ?? []) {
      if (run.kind !== 'stage' && run.kind !== 'user') continue;
      let span = lowest(run.first, run.last, (index) => at(tile.end, index) > range.from);
      for (; span < run.last && at(tile.start, span) < range.to; span++) {
        const { color } = tile.nameOf(span);
        const sum = sums.get(color) ?? { time_ns: 0, spans: 0 };
        sum.time_ns += Math.min(at(tile.end, span), range.to) - Math.max(at(tile.start, span), range.from);
        sum.spans++;
        sums.set(color, sum);
      }
    }
  }
}

/**
 * @param {import('#table').Table} table
 * @param {number[]} rows
 * @param {Range} range
 */
function meanLive(table, rows, range) {
  let time = 0;
  for (const row of rows) time += Math.min(at(table.end, row), range.to) - Math.max(at(table.start, row), range.from);
  return time / Math.max(range.to - range.from, 1);
}

/**
 * @param {Map<string, Sum>} sums
 * @param {boolean} dark
 * @param {number} done
 */
function stageTable(sums, dark, done) {
  const total = [...sums.values()].reduce((sum, { time_ns }) => sum + time_ns, 0);
  const rows = COLORS.flatMap(({ id, label, section }) => {
    const sum = sums.get(id);
    if (sum === undefined) return [];
    const side = section === 'prefill' || section === 'decode' ? `${section} ` : '';
    return [
      element(
        'tr',
        '',
        element('th', '', swatch(colorValue(id, dark)), `${side}${label}`),
        element('td', '', duration(sum.time_ns)),
        element('td', '', percent(sum.time_ns / Math.max(total, 1))),
        element('td', '', counted(sum.spans, 'span')),
      ),
    ];
  });
  const made = element('div', '', element('table', 'neighbours', element('tbody', '', ...rows)));
  if (done < 1) made.append(element('p', 'of', `${percent(done)} added up`));
  return made;
}
