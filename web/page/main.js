// The page: keeps what is shown in step with the run, with what the user asks for, and with the URL.

import { getNumbers, getPasses, getRun, getSteps, getTable, isFollowed, search } from '#api';
import { at } from '#columns';
import { showCharts } from '#charts';
import { showCompare } from '#compare';
import { hideDetails, showDetails } from '#details';
import { byId, element } from '#dom';
import { FilterError, compile } from '#filter';
import { number } from '#format';
import { format, initial, parse } from '#hash';
import { listenToKeys, toggleHelp } from '#keys';
import { showLegend } from '#legend';
import { Minimap } from '#minimap';
import { showNumbers } from '#numbers';
import { arrange } from '#rows';
import { showSamples } from '#samples';
import { hideSelection, showSelection } from '#selection';
import { showSteps } from '#steps';
import { showSummary } from '#summary';
import { STAGES } from '#table';
import { onThemeChange, readTheme, toggleTheme } from '#theme';
import { Timeline } from '#timeline';

const POLL_MS = 500;
/** The run itself is asked for each time that its steps were asked for this often. */
const POLLS_PER_RUN = 8;
/** A step that takes long to load is not loaded again before it has been shown for as long. */
const REST = 2;
/** Search waits until this long after the last key. */
const SEARCH_MS = 60;

/** What the user asks for: the whole of the URL. */
let state = parse(location.hash);

const page = {
  /** @type {import('#api').RunAnswer | undefined} */
  run: undefined,
  polls: 0,
  /** @type {import('#api').StepEntry[]} */
  steps: [],
  /** How much of the step is shown. @type {number | undefined} */
  version: undefined,
  /** @type {import('#api').NumbersAnswer | undefined} */
  numbers: undefined,
  /** @type {import('#table').Table | undefined} */
  table: undefined,
  /** Samples that the filter leaves, by row of the table. @type {Int32Array} */
  rows: new Int32Array(),
  /** What the search found. @type {{ rows: number[], parts: number[], total: number, at: number, has: Set<number> }} */
  found: { rows: [], parts: [], total: 0, at: -1, has: new Set() },
  /** Step and version whose forward passes are shown. */
  passesOf: '',
  loadedAt_ms: 0,
  loadTook_ms: 0,
};

const message = byId('message', HTMLElement);
const filterInput = byId('filter', HTMLInputElement);
const searchInput = byId('search', HTMLInputElement);
const controls = {
  arrange: byId('arrange', HTMLSelectElement),
  sort: byId('sort', HTMLSelectElement),
  falling: byId('falling', HTMLButtonElement),
  density: byId('density', HTMLSelectElement),
  color: byId('color', HTMLSelectElement),
};
const tabs = [...document.querySelectorAll('[role=tab]')].filter((tab) => tab instanceof HTMLButtonElement);

/** Counts what is asked for, so that a late answer does not replace a newer one. */
let loads = 0;
let searches = 0;
/** @type {number | undefined} */
let hashTimer;
/** @type {number | undefined} */
let searchTimer;

const minimap = new Minimap((range) => {
  timeline.look(range);
  moved();
});
const timeline = new Timeline({ moved, pinned: pin, selected: select, failed: (error) => say(wordsOf(error), true) });

listenToControls();
onThemeChange(showAll);
void follow();

/** Asks what is new, for as long as the page is open. */
async function follow() {
  for (;;) {
    await orSay(refresh);
    if (!isFollowed) return;
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
    while (document.hidden) {
      await new Promise((resolve) => document.addEventListener('visibilitychange', resolve, { once: true }));
    }
  }
}

async function refresh() {
  const answer = await getSteps();
  const run = page.run === undefined || page.polls++ % POLLS_PER_RUN === 0 ? await getRun() : page.run;
  page.run = run;
  page.steps = answer.steps;
  showRun(run, answer);
  const step = state.step ?? page.table?.step ?? answer.steps.at(-1)?.step;
  const entry = answer.steps.find((other) => other.step === step);
  showSteps(page.steps, step, (chosen) => void choose(chosen));
  if (entry !== undefined && isDue(entry)) await load(entry);
  if (answer.steps.length === 0) {
    say(isLive(run) ? 'No step has begun yet. This page follows the run.' : 'This run has no steps.');
  } else if (entry === undefined) {
    say(`The run has no step ${step}.`);
  } else {
    say(page.table?.extent === undefined ? `Nothing has happened in step ${step} yet.` : nothingLeft());
  }
}

