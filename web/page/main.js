// The page: keeps what is shown in step with the run and with the URL.

import { getNumbers, getRun, getSamples, getSteps } from '#api';
import { byId } from '#dom';
import { number } from '#format';
import { format, parse } from '#hash';
import { showLegend } from '#legend';
import { showNumbers } from '#numbers';
import { showSteps } from '#steps';
import { showSummary } from '#summary';
import { onThemeChange, readTheme } from '#theme';
import { Timeline } from '#timeline';

const POLL_MS = 1000;
/** The run itself is asked for each time that its steps were asked for this often. */
const POLLS_PER_RUN = 5;

const page = {
  /** @type {import('#api').RunAnswer | undefined} */
  run: undefined,
  polls: 0,
  /** @type {import('#api').StepEntry[]} */
  steps: [],
  /** The step that is shown. @type {number | undefined} */
  step: undefined,
  /** How much of it is shown. @type {number | undefined} */
  version: undefined,
  /** @type {import('#api').NumbersAnswer | undefined} */
  numbers: undefined,
  /** @type {import('#model').StepModel | undefined} */
  model: undefined,
};

const timeline = new Timeline(() => writeHash());
const message = byId('message', HTMLElement);

/** Where the URL says to look, until the step is there. */
let wanted = parse(location.hash);
/** Counts what is asked for, so that a late answer does not replace a newer one. */
let loads = 0;
/** @type {number | undefined} */
let hashTimer;

byId('fit', HTMLButtonElement).addEventListener('click', () => timeline.fit());
byId('toggle', HTMLButtonElement).addEventListener('click', toggleNumbers);
addEventListener('keydown', (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === 'f') timeline.fit();
  if (event.key === 'n') toggleNumbers();
});
addEventListener('hashchange', () => {
  wanted = parse(location.hash);
  if (wanted.step !== undefined && wanted.step !== page.step) void orSay(refresh);
  else timeline.look(wanted.range, wanted.row);
});
onThemeChange(showPanels);
void follow();

/** Asks what is new, for as long as the page is open. */
async function follow() {
  for (;;) {
    await orSay(refresh);
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
  const step = wanted.step ?? page.step ?? answer.steps.at(-1)?.step;
  const entry = answer.steps.find((other) => other.step === step);
  if (entry !== undefined && (page.version !== entry.version || page.step !== entry.step)) await load(entry);
  showSteps(page.steps, step, (chosen) => void choose(chosen));
  if (answer.steps.length === 0) {
    say(isLive(run) ? 'No step has begun yet. This page follows the run.' : 'This run has no steps.');
  } else if (entry === undefined) {
    say(`The run has no step ${step}.`);
  } else {
    say(page.model?.extent === undefined ? `Nothing has happened in step ${step} yet.` : '');
  }
}

/** @param {number} step */
async function choose(step) {
  wanted = { step, range: undefined, row: 0 };
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
    say(error instanceof Error ? error.message : String(error));
  }
}

/** @param {import('#api').StepEntry} entry */
async function load(entry) {
  const load = ++loads;
  const [numbers, model] = await Promise.all([getNumbers(entry.step), getSamples(entry.step)]);
  if (load !== loads) return;
  const isOther = page.step !== entry.step;
  Object.assign(page, { step: entry.step, version: entry.version, numbers, model });
  timeline.show(model);
  if (isOther) timeline.look(wanted.range, wanted.row);
  showPanels();
  writeHash();
}

function showPanels() {
  const { dark } = readTheme();
  showSummary(page.numbers, dark);
  showLegend(page.model, dark);
  showNumbers(page.numbers, dark, (sample) => timeline.find(sample));
}

/**
 * @param {import('#api').RunAnswer} run
 * @param {import('#api').StepsAnswer} answer
 */
function showRun(run, answer) {
  document.title = `${run.name} · Rollscope`;
  byId('run', HTMLElement).textContent = run.name;
  const state = byId('state', HTMLElement);
  const interrupted = run.writers.filter((writer) => writer.state === 'interrupted');
  state.textContent = isLive(run) ? 'live' : interrupted.length > 0 ? 'interrupted' : 'ended';
  state.className = `state ${state.textContent}`;
  const { profiles, user_records } = answer.dropped;
  const warnings = [
    profiles + user_records > 0 ? `records dropped and missing from the numbers: ${number(profiles + user_records)}` : '',
    ...answer.damage,
  ].filter((text) => text !== '');
  byId('warning', HTMLElement).textContent = warnings.join(' · ');
}

/** @param {import('#api').RunAnswer} run */
function isLive(run) {
  return run.writers.some((writer) => writer.state === 'live');
}

function toggleNumbers() {
  const panel = byId('numbers', HTMLElement);
  panel.hidden = !panel.hidden;
  byId('toggle', HTMLButtonElement).setAttribute('aria-expanded', String(!panel.hidden));
}

/** @param {string} text */
function say(text) {
  message.textContent = text;
  message.hidden = text === '';
  message.classList.toggle('over', page.model?.extent !== undefined);
}

/** Browsers limit how often the URL may change, so it follows a moving view at a distance. */
function writeHash() {
  clearTimeout(hashTimer);
  hashTimer = setTimeout(() => {
    if (page.step === undefined) return;
    const state = { step: page.step, range: timeline.chosen, row: timeline.row };
    history.replaceState(null, '', format(state));
  }, 200);
}

/** Lets a browser test read what is drawn. */
Object.defineProperty(window, 'rollscope', {
  value: Object.freeze({
    step: () => page.step,
    samples: () => [...(page.model?.samples.label ?? [])],
    range: () => ({ ...timeline.range }),
    shapes: () => timeline.shapes(),
  }),
});
