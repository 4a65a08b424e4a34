// The table of samples: sorted by any column; only the rows in sight are in the document.

import { at } from '#columns';
import { button, byId, element } from '#dom';
import { number, tellField } from '#format';
import { STAGES } from '#table';

const scroller = byId('samples-scroller', HTMLElement);
const body = byId('samples-body', HTMLTableSectionElement);
const head = byId('samples-head', HTMLTableSectionElement);
const note = byId('samples-note', HTMLElement);

const ROW_PX = 24;
/** Rows above and below those in sight. */
const SPARE = 8;
/** Fields with columns; those that no sample has are left out. */
const COLUMNS = [
  'group',
  'sample',
  'reward',
  'start',
  'duration',
  'tokens',
  'prompt_tokens',
  'requests',
  'attempts',
  'e2e_latency',
  'queue_time',
  ...STAGES,
  'user_time',
  'worker',
  'prefill_worker',
  'weight_version',
];

/**
 * @typedef {Object} Shown
 * @property {import('#table').Table} table
 * @property {import('#rows').Order} order
 * @property {ArrayLike<number>} rows   In the order of the table.
 * @property {number | undefined} pinned
 * @property {(sort: string) => void} sort
 * @property {(row: number) => void} pin
 */

/** @type {Shown | undefined} */
let shown;
/** @type {import('#table').Field[]} */
let fields = [];

scroller.addEventListener('scroll', () => fill());
new ResizeObserver(() => fill()).observe(scroller);

/** @param {Shown} what */
export function showSamples(what) {
  if (shown?.table !== what.table) {
    fields = COLUMNS.flatMap((name) => what.table.fields.get(name) ?? []).filter(({ name }) => what.table.has(name));
  }
  shown = what;
  note.textContent = what.rows.length === what.table.count ? `${number(what.table.count)} samples` : `${number(what.rows.length)} of ${number(what.table.count)} samples`;
  head.replaceChildren(element('tr', '', ...fields.map((field) => headCell(field, what))));
  fill();
}

/**
 * @param {import('#table').Field} field
 * @param {Shown} what
 */
function headCell(field, { order, sort }) {
  const cell = element('th', field.unit === 'text' ? 'text' : '');
  cell.scope = 'col';
  const turn = button(field.label, () => sort(field.name));
  if (order.sort === field.name) {
    cell.setAttribute('aria-sort', order.falling ? 'descending' : 'ascending');
    turn.append(order.falling ? ' ↓' : ' ↑');
  }
  cell.append(turn);
  return cell;
}

function fill() {
  if (shown === undefined || scroller.clientHeight === 0) return;
  const { table, rows, pinned, order } = shown;
  const first = Math.max(Math.floor(scroller.scrollTop / ROW_PX) - SPARE, 0);
  const last = Math.min(first + Math.ceil(scroller.clientHeight / ROW_PX) + 2 * SPARE, rows.length);
  const made = [spacer(first)];
  for (let place = first; place < last; place++) {
    const row = at(rows, place);
    const isFirst = order.sort === '' && place > 0 && table.group(row) !== table.group(at(rows, place - 1));
    const line = element('tr', isFirst ? 'first' : '', ...fields.map((field) => cell(field, row)));
    if (row === pinned) line.setAttribute('aria-current', 'true');
    line.addEventListener('click', () => shown?.pin(row));
    made.push(line);
  }
  made.push(spacer(Math.max(rows.length - last, 0)));
  body.replaceChildren(...made);
}

/**
 * @param {import('#table').Field} field
 * @param {number} row
 */
function cell(field, row) {
  if (field.name !== 'sample') return element('td', field.unit === 'text' ? 'text' : '', tellField(field, row));
  // The name is a button, so that keys can open the sample.
  return element('td', 'text', button(field.text(row), () => shown?.pin(row), { className: 'link' }));
}

/** @param {number} rows */
function spacer(rows) {
  const made = element('tr', 'spacer');
  made.setAttribute('aria-hidden', 'true');
  made.style.height = `${rows * ROW_PX}px`;
  return made;
}