/** @param {import('#api').StepEntry} entry */
function isDue(entry) {
  if (page.table?.step !== entry.step) return true;
  const rested = performance.now() - page.loadedAt_ms >= REST * page.loadTook_ms;
  return page.version !== entry.version && (rested || entry.closed !== null);
}

/** @param {number} step */
async function choose(step) {
  // What was chosen of one step means nothing in another; how it is shown stays.
  state = { ...state, step, range: undefined, top: '', pin: undefined, selected: undefined };
  await orSay(refresh);
}

/**
 * Does something that asks the server, and says why where that fails. What is shown stays.
 * @param {() => Promise<void>} ask
 */
async function orSay(ask) {
  try {
    await ask();
  } catch (error) {
    byId('state', HTMLElement).textContent = '';
    say(wordsOf(error));
  }
}

/** @param {import('#api').StepEntry} entry */
async function load(entry) {
  const load = ++loads;
  const began = performance.now();
  // The samples first: with them the timeline is drawn, and the numbers come on top.
  const numbers = getNumbers(entry.step);
  numbers.catch(() => {});
  const table = await getTable(entry.step);
  if (load !== loads) return;
  const isOther = page.table?.step !== entry.step;
  Object.assign(page, { version: entry.version, table, numbers: isOther ? undefined : page.numbers });
  state.step = entry.step === page.steps.at(-1)?.step && state.step === undefined ? undefined : entry.step;
  filterRows();
  showRows();
  if (isOther) {
    lookAgain();
    runSearch(false);
  }
  showAll();
  await loadPasses(entry);
  page.numbers = await numbers;
  page.loadedAt_ms = performance.now();
  page.loadTook_ms = page.loadedAt_ms - began;
  if (load === loads) showAll();
}

/**
 * Forward passes are drawn along the rows of workers only, so they are not asked for before those are.
 * @param {{ step: number, version: number }} of
 */
async function loadPasses({ step, version }) {
  if (state.order.arrange === 'samples' || page.passesOf === `${step}/${version}`) return;
  page.passesOf = `${step}/${version}`;
  const passes = await getPasses(step);
  if (page.table?.step === step) timeline.showPasses(passes.count === 0 ? undefined : passes);
}

/** Filters anew, and says what is wrong with a filter that cannot be read; then the last that could holds. */
function filterRows() {
  const { table } = page;
  if (table === undefined) return;
  try {
    const test = compile(state.filter, table.fields);
    const rows = new Int32Array(table.count);
    let count = 0;
    for (let row = 0; row < table.count; row++) if (test(row)) rows[count++] = row;
    page.rows = rows.subarray(0, count);
    tellFilter('', state.filter === '' ? '' : `${number(count)} of ${number(table.count)}`);
  } catch (error) {
    if (!(error instanceof FilterError)) throw error;
    page.rows = Int32Array.from({ length: table.count }, (_, row) => row);
    tellFilter(`${error.message} (at ${error.at + 1})`, '');
  }
}

/** @param {string} error @param {string} count */
function tellFilter(error, count) {
  filterInput.setAttribute('aria-invalid', String(error !== ''));
  const told = byId('filter-told', HTMLElement);
  told.textContent = error === '' ? count : error;
  told.classList.toggle('bad', error !== '');
}

function showRows() {
  timeline.show(page.table, state.order, page.rows);
  minimap.show(page.table, page.rows);
  minimap.look(timeline.range);
}

/** Everything but the rows. */
function showAll() {
  const { dark } = readTheme();
  const { table, numbers } = page;
  showControls();
  timeline.colorBy(state.color);
  const pinned = state.pin && table && { ...state.pin, row: table.find(state.pin.sample) };
  timeline.mark({ selected: state.selected, pinned: pinned && pinned.row >= 0 ? pinned : undefined, isFound: (row) => page.found.has.has(row) });
  showSummary(numbers, table, dark, goTo);
  showLegend(table, timeline.legend, dark);
  showNumbers(numbers, dark, goTo);
  minimap.draw();
  showTab(dark);
  if (table !== undefined && pinned !== undefined && pinned.row >= 0) {
    void showDetails(table, pinned, dark, { pin, reveal, filter });
  } else {
    hideDetails();
  }
  if (table !== undefined && state.selected !== undefined && state.tab === 'timeline') {
    const { selected } = state;
    void showSelection(table, page.rows, selected, { dark, zoom: () => zoomTo(selected), close: () => select(undefined) });
  } else {
    hideSelection();
  }
  writeHash();
}

