// The words beside and above a timeline: what each row is, and the times.

import { at } from '#columns';
import { axisTime, counted, number } from '#format';
import { trackPlace } from '#rows';
import { AXIS, GUTTER, isOverview, visibleRows, xOf, yOf } from '#scene';
import { FLAG, workerName } from '#table';
import { fitted } from '#words';

/** Lanes of prefill and decode. @type {[number, string][]} */
const LETTERS = [
  [2, 'P'],
  [3, 'D'],
];

/** @param {import('#draw').Picture} picture */
export function drawLabels({ context, scene, theme }) {
  const { table, rows } = scene;
  const [first, last] = visibleRows(scene);
  context.save();
  context.beginPath();
  context.rect(0, AXIS, GUTTER, scene.height - AXIS);
  context.clip();
  context.textBaseline = 'middle';
  for (let row = first; row < last; row++) {
    const index = at(rows.index, row);
    if (isOverview(scene, row)) continue;
    // Of a row that is higher than the window the label stays in sight.
    const [top, foot] = [Math.max(yOf(scene, row), AXIS), Math.min(yOf(scene, row + 1), scene.height)];
    const middle = index < 0 ? Math.min(top + 18, (top + foot) / 2) : (top + foot) / 2;
    const roomy = rows.density === 'roomy' || index < 0;
    const below = roomy ? describe(table, index) : '';
    context.fillStyle = theme.text;
    context.font = `500 ${roomy ? 12 : 10}px ${theme.font}`;
    const label = index < 0 ? workerName(table.workers[-1 - index]) : table.label(index);
    context.fillText(fitted(context, label, GUTTER - 36), 12, middle - (below === '' ? 0 : 7));
    context.fillStyle = theme.muted;
    context.font = `11px ${theme.font}`;
    context.fillText(fitted(context, below, GUTTER - 36), 12, middle + 8);
    if (index < 0 || !roomy) continue;
    context.font = `600 8.5px ${theme.font}`;
    for (const [lane, letter] of LETTERS) {
      for (let track = 0; track < at(table.tracks[lane] ?? [], index); track++) {
        const place = trackPlace(table, index, rows.density, lane, track);
        const y = yOf(scene, row) + place.top + place.height / 2 + 0.5;
        if (y > AXIS && y < scene.height) context.fillText(letter, GUTTER - 14, y);
      }
    }
  }
  context.fillStyle = theme.line;
  context.fillRect(GUTTER - 1, AXIS, 1, scene.height);
  context.restore();
}

/**
 * @param {import('#table').Table} table
 * @param {number} index
 */
function describe(table, index) {
  if (index < 0) {
    const worker = table.workers[-1 - index];
    return worker === undefined ? '' : `${worker.role} · ${number(worker.legs)} requests`;
  }
  const [reward, tokens] = [table.reward[index] ?? NaN, table.fields.get('tokens')?.number(index) ?? NaN];
  return [
    Number.isNaN(reward) ? '' : `reward ${number(reward)}`,
    Number.isNaN(tokens) ? '' : `${number(tokens)} tokens`,
    at(table.flags, index) & FLAG.evaluation ? 'evaluation' : '',
  ]
    .filter((text) => text !== '')
    .join(' · ');
}

/**
 * @param {import('#draw').Picture} picture
 * @param {number} step
 */
export function drawAxis({ context, scene, theme }, step) {
  context.fillStyle = theme.surface;
  context.fillRect(0, 0, scene.width, AXIS);
  context.fillStyle = theme.line;
  context.fillRect(0, AXIS - 1, scene.width, 1);
  context.fillRect(GUTTER - 1, 0, 1, AXIS);
  context.fillStyle = theme.muted;
  context.font = `11px ${theme.font}`;
  context.textBaseline = 'middle';
  const largest = largestOf(scene);
  for (const time of ticks(scene, step)) {
    const x = Math.round(xOf(scene, time));
    if (x < GUTTER) continue;
    context.fillRect(x, AXIS - 6, 1, 5);
    context.fillText(axisTime(time, step, largest), x + 5, AXIS / 2);
  }
  const { rows } = scene;
  const workers = rows.count - rows.samples;
  const counts = [workers === 0 ? '' : counted(workers, 'worker'), rows.samples === 0 ? '' : counted(rows.samples, 'sample')];
  context.fillText(counts.filter((text) => text !== '').join(', '), 12, AXIS / 2);
}

/** The largest time in sight, by which the axis chooses its unit. @param {import('#scene').Scene} scene */
export function largestOf({ range }) {
  return Math.max(Math.abs(range.from), Math.abs(range.to));
}

/**
 * @param {import('#scene').Scene} scene
 * @param {number} step
 */
export function ticks(scene, step) {
  const first = Math.ceil(scene.range.from / step);
  const last = Math.floor(scene.range.to / step);
  return Array.from({ length: Math.max(last - first + 1, 0) }, (_, index) => (first + index) * step);
}
