// The search: what is typed is sought by the server at once, and what was found is gone through with keys.

import { search } from '#api';
import { at } from '#columns';
import { byId } from '#dom';
import { number } from '#format';
import { Latest } from '#latest';

/**
 * @typedef {{ row: number, part: number }} Found
 *
 * @typedef {Object} Seeker
 * @property {() => import('#table').Table | undefined} table
 * @property {() => ArrayLike<number>} rows       Samples that the filter leaves.
 * @property {() => void} changed                 Something else was found.
 * @property {(found: Found) => void} goTo
 * @property {(error: unknown) => void} failed
 */

const told = byId('search-told', HTMLElement);

export class Find {
  /** @type {import('#api').Matches} */
  #found = NOTHING;
  #at = -1;
  #isFound = (/** @type {number} */ _row) => false;
  #latest = new Latest();
  /** What is sought, while an answer is awaited. @type {string | undefined} */
  #next;
  #isAsking = false;
  #seeker;

  /** @param {Seeker} seeker */
  constructor(seeker) {
    this.#seeker = seeker;
  }

  /** Whether something of a sample was found; another function when something else was. */
  get isFound() {
    return this.#isFound;
  }

  /** Has the server read all texts, so that the first key is answered as fast as the others. */
  warm() {
    const table = this.#seeker.table();
    if (table !== undefined) search(table.step, '').catch(() => {});
  }

  /** @param {string} text */
  run(text) {
    const isLast = this.#latest.begin();
    if (text === '' || this.#seeker.table() === undefined) {
      this.#next = undefined;
      this.#take(NOTHING, '');
      return;
    }
    this.#next = text;
    // One at a time: while it is awaited, only the last text of those that were typed is kept.
    if (!this.#isAsking) void this.#ask(isLast);
  }

  /** @param {() => boolean} isLast */
  async #ask(isLast) {
    const [table, text] = [this.#seeker.table(), this.#next];
    if (table === undefined || text === undefined) return;
    this.#next = undefined;
    this.#isAsking = true;
    try {
      const found = await search(table.step, text);
      if (isLast()) this.#take(found, tell(found));
    } catch (error) {
      this.#seeker.failed(error);
    }
    this.#isAsking = false;
    if (this.#next !== undefined) this.run(this.#next);
  }

  /** @param {import('#api').Matches} found @param {string} text */
  #take(found, text) {
    const wasNothing = this.#found.total === 0;
    this.#found = found;
    this.#at = -1;
    const has = new Set(found.rows);
    this.#isFound = (row) => has.has(row);
    told.textContent = text;
    if (!wasNothing || found.total > 0) this.#seeker.changed();
  }

  /** @param {number} by  1 is the next, −1 the one before; those that the filter leaves, in the order of the table. */
  go(by) {
    const { rows, parts, total } = this.#found;
    const shown = new Set(Array.from(this.#seeker.rows()));
    for (let tried = 0; tried < rows.length; tried++) {
      this.#at = (this.#at + by + rows.length) % rows.length;
      const row = at(rows, this.#at);
      if (!shown.has(row)) continue;
      told.textContent = `${number(this.#at + 1)} of ${number(total)}`;
      this.#seeker.goTo({ row, part: at(parts, this.#at) });
      return;
    }
  }
}

/** @param {import('#api').Matches} found */
function tell({ total, left_out }) {
  const told = total === 0 ? 'not found' : `${number(total)} found`;
  return left_out === 0 ? told : `${told}, without ${number(left_out)} samples`;
}

/** @type {import('#api').Matches} */
const NOTHING = { rows: [], parts: [], total: 0, left_out: 0 };