/** @param {boolean} dark */
function showTab(dark) {
  const { table, numbers } = page;
  for (const tab of tabs) {
    const isShown = tab.dataset.tab === state.tab;
    tab.setAttribute('aria-selected', String(isShown));
    tab.tabIndex = isShown ? 0 : -1;
    byId(`tab-${tab.dataset.tab}`, HTMLElement).hidden = !isShown;
  }
  if (table === undefined) return;
  if (state.tab === 'samples') {
    const rows = arrange(table, { ...state.order, arrange: 'samples' }, page.rows).index;
    const pinned = state.pin && table.find(state.pin.sample);
    showSamples({ table, order: state.order, rows, pinned, sort: sortBy, pin: (row) => pin({ row, part: 0, span: 0 }) });
  } else if (state.tab === 'charts') {
    showCharts({ table, rows: page.rows, field: state.field, other: state.other, choose: (fields) => change(fields), filter });
  } else if (state.tab === 'compare' && numbers !== undefined) {
    void showCompare({ of: { numbers, table }, steps: page.steps, against: state.against, dark, choose: (against) => change({ against }), pin: (row) => pin({ row, part: 0, span: 0 }) });
  }
}

/** @param {Partial<import('#hash').State>} changes */
function change(changes) {
  Object.assign(state, changes);
  showAll();
}

/** @param {Partial<import('#rows').Order>} order */
function reorder(order) {
  state.order = { ...state.order, ...order };
  showRows();
  // Another order begins at its top; higher or lower rows stay about what is in sight.
  if (order.density === undefined) timeline.look(state.range, '');
  const { table, version } = page;
  if (table !== undefined && version !== undefined) void orSay(() => loadPasses({ step: table.step, version }));
  showAll();
}

/** @param {string} sort  Again turns it round. */
function sortBy(sort) {
  reorder({ sort, falling: state.order.sort === sort && !state.order.falling });
}

/** @param {string} text */
function filter(text) {
  state.filter = text;
  filterInput.value = text;
  filterRows();
  showRows();
  showAll();
  say(nothingLeft());
}

/** @param {import('#timeline').Pin | undefined} pin */
function pin(pin) {
  change({ pin: pin && page.table && { sample: page.table.label(pin.row), part: pin.part, span: pin.span } });
}

/** @param {import('#viewport').Range | undefined} selected */
function select(selected) {
  change({ selected });
}

/** @param {import('#viewport').Range} range */
function zoomTo(range) {
  timeline.look(range);
  moved();
}

/** Goes to where the URL says. */
function lookAgain() {
  timeline.look(state.range, state.top);
  minimap.look(timeline.range);
}

/** @param {number} row */
function reveal(row) {
  if (state.tab !== 'timeline') change({ tab: 'timeline' });
  if (!page.rows.includes(row)) filter('');
  timeline.reveal(row);
}

/** @param {string} label */
function goTo(label) {
  const row = page.table?.find(label) ?? -1;
  if (row < 0) return;
  reveal(row);
  pin({ row, part: 0, span: 0 });
}

/** @param {boolean} go  To the first that is found. */
function runSearch(go) {
  const ask = ++searches;
  const { table } = page;
  const nothing = { rows: [], parts: [], total: 0, at: -1, has: new Set() };
  if (table === undefined || state.search === '') {
    page.found = nothing;
    tellFound('');
    showAll();
    return;
  }
  void orSay(async () => {
    const { rows, parts, total } = await search(table.step, state.search);
    if (ask !== searches) return;
    page.found = { rows, parts, total, at: -1, has: new Set(rows) };
    tellFound(total === 0 ? 'not found' : `${number(total)} found`);
    showAll();
    if (go) goToFound(1);
  });
}

/** @param {number} by  1 is the next, −1 the one before; those that the filter leaves, in the order of the table. */
function goToFound(by) {
  const { found } = page;
  const shown = new Set(page.rows);
  for (let tried = 0; tried < found.rows.length; tried++) {
    found.at = (found.at + by + found.rows.length) % found.rows.length;
    const row = at(found.rows, found.at);
    if (!shown.has(row)) continue;
    tellFound(`${number(found.at + 1)} of ${number(found.total)}`);
    timeline.reveal(row);
    pin({ row, part: at(found.parts, found.at), span: 0 });
    return;
  }
}

