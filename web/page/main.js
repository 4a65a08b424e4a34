// The page: keeps what is shown in step with the run, with what the user asks for, and with the URL.

import { getNumbers, getRun, getSteps, getTable, isFollowed } from '#api';
import { showCharts } from '#charts';
import { othersOf, showCompare } from '#compare';
import { listenToControls, showControls, tellFilter } from '#controls';
import { hideDetails, showDetails } from '#details';
import { wordsOf } from '#dom';
import { FilterError, compile } from '#filter';
import { Find } from '#find';
import { number } from '#format';
import { format, initial, parse } from '#hash';
import { Latest, whenChanged } from '#latest';
import { showLegend } from '#legend';
import { Minimap } from '#minimap';
import { showNumbers } from '#numbers';
import { arrange } from '#rows';
import { forgetState, isLive, say, showRun } from '#runbar';
import { showSamples } from '#samples';
import { hideSelection, showSelection } from '#selection';
import { showSteps } from '#steps';
import { showSummary } from '#summary';
import { onThemeChange, readTheme } from '#theme';
import { Timeline } from '#timeline';

const POLL_MS = 500;
/** The run itself is asked for each time that its steps were asked for this often. */
const POLLS_PER_RUN = 8;
/** A step that takes long to load is not loaded again before it has been shown for as long. */
const REST = 2;
/** Browsers limit how often the URL may change, so it follows a moving view at a distance. */
const HASH_MS = 200;

/** What the user asks for: the whole of the URL. */
let state = parse(location.hash);

const page = {
  /** @type {import('#api').RunAnswer | undefined} */
  run: undefined,
  polls: 0,
  /** @type {import('#api').StepEntry[]} */
  steps: [],
  /** Steps of the run that this one is compared with. @type {import('#api').StepEntry[]} */
  otherSteps: [],
  /** How much of the step is shown. @type {number | undefined} */
  version: undefined,
  /** @type {import('#api').NumbersAnswer | undefined} */
  numbers: undefined,
  /** @type {import('#table').Table | undefined} */
  table: undefined,
  /** Samples that the filter leaves, by row of the table. @type {Int32Array} */
  rows: new Int32Array(),
  loadedAt_ms: 0,
  loadTook_ms: 0,
};

const loads = new Latest();
/** @type {number | undefined} */
let hashTimer;
/** The URL's state as it was read or written last: while it is another, the user's is still to be read. */
let known = location.hash;

const minimap = new Minimap((range) => zoomTo(range));
const timeline = new Timeline({ moved, pinned: pin, selected: (selected) => change({ selected }), failed: (error) => say(wordsOf(error), true), passesCame: showTheLegend });
const find = new Find({
  table: () => page.table,
  rows: () => page.rows,
  changed: markRows,
  goTo: ({ row, part }) => {
    timeline.reveal(row);
    pin({ row, part, span: 0 });
  },
  failed: (error) => tell(wordsOf(error)),
});

listenToControls({
  state: () => state,
  change,
  reorder,
  filter,
  search: (text) => {
    state.search = text;
    find.run(text);
    writeHash();
  },
  warmSearch: () => find.warm(),
  goToFound: (by) => find.go(by),
  zoomToSelected: () => state.selected && zoomTo(state.selected),
  timeline,
});
onThemeChange(showAll);
addEventListener('hashchange', followHash);
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
  const isRunDue = page.run === undefined || page.polls++ % POLLS_PER_RUN === 0;
  const [answer, run] = await Promise.all([getSteps(), isRunDue ? getRun() : page.run]);
  if (run === undefined) return;
  if (run.against && page.otherSteps.length === 0) page.otherSteps = (await getSteps('other')).steps;
  page.run = run;
  page.steps = answer.steps;
  showRun(run, answer);
  const step = state.step ?? page.table?.step ?? answer.steps.at(-1)?.step;
  const entry = answer.steps.find((other) => other.step === step);
  showSteps(page.steps, step, (chosen) => void choose(chosen));
  if (entry !== undefined && isDue(entry)) await load(entry);
  if (entry !== undefined && entry.step === page.table?.step) timeline.usePasses(entry.passes);
  if (answer.steps.length === 0) {
    tell(isLive(run) ? 'No step has begun yet. This page follows the run.' : 'This run has no steps.');
  } else if (entry === undefined) {
    tell(`The run has no step ${step}.`);
  } else {
    tell(page.table?.extent === undefined ? `Nothing has happened in step ${step} yet.` : nothingLeft());
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
    forgetState();
    tell(wordsOf(error));
  }
}

