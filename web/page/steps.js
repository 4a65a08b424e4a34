// The list of steps, and how they went over the run: a line for each of a few numbers.

import { button, byId, element } from '#dom';
import { counted, duration, number } from '#format';

const list = byId('steps', HTMLElement);
/** What the list was made from: made anew only when it differs, so that it stays still under the mouse. */
let shown = '';

const SVG = 'http://www.w3.org/2000/svg';
const [WIDTH, HEIGHT] = [92, 20];

/** @type {[keyof import('#api').ListedMetrics, string, (value: number) => string][]} */
const LINES = [
  ['rollout_time_s', 'time', (value) => duration(value * 1e9)],
  ['tokens_per_s', 'tokens/s', number],
  ['reward', 'reward', number],
  ['e2e_latency_p99_s', 'p99', (value) => duration(value * 1e9)],
];

/**
 * @param {import('#api').StepEntry[]} steps
 * @param {number | undefined} current
 * @param {(step: number) => void} choose
 */
export function showSteps(steps, current, choose) {
  const state = JSON.stringify([steps, current]);
  if (state === shown) return;
  shown = state;
  const focused = document.activeElement instanceof HTMLElement ? document.activeElement.dataset.step : undefined;
  const longest = Math.max(...steps.map(({ metrics }) => metrics?.rollout_time_s ?? 0), Number.MIN_VALUE);
  const buttons = steps.map((entry) => stepButton(entry, { current: entry.step === current, longest }, choose));
  list.replaceChildren(lines(steps, current), ...buttons);
  buttons.find((made) => made.dataset.step === focused)?.focus();
  buttons.find((made) => made.hasAttribute('aria-current'))?.scrollIntoView({ block: 'nearest' });
}

/**
 * @param {import('#api').StepEntry[]} steps
 * @param {number | undefined} current
 */
function lines(steps, current) {
  const made = element('div', 'sparklines');
  for (const [name, label, tell] of LINES) {
    const values = steps.map(({ metrics }) => metrics?.[name] ?? NaN);
    if (values.filter((value) => !Number.isNaN(value)).length < 2) continue;
    const at = steps.findIndex(({ step }) => step === current);
    const value = values[at] ?? NaN;
    const line = element('div', 'sparkline', element('span', '', label), sparkline(values, at));
    line.append(element('b', '', Number.isNaN(value) ? '' : tell(value)));
    made.append(line);
  }
  return made;
}

/**
 * @param {number[]} values  NaN where there is none.
 * @param {number} current
 */
function sparkline(values, current) {
  const there = values.filter((value) => !Number.isNaN(value));
  const [least, most] = [Math.min(...there), Math.max(...there)];
  /** @param {number} value @param {number} index */
  const point = (value, index) => {
    const x = 2 + (index / Math.max(values.length - 1, 1)) * (WIDTH - 4);
    const y = most === least ? HEIGHT / 2 : HEIGHT - 3 - ((value - least) / (most - least)) * (HEIGHT - 6);
    return [x, y];
  };
  const svg = document.createElementNS(SVG, 'svg');
  svg.setAttribute('viewBox', `0 0 ${WIDTH} ${HEIGHT}`);
  svg.setAttribute('aria-hidden', 'true');
  const line = document.createElementNS(SVG, 'polyline');
  const points = values.flatMap((value, index) => (Number.isNaN(value) ? [] : [point(value, index).map((c) => c.toFixed(1)).join()]));
  line.setAttribute('points', points.join(' '));
  svg.append(line);
  const value = values[current] ?? NaN;
  if (!Number.isNaN(value)) {
    const dot = document.createElementNS(SVG, 'circle');
    const [x, y] = point(value, current);
    for (const [name, of] of [['cx', x], ['cy', y], ['r', 2.5]]) dot.setAttribute(String(name), String(of));
    svg.append(dot);
  }
  return svg;
}

/**
 * @param {import('#api').StepEntry} entry
 * @param {{ current: boolean, longest: number }} among
 * @param {(step: number) => void} choose
 */
function stepButton(entry, among, choose) {
  const time = entry.metrics?.rollout_time_s ?? undefined;
  const state = entry.closed === null ? element('span', 'open', 'open') : element('span', 'time', time === undefined ? '' : duration(time * 1e9));
  const made = button('', () => choose(entry.step));
  made.append(element('b', '', `Step ${entry.step}`), state, element('small', '', counted(entry.samples, 'sample')));
  if (time !== undefined) {
    const bar = element('i', 'bar-of-time');
    bar.style.width = `${(time / among.longest) * 100}%`;
    made.append(bar);
  }
  made.dataset.step = String(entry.step);
  if (among.current) made.setAttribute('aria-current', 'true');
  return made;
}