/** @param {string} text */
function tellFound(text) {
  byId('search-told', HTMLElement).textContent = text;
}

function listenToControls() {
  filterInput.value = state.filter;
  searchInput.value = state.search;
  filterInput.addEventListener('input', () => filter(filterInput.value));
  searchInput.addEventListener('input', () => {
    state.search = searchInput.value;
    clearTimeout(searchTimer);
    searchTimer = setTimeout(() => runSearch(false), SEARCH_MS);
  });
  // The first search makes the server read all texts: that is done by the time that something is typed.
  searchInput.addEventListener('focus', () => {
    if (page.table !== undefined) search(page.table.step, '').catch(() => {});
  });
  searchInput.addEventListener('keydown', (event) => {
    if (event.key === 'Enter') goToFound(event.shiftKey ? -1 : 1);
  });
  for (const input of [filterInput, searchInput]) {
    input.addEventListener('keydown', (event) => {
      if (event.key === 'Escape') input.blur();
    });
  }
  byId('search-next', HTMLButtonElement).addEventListener('click', () => goToFound(1));
  byId('search-before', HTMLButtonElement).addEventListener('click', () => goToFound(-1));
  controls.arrange.addEventListener('change', () => reorder({ arrange: parse(`#rows=${controls.arrange.value}`).order.arrange }));
  controls.sort.addEventListener('change', () => reorder({ sort: controls.sort.value }));
  controls.falling.addEventListener('click', () => reorder({ falling: !state.order.falling }));
  controls.density.addEventListener('change', () => reorder({ density: parse(`#density=${controls.density.value}`).order.density }));
  controls.color.addEventListener('change', () => change({ color: parse(`#color=${controls.color.value}`).color }));
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
  byId('fit', HTMLButtonElement).addEventListener('click', () => timeline.fit());
  byId('help-open', HTMLButtonElement).addEventListener('click', toggleHelp);
  byId('theme', HTMLButtonElement).addEventListener('click', toggleTheme);
  byId('toggle', HTMLButtonElement).addEventListener('click', toggleNumbers);
  addEventListener('hashchange', () => {
    const before = state.search;
    state = parse(location.hash);
    filterInput.value = state.filter;
    searchInput.value = state.search;
    if (page.table === undefined || (state.step ?? page.steps.at(-1)?.step) !== page.table.step) {
      void orSay(refresh);
      return;
    }
    filterRows();
    showRows();
    lookAgain();
    if (state.search !== before) runSearch(false);
    showAll();
  });
  listenToKeys(keys());
}

/** @returns {import('#keys').Key[]} */
function keys() {
  return [
    { keys: ['w'], shown: 'W', does: 'zoom in', act: () => timeline.step(0, 1) },
    { keys: ['s'], shown: 'S', does: 'zoom out', act: () => timeline.step(0, -1) },
    { keys: ['a', 'ArrowLeft'], shown: 'A ←', does: 'earlier', act: () => timeline.step(-1, 0) },
    { keys: ['d', 'ArrowRight'], shown: 'D →', does: 'later', act: () => timeline.step(1, 0) },
    { keys: ['ArrowUp'], shown: '↑', does: 'rows above', act: () => timeline.scroll(-1) },
    { keys: ['ArrowDown'], shown: '↓', does: 'rows below', act: () => timeline.scroll(1) },
    { keys: ['f'], shown: 'F', does: 'show all', act: () => timeline.fit() },
    { keys: ['z'], shown: 'Z', does: 'zoom to the selected time', act: () => state.selected && zoomTo(state.selected) },
    { keys: ['c'], shown: 'C', does: 'rows: roomy, compact, all in sight', act: toggleDensity },
    { keys: ['/'], shown: '/', does: 'search', act: () => searchInput.select() },
    { keys: ['e'], shown: 'E', does: 'edit the filter', act: () => filterInput.select() },
    { keys: ['n'], shown: 'N', does: 'next that was found', act: () => goToFound(1) },
    { keys: ['p'], shown: 'P', does: 'the one before', act: () => goToFound(-1) },
    { keys: ['m'], shown: 'M', does: 'numbers of the step', act: toggleNumbers },
    { keys: ['Escape'], shown: 'Esc', does: 'close details and selection', act: () => change({ pin: undefined, selected: undefined }) },
    { keys: ['?'], shown: '?', does: 'this help', act: toggleHelp },
  ];
}

