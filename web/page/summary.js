// The step at a glance: its figures, and where its time went as one bar and one sentence.

import { colorValue, partColor } from '#colors';
import { tailOf } from '#curve';
import { button, byId, element } from '#dom';
import { duration, number, percent } from '#format';

const section = byId('summary', HTMLElement);

/** How requests end that do not complete. @type {[string, string][]} */
const BAD_ENDS = [
  ['truncated', 'cut off'],
  ['failed', 'failed'],
  ['aborted', 'aborted'],
];

/** Findings that the page tells in other ways: by the bar, and by the panel of the slowest sample. */
const TOLD_ELSEWHERE = new Set(['where_time_went', 'slowest_sample']);
/** Findings that are in sight at first. */
const MOST_FINDINGS = 2;

/**
 * @param {import('#api').NumbersAnswer | undefined} answer
 * @param {import('#table').Table | undefined} table
 * @param {boolean} dark
 * @param {(sample: string) => void} find
 */
export function showSummary(answer, table, dark, find) {
  if (answer === undefined) {
    section.replaceChildren();
    return;
  }
  const title = element('h2', '', `Step ${answer.step}`);
  section.replaceChildren(
    element('div', 'facts', title, ...facts(answer, table).map(fact)),
    answer.breakdown.length === 0 ? '' : shareBar(answer.breakdown, dark),
    element('p', 'sentence', sentence(answer.sentence), ...slowest(answer, find)),
    findings(answer),
  );
}

/**
 * @param {import('#api').NumbersAnswer} answer
 * @param {(sample: string) => void} find
 */
function slowest({ slowest: sample }, find) {
  if (sample === null) return [];
  const show = button(sample.sample, () => find(sample.sample), { title: 'Show it in the timeline', className: 'link' });
  return [' · slowest sample ', show, ` ${duration(sample.duration_s * 1e9)}`];
}

/** @param {import('#api').NumbersAnswer} answer */
function findings(answer) {
  const found = (answer.findings ?? []).filter(({ check }) => !TOLD_ELSEWHERE.has(check));
  if (found.length === 0) return '';
  const items = found.map(({ explain }) => element('li', '', sentence(explain)));
  const list = element('ul', 'findings', ...items.slice(0, MOST_FINDINGS));
  if (items.length <= MOST_FINDINGS) return list;
  const rest = element('ul', 'findings', ...items.slice(MOST_FINDINGS));
  const more = element('details', '', element('summary', '', `${items.length - MOST_FINDINGS} more findings`), rest);
  return element('div', '', list, more);
}

/**
 * Parts of a whole, side by side.
 * @param {import('#api').PartRow[]} parts
 * @param {boolean} dark
 */
function shareBar(parts, dark) {
  const bar = element('div', 'share-bar');
  bar.setAttribute('role', 'img');
  bar.setAttribute('aria-label', parts.map(({ part, share }) => `${percent(share)} ${part}`).join(', '));
  for (const { part, share, time_s } of parts) {
    const piece = element('span', '');
    piece.style.flexGrow = String(share);
    const id = partColor(part);
    if (id !== undefined) piece.style.backgroundColor = colorValue(id, dark);
    piece.title = `${part}: ${percent(share)}, ${duration(time_s * 1e9)}`;
    bar.append(piece);
  }
  return bar;
}

/**
 * @param {import('#api').NumbersAnswer} answer
 * @param {import('#table').Table | undefined} table
 * @returns {[string, string, boolean?][]}  Name, value, whether it is bad news.
 */
function facts({ metrics, closed }, table) {
  /** @param {string} name */
  const metric = (name) => metrics[`perf/${name}`] ?? metrics[`rollout/${name}`] ?? metrics[`eval/${name}`];
  /** @type {[string, string, boolean?][]} */
  const found = [];
  /** @type {(name: string, value: number | undefined, tell: (value: number) => string) => void} */
  const put = (name, value, tell) => {
    if (value !== undefined) found.push([name, tell(value)]);
  };
  put(metric('samples') === 1 ? 'sample' : 'samples', metric('samples'), number);
  put(metric('request/count') === 1 ? 'request' : 'requests', metric('request/count'), number);
  put('rollout time', metric('rollout_time'), (value) => duration(value * 1e9));
  put('tokens/s', metric('tokens_per_sec'), number);
  put('reward', metric('reward/mean'), number);
  put('tail', table && tailOf(table)?.share, percent);
  put('truncated', metric('truncated_ratio'), percent);
  for (const [outcome, name] of BAD_ENDS) {
    const count = metric(`request/${outcome}`) ?? 0;
    if (count > 0) found.push([name, number(count), true]);
  }
  const odd = Object.entries(metrics).filter(([name]) => name.includes('/anomaly/'));
  const left = odd.reduce((sum, [, value]) => sum + value, 0);
  if (left > 0) found.push(['left out as implausible', number(left), true]);
  found.push([closed === null ? 'still open' : `closed: ${closed}`, '']);
  return found;
}

/** @param {[string, string, boolean?]} fact */
function fact([name, value, bad = false]) {
  return element('span', bad ? 'fact bad' : 'fact', element('b', '', value), ` ${name}`);
}

/** @param {string} text */
function sentence(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}
