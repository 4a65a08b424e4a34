// What the user can take hold of beside the timeline: the toolbar, the tabs, the keys.

import { byId, option } from '#dom';
import { parse } from '#hash';
import { listenToKeys, toggleHelp } from '#keys';
import { STAGES } from '#table';
import { toggleTheme } from '#theme';

const filterInput = byId('filter', HTMLInputElement);
const searchInput = byId('search', HTMLInputElement);
const selects = {
  arrange: byId('arrange', HTMLSelectElement),
  sort: byId('sort', HTMLSelectElement),
  density: byId('density', HTMLSelectElement),
  color: byId('color', HTMLSelectElement),
};
const falling = byId('falling', HTMLButtonElement);
const tabs = [...document.querySelectorAll('[role=tab]')].filter((tab) => tab instanceof HTMLButtonElement);

/** Orders that are offered. */
const SORTS = ['start', 'duration', 'reward', 'tokens', 'prompt_tokens', 'requests', 'e2e_latency', 'queue_time', ...STAGES, 'user_time', 'worker', 'weight_version'];

/**
 * @typedef {Object} Actions
 * @property {() => import('#hash').State} state
 * @property {(changes: Partial<import('#hash').State>) => void} change
 * @property {(order: Partial<import('#rows').Order>) => void} reorder
 * @property {(text: string) => void} filter
 * @property {(text: string) => void} search
 * @property {() => void} warmSearch
 * @property {(by: number) => void} goToFound
 * @property {() => void} zoomToSelected
 * @property {import('#timeline').Timeline} timeline
 */

/** @param {Actions} actions */
export function listenToControls(actions) {
  const { change, reorder, timeline } = actions;
  filterInput.addEventListener('input', () => actions.filter(filterInput.value));
  searchInput.addEventListener('input', () => actions.search(searchInput.value));
  searchInput.addEventListener('focus', actions.warmSearch);
  searchInput.addEventListener('keydown', (event) => {
    if (event.key === 'Enter') actions.goToFound(event.shiftKey ? -1 : 1);
  });
  for (const input of [filterInput, searchInput]) {
    input.addEventListener('keydown', (event) => {
      if (event.key === 'Escape') input.blur();
    });
  }
  byId('search-next', HTMLButtonElement).addEventListener('click', () => actions.goToFound(1));
  byId('search-before', HTMLButtonElement).addEventListener('click', () => actions.goToFound(-1));
  // What is chosen is read as the URL would be, which knows what may be chosen.
  selects.arrange.addEventListener('change', () => reorder({ arrange: parse(`#rows=${selects.arrange.value}`).order.arrange }));
  selects.sort.addEventListener('change', () => reorder({ sort: selects.sort.value }));
  falling.addEventListener('click', () => reorder({ falling: !actions.state().order.falling }));
  selects.density.addEventListener('change', () => reorder({ density: parse(`#density=${selects.density.value}`).order.density }));
  selects.color.addEventListener('change', () => change({ color: parse(`#color=${selects.color.value}`).color }));
  listenToTabs(change);
  byId('fit', HTMLButtonElement).addEventListener('click', () => timeline.fit());
  byId('help-open', HTMLButtonElement).addEventListener('click', toggleHelp);
  byId('theme', HTMLButtonElement).addEventListener('click', toggleTheme);
  byId('toggle', HTMLButtonElement).addEventListener('click', toggleNumbers);
  listenToKeys(keys(actions));
}

/** @param {Actions['change']} change */
function listenToTabs(change) {
  for (const tab of tabs) {
    tab.addEventListener('click', () => change({ tab: parse(`#tab=${tab.dataset.tab}`).tab }));
    tab.addEventListener('keydown', (event) => {
      const by = event.key === 'ArrowRight' ? 1 : event.key === 'ArrowLeft' ? -1 : 0;
      const next = tabs[(tabs.indexOf(tab) + by + tabs.length) % tabs.length];
      if (by === 0 || next === undefined) return;
      event.stopPropagation();
      next.click();
      next.focus();
    });
  }
}