function showControls() {
  const { table } = page;
  if (table !== undefined && controls.sort.dataset.step !== String(table.step)) {
    const names = ['start', 'duration', 'reward', 'tokens', 'prompt_tokens', 'requests', 'e2e_latency', 'queue_time', ...STAGES, 'user_time', 'worker', 'weight_version'];
    const options = names.flatMap((name) => table.fields.get(name) ?? []);
    controls.sort.replaceChildren(option('', 'group'), ...options.map(({ name, label }) => option(name, label)));
    controls.sort.dataset.step = String(table.step);
  }
  controls.arrange.value = state.order.arrange;
  controls.sort.value = state.order.sort;
  controls.falling.textContent = state.order.falling ? '↓' : '↑';
  controls.falling.setAttribute('aria-pressed', String(state.order.falling));
  controls.density.value = state.order.density;
  controls.color.value = state.color;
}

/** @param {string} value @param {string} label */
function option(value, label) {
  return Object.assign(element('option', '', label), { value });
}

/** The next of the densities. */
function toggleDensity() {
  const all = /** @type {const} */ (['roomy', 'compact', 'overview']);
  reorder({ density: all[(all.indexOf(state.order.density) + 1) % all.length] ?? 'roomy' });
}

/**
 * @param {import('#api').RunAnswer} run
 * @param {import('#api').StepsAnswer} answer
 */
function showRun(run, answer) {
  document.title = `${run.name} · Rollscope`;
  byId('run', HTMLElement).textContent = run.name;
  const told = byId('state', HTMLElement);
  const interrupted = run.writers.filter((writer) => writer.state === 'interrupted');
  told.textContent = isLive(run) ? 'live' : interrupted.length > 0 ? 'interrupted' : 'ended';
  told.className = `state ${told.textContent}`;
  const { profiles, user_records } = answer.dropped;
  const warnings = [
    profiles + user_records > 0 ? `records dropped and missing from the numbers: ${number(profiles + user_records)}` : '',
    ...answer.damage,
  ].filter((text) => text !== '');
  byId('warning', HTMLElement).textContent = warnings.join(' · ');
}

/** @param {import('#api').RunAnswer} run */
function isLive(run) {
  return isFollowed && run.writers.some((writer) => writer.state === 'live');
}

function toggleNumbers() {
  const panel = byId('numbers', HTMLElement);
  panel.hidden = !panel.hidden;
  byId('toggle', HTMLButtonElement).setAttribute('aria-expanded', String(!panel.hidden));
}

function nothingLeft() {
  return page.table !== undefined && page.table.count > 0 && page.rows.length === 0 && state.order.arrange === 'samples' ? 'No sample passes the filter.' : '';
}

/** @param {string} text @param {boolean} [isOver]  Over what is shown: a note at its foot. */
function say(text, isOver = page.table?.extent !== undefined) {
  message.textContent = text;
  message.hidden = text === '';
  message.classList.toggle('over', isOver);
}

/** @param {unknown} error */
function wordsOf(error) {
  return error instanceof Error ? error.message : String(error);
}

/** The view was moved. */
function moved() {
  state.range = timeline.chosen;
  state.top = timeline.top;
  minimap.look(timeline.range);
  writeHash();
}

/** Browsers limit how often the URL may change, so it follows a moving view at a distance. */
function writeHash() {
  clearTimeout(hashTimer);
  hashTimer = setTimeout(() => {
    if (page.table === undefined) return;
    const written = format({ ...state, step: page.table.step });
    if (written !== location.hash) history.replaceState(null, '', written);
  }, 200);
}

/** Lets a browser test read what is drawn. */
Object.defineProperty(window, 'rollscope', {
  value: Object.freeze({
    step: () => page.table?.step,
    samples: () => Array.from({ length: page.table?.count ?? 0 }, (_, row) => page.table?.label(row)),
    rows: () => Array.from(timeline.rows.index),
    range: () => ({ ...timeline.range }),
    shapes: () => timeline.shapes(),
    isWaiting: () => timeline.isWaiting,
    drawings: () => timeline.drawings,
    state: () => structuredClone({ ...initial(), ...state }),
  }),
});