/** @param {import('#api').StepEntry} entry */
async function load(entry) {
  const isLast = loads.begin();
  const began = performance.now();
  // The samples first: with them the timeline is drawn, and the numbers come on top.
  const numbers = getNumbers(entry.step);
  numbers.catch(() => {});
  const table = await getTable(entry.step);
  if (!isLast()) return;
  const isOther = page.table?.step !== entry.step;
  Object.assign(page, { version: entry.version, table, numbers: isOther ? undefined : page.numbers });
  state.step = entry.step === page.steps.at(-1)?.step && state.step === undefined ? undefined : entry.step;
  filterRows();
  showRows();
  if (isOther) {
    lookAgain();
    find.run(state.search);
  }
  timeline.usePasses(entry.passes);
  showAll();
  const told = await numbers;
  if (!isLast()) return;
  page.numbers = told;
  page.loadedAt_ms = performance.now();
  page.loadTook_ms = page.loadedAt_ms - began;
  showAll();
}

/** Filters anew, and says what is wrong with a filter that cannot be read; then all rows are shown. */
function filterRows() {
  const { table } = page;
  if (table === undefined) return;
  const rows = new Int32Array(table.count);
  try {
    const test = compile(state.filter, table.fields);
    let count = 0;
    for (let row = 0; row < table.count; row++) if (test(row)) rows[count++] = row;
    page.rows = rows.subarray(0, count);
    tellFilter(state.filter === '' ? '' : `${number(count)} of ${number(table.count)}`, false);
  } catch (error) {
    if (!(error instanceof FilterError)) throw error;
    page.rows = rows.map((_, row) => row);
    tellFilter(`${error.message} (at ${error.at + 1})`, true);
  }
}

function showRows() {
  timeline.show(page.table, state.order, page.rows);
  minimap.show(page.table, page.rows);
  minimap.look(timeline.range);
}

/** What depends on little is shown when that changes, and not with each change of anything. */
const panels = {
  marks: whenChanged((/** @type {number | undefined} */ row, /** @type {number} */ part, /** @type {number} */ span, /** @type {(row: number) => boolean} */ isFound) => {
    timeline.mark({ pinned: row === undefined ? undefined : { row, part, span }, isFound });
  }),
  color: whenChanged((/** @type {import('#paint').ColorBy} */ color) => timeline.colorBy(color)),
  selected: whenChanged((/** @type {import('#viewport').Range | undefined} */ selected) => timeline.select(selected)),
  summary: whenChanged((/** @type {typeof page.numbers} */ numbers, /** @type {typeof page.table} */ table, /** @type {boolean} */ dark) => showSummary(numbers, table, dark, goTo)),
  legend: whenChanged((/** @type {typeof page.table} */ table, /** @type {import('#paint').ColorBy} */ _color, /** @type {boolean} */ dark, /** @type {number} */ unplaced) => showLegend(table, timeline.legend, dark, unplaced)),
  numbers: whenChanged((/** @type {typeof page.numbers} */ numbers, /** @type {boolean} */ dark) => showNumbers(numbers, dark, goTo)),
  minimap: whenChanged((/** @type {boolean} */ _dark) => minimap.draw()),
  details: whenChanged((/** @type {typeof page.table} */ table, /** @type {number | undefined} */ row, /** @type {number} */ part, /** @type {number} */ span, /** @type {boolean} */ dark) => {
    if (table === undefined || row === undefined) hideDetails();
    else void showDetails(table, { row, part, span }, dark, { pin, reveal, filter });
  }),
  selection: whenChanged((/** @type {typeof page.table} */ table, /** @type {Int32Array} */ rows, /** @type {import('#viewport').Range | undefined} */ selected, /** @type {boolean} */ dark) => {
    if (table === undefined || selected === undefined) hideSelection();
    else void showSelection(table, rows, selected, { dark, zoom: () => zoomTo(selected), close: () => change({ selected: undefined }) });
  }),
  samples: whenChanged((/** @type {typeof page.table} */ table, /** @type {Int32Array} */ rows, /** @type {import('#rows').Order} */ order, /** @type {number | undefined} */ pinned) => {
    if (table === undefined) return;
    const sorted = arrange(table, { ...order, arrange: 'samples' }, rows).index;
    showSamples({ table, order, rows: sorted, pinned, sort: sortBy, pin: pinSample });
  }),
  charts: whenChanged((/** @type {typeof page.table} */ table, /** @type {Int32Array} */ rows, /** @type {string} */ field, /** @type {string} */ other, /** @type {boolean} */ _dark) => {
    if (table !== undefined) showCharts({ table, rows, field, other, choose: change, filter });
  }),
  compare: whenChanged((/** @type {typeof page.numbers} */ numbers, /** @type {typeof page.table} */ table, /** @type {string} */ against, /** @type {string} */ _others, /** @type {boolean} */ dark) => {
    if (numbers === undefined || table === undefined) return;
    const others = othersOf(numbers.step, page.steps, page.otherSteps);
    void showCompare({ of: { numbers, table }, others, against, dark, choose: (against) => change({ against }), pin: pinSample });
  }),
};