/** @param {Actions} actions @returns {import('#keys').Key[]} */
function keys({ state, change, reorder, goToFound, zoomToSelected, timeline }) {
  return [
    { keys: ['w'], shown: 'W', does: 'zoom in', act: () => timeline.step(0, 1) },
    { keys: ['s'], shown: 'S', does: 'zoom out', act: () => timeline.step(0, -1) },
    { keys: ['a', 'ArrowLeft'], shown: 'A ←', does: 'earlier', act: () => timeline.step(-1, 0) },
    { keys: ['d', 'ArrowRight'], shown: 'D →', does: 'later', act: () => timeline.step(1, 0) },
    { keys: ['ArrowUp'], shown: '↑', does: 'rows above', act: () => timeline.scroll(-1) },
    { keys: ['ArrowDown'], shown: '↓', does: 'rows below', act: () => timeline.scroll(1) },
    { keys: ['f'], shown: 'F', does: 'show all', act: () => timeline.fit() },
    { keys: ['z'], shown: 'Z', does: 'zoom to the selected time', act: zoomToSelected },
    { keys: ['c'], shown: 'C', does: 'rows: roomy, compact, all in sight', act: () => reorder({ density: nextDensity(state()) }) },
    { keys: ['/'], shown: '/', does: 'search', act: () => searchInput.select() },
    { keys: ['e'], shown: 'E', does: 'edit the filter', act: () => filterInput.select() },
    { keys: ['n'], shown: 'N', does: 'next that was found', act: () => goToFound(1) },
    { keys: ['p'], shown: 'P', does: 'the one before', act: () => goToFound(-1) },
    { keys: ['m'], shown: 'M', does: 'numbers of the step', act: toggleNumbers },
    { keys: ['Escape'], shown: 'Esc', does: 'close details and selection', act: () => change({ pin: undefined, selected: undefined }) },
    { keys: ['?'], shown: '?', does: 'this help', act: toggleHelp },
  ];
}

/** @param {import('#hash').State} state */
function nextDensity({ order: { density } }) {
  const all = /** @type {const} */ (['roomy', 'compact', 'overview']);
  return all[(all.indexOf(density) + 1) % all.length] ?? 'roomy';
}

/**
 * Sets all controls as the state is.
 * @param {import('#table').Table | undefined} table
 * @param {import('#hash').State} state
 */
export function showControls(table, { order, color, filter, search, tab }) {
  if (table !== undefined && selects.sort.dataset.step !== String(table.step)) {
    const options = SORTS.flatMap((name) => table.fields.get(name) ?? []);
    selects.sort.replaceChildren(option('', 'group'), ...options.map(({ name, label }) => option(name, label)));
    selects.sort.dataset.step = String(table.step);
  }
  if (filterInput.value !== filter) filterInput.value = filter;
  if (searchInput.value !== search) searchInput.value = search;
  selects.arrange.value = order.arrange;
  selects.sort.value = order.sort;
  falling.textContent = order.falling ? '↓' : '↑';
  falling.setAttribute('aria-pressed', String(order.falling));
  selects.density.value = order.density;
  selects.color.value = color;
  for (const one of tabs) {
    const isShown = one.dataset.tab === tab;
    one.setAttribute('aria-selected', String(isShown));
    one.tabIndex = isShown ? 0 : -1;
    byId(`tab-${one.dataset.tab}`, HTMLElement).hidden = !isShown;
  }
}

/**
 * What the filter leaves, or what is wrong with it.
 * @param {string} text
 * @param {boolean} isWrong
 */
export function tellFilter(text, isWrong) {
  filterInput.setAttribute('aria-invalid', String(isWrong));
  const told = byId('filter-told', HTMLElement);
  told.textContent = text;
  told.classList.toggle('bad', isWrong);
}

function toggleNumbers() {
  const panel = byId('numbers', HTMLElement);
  panel.hidden = !panel.hidden;
  byId('toggle', HTMLButtonElement).setAttribute('aria-expanded', String(!panel.hidden));
}