/** Everything but the rows. */
function showAll() {
  const { dark } = readTheme();
  const { table, numbers, rows } = page;
  const { pin, selected, tab, color, order } = state;
  showControls(table, state);
  panels.color(color);
  markRows();
  panels.selected(selected);
  panels.summary(numbers, table, dark);
  showTheLegend();
  panels.numbers(numbers, dark);
  panels.minimap(dark);
  const row = pinnedRow();
  if (tab === 'samples') panels.samples(table, rows, order, row);
  if (tab === 'charts') panels.charts(table, rows, state.field, state.other, dark);
  if (tab === 'compare') panels.compare(numbers, table, state.against, [...page.steps, ...page.otherSteps].map(({ step }) => step).join(), dark);
  panels.details(table, row, pin?.part ?? 0, pin?.span ?? 0, dark);
  panels.selection(table, rows, tab === 'timeline' ? selected : undefined, dark);
  writeHash();
}

function showTheLegend() {
  panels.legend(page.table, state.color, readTheme().dark, timeline.passes?.unplaced ?? 0);
}

/** Which rows stand out. */
function markRows() {
  panels.marks(pinnedRow(), state.pin?.part ?? 0, state.pin?.span ?? 0, find.isFound);
}

function pinnedRow() {
  const row = state.pin === undefined ? -1 : (page.table?.find(state.pin.sample) ?? -1);
  return row < 0 ? undefined : row;
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
  showAll();
}

/** @param {string} sort  Again turns it round. */
function sortBy(sort) {
  reorder({ sort, falling: state.order.sort === sort && !state.order.falling });
}

/** @param {string} text */
function filter(text) {
  state.filter = text;
  filterRows();
  showRows();
  showAll();
  tell(nothingLeft());
}

/** @param {import('#timeline').Pin | undefined} pin */
function pin(pin) {
  change({ pin: pin && page.table && { sample: page.table.label(pin.row), part: pin.part, span: pin.span } });
}

/** @param {number} row */
function pinSample(row) {
  pin({ row, part: 0, span: 0 });
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
  pinSample(row);
}

function followHash() {
  known = location.hash;
  const before = state.search;
  state = parse(location.hash);
  if (page.table === undefined || (state.step ?? page.steps.at(-1)?.step) !== page.table.step) {
    void orSay(refresh);
    return;
  }
  filterRows();
  showRows();
  lookAgain();
  if (state.search !== before) find.run(state.search);
  showAll();
}

/** @param {string} text */
function tell(text) {
  say(text, page.table?.extent !== undefined);
}

function nothingLeft() {
  return page.table !== undefined && page.table.count > 0 && page.rows.length === 0 && state.order.arrange === 'samples' ? 'No sample passes the filter.' : '';
}

/** The view was moved. */
function moved() {
  state.range = timeline.chosen;
  state.top = timeline.top;
  minimap.look(timeline.range);
  writeHash();
}

function writeHash() {
  clearTimeout(hashTimer);
  hashTimer = setTimeout(() => {
    if (page.table === undefined || location.hash !== known) return;
    history.replaceState(null, '', format({ ...state, step: page.table.step }));
    known = location.hash;
  }, HASH_MS);
}

/** Lets a browser test read what is drawn. */
Object.defineProperty(window, 'rollscope', {
  value: Object.freeze({
    step: () => page.table?.step,
    samples: () => Array.from({ length: page.table?.count ?? 0 }, (_, row) => page.table?.label(row)),
    rows: () => Array.from(timeline.rows.index),
    value: (/** @type {string} */ field, /** @type {number} */ row) => page.table?.fields.get(field)?.number(row),
    text: (/** @type {string} */ field, /** @type {number} */ row) => page.table?.fields.get(field)?.text(row),
    range: () => ({ ...timeline.range }),
    shapes: () => timeline.shapes(),
    passes: () => timeline.passes?.count ?? 0,
    isWaiting: () => timeline.isWaiting,
    drawings: () => timeline.drawings,
    state: () => structuredClone({ ...initial(), ...state }),
  }),
});
