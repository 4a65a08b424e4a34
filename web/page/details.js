// The panel beside the timeline: one sample with its stages, its requests and its neighbours, and of the span that is
// pinned every attribute.

import { getSample, getSamplePasses } from '#api';
import { quantile, valuesOf } from '#bins';
import { colorValue, spanColor } from '#colors';
import { button, byId, element, headCell, swatch, wordsOf } from '#dom';
import { counted, duration, number, percent, tellAttribute, tellField } from '#format';
import { Latest } from '#latest';
import { STAGES } from '#table';
import { TEXTS, likelihood, turnsOf } from '#texts';

const panel = byId('details', HTMLElement);

/**
 * @typedef {import('#timeline').Pin} Pin
 *
 * @typedef {Object} Actions
 * @property {(pin: Pin | undefined) => void} pin
 * @property {(row: number) => void} reveal
 * @property {(filter: string) => void} filter
 */

const asked = new Latest();

/**
 * @param {import('#table').Table} table
 * @param {Pin} pin
 * @param {boolean} dark
 * @param {Actions} actions
 */
export async function showDetails(table, pin, dark, actions) {
  const isLast = asked.begin();
  panel.hidden = false;
  let answer;
  try {
    answer = await getSample(table.step, pin.row);
  } catch (error) {
    if (isLast()) panel.replaceChildren(head(table, pin, actions), element('p', 'bad', wordsOf(error)));
    return;
  }
  if (!isLast()) return;
  const span = answer.parts[pin.part - 1]?.[pin.span];
  const passes = element('section', '');
  passes.hidden = true;
  panel.replaceChildren(
    head(table, pin, actions),
    ...(span === undefined ? [] : [spanSection(answer, pin, span, dark)]),
    sampleSection(table, pin.row, answer.mark),
    ...conversation(answer, pin, actions),
    stageSection(table, pin.row, dark),
    partSection(answer, pin, dark, actions),
    passes,
    ...groupSection(table, pin, actions),
  );
  // They are known of few runs, and a file need not hold them: what is not known is not told.
  const calls = await getSamplePasses(table.step, pin.row).catch(() => []);
  if (!isLast() || calls.length === 0) return;
  passes.replaceChildren(...passSection(calls, pin, actions));
  passes.hidden = false;
}

export function hideDetails() {
  asked.begin();
  panel.hidden = true;
  panel.replaceChildren();
}

/**
 * @param {import('#table').Table} table
 * @param {Pin} pin
 * @param {Actions} actions
 */
function head(table, pin, actions) {
  const close = button('×', () => actions.pin(undefined), { title: 'Close' });
  const link = button('link', () => void copy(location.href, link), { title: 'Copy a link to this' });
  const show = button('show', () => actions.reveal(pin.row), { title: 'Show it in the timeline' });
  return element('header', '', element('h2', '', table.label(pin.row)), show, link, close);
}

/**
 * @param {import('#api').SampleAnswer} answer
 * @param {Pin} pin
 * @param {import('#api').SpanDetails} span
 * @param {boolean} dark
 */
function spanSection(answer, pin, span, dark) {
  // A stage has few attributes of its own: its leg's say more.
  const part = answer.parts[pin.part - 1] ?? [];
  const leg = span.attrs.length > 0 ? undefined : part.slice(0, pin.span).findLast(({ attrs }) => attrs.length > 0);
  const lines = (leg ?? span).attrs.map(([name, value]) => `${name}: ${value}`);
  const all = button('copy', () => void copy(lines.join('\n'), all), { title: 'Copy all attributes' });
  const color = colorValue(spanColor(span.lane, span.name), dark);
  const side = span.lane === 'request' || span.lane === 'user' ? '' : `${span.lane} `;
  const title = element('h3', '', swatch(color), `${side}${span.name}`, all);
  if (leg === undefined) return element('section', '', title, attributes(span));
  return element('section', '', title, element('p', 'of', `of its ${leg.name}`), attributes(leg));
}

/** @param {import('#api').SpanDetails} span */
function attributes({ attrs }) {
  const list = element('dl', 'attributes');
  for (const [name, value] of attrs) {
    if (value === '' || TEXTS.has(name)) continue;
    const told = typeof value === 'string' ? value : tellAttribute(name, value);
    const entry = element('dd', '', told);
    if (typeof value === 'number') entry.title = String(value);
    list.append(element('dt', '', name), entry);
  }
  return list;
}

/**
 * @param {import('#table').Table} table
 * @param {number} row
 * @param {[string, import('#api').AttrValue][]} mark
 */
function sampleSection(table, row, mark) {
  const list = element('dl', 'attributes');
  for (const name of ['reward', 'duration', 'start', 'tokens', 'prompt_tokens', 'requests', 'attempts', 'worker', 'prefill_worker', 'weight_version']) {
    const field = table.fields.get(name);
    if (field === undefined) continue;
    const value = tellField(field, row);
    if (value !== '–') list.append(element('dt', '', field.label), element('dd', '', value));
  }
  for (const [name, value] of mark) {
    if (name === 'reward' || name === 'response_tokens' || name === 'truncated') continue;
    list.append(element('dt', '', name.replaceAll('_', ' ')), element('dd', '', tellAttribute(name, value)));
  }
  for (const name of ['truncated', 'failed', 'open', 'anomaly', 'evaluation']) {
    if (table.fields.get(name)?.number(row) === 1) list.append(element('dt', '', name), element('dd', name === 'evaluation' ? '' : 'bad', 'yes'));
  }
  return element('section', '', element('h3', '', 'Sample'), list);
}

/**
 * The stages of the sample as bars, with a mark at what they are in the middle sample of the step.
 * @param {import('#table').Table} table
 * @param {number} row
 * @param {boolean} dark
 */
function stageSection(table, row, dark) {
  const names = ['queue_time', ...STAGES, 'user_time'];
  const fields = names.flatMap((name) => table.fields.get(name) ?? []).filter(({ number }) => !Number.isNaN(number(row)));
  if (fields.length === 0) return '';
  const medians = fields.map(({ name }) => medianOf(table, name));
  const most = Math.max(...fields.map(({ number }) => number(row)), ...medians, Number.MIN_VALUE);
  const rows = fields.map((field, index) => {
    const bar = element('span', 'gauge');
    const fill = element('i', '');
    fill.style.width = `${(field.number(row) / most) * 100}%`;
    fill.style.backgroundColor = colorValue(COLOR_OF[field.name] ?? field.name.replace('_', '/'), dark);
    const mark = element('b', '');
    mark.style.left = `${((medians[index] ?? 0) / most) * 100}%`;
    mark.title = `median of the step: ${duration((medians[index] ?? 0) * 1e9)}`;
    bar.append(fill, mark);
    return element('tr', '', element('th', '', field.label), element('td', 'wide', bar), element('td', '', tellField(field, row)));
  });
  return element('section', '', element('h3', '', 'Stages', element('small', '', ' with the step’s median')), element('table', 'stages', element('tbody', '', ...rows)));
}

/** @type {Record<string, string>} */
const COLOR_OF = { queue_time: 'queue', user_time: 'user' };

/** Of each table the medians of its fields: they take a sorting each. @type {WeakMap<import('#table').Table, Map<string, number>>} */
const medians = new WeakMap();

/**
 * @param {import('#table').Table} table
 * @param {string} name
 */
function medianOf(table, name) {
  const known = medians.get(table) ?? new Map();
  medians.set(table, known);
  const field = table.fields.get(name);
  if (field !== undefined && !known.has(name)) known.set(name, quantile(valuesOf(table.all(), field.number), 0.5));
  return known.get(name) ?? 0;
}

/**
 * @param {import('#api').SampleAnswer} answer
 * @param {Pin} pin
 * @param {boolean} dark
 * @param {Actions} actions
 */
function partSection(answer, pin, dark, actions) {
  const items = answer.parts.map((part, index) => {
    const first = part[0];
    if (first === undefined) return '';
    const value = (/** @type {string} */ name) => part.flatMap(({ attrs }) => attrs).findLast(([other]) => other === name)?.[1];
    const about = [
      first.lane === 'user' ? '' : String(first.attrs.find(([name]) => name === 'outcome')?.[1] ?? ''),
      typeof value('completion_tokens') === 'number' ? `${number(Number(value('completion_tokens')))} tokens` : '',
      String(value('error') ?? ''),
    ];
    const made = button('', () => actions.pin({ row: pin.row, part: index + 1, span: 0 }));
    made.replaceChildren(swatch(colorValue(spanColor(first.lane, first.name), dark)), element('b', '', first.name), ` ${about.filter((text) => text !== '').join(' · ')}`);
    if (pin.part === index + 1) made.setAttribute('aria-current', 'true');
    return element('li', '', made);
  });
  if (answer.left_out > 0) items.push(element('li', '', `and ${number(answer.left_out)} more, which are in the run`));
  return element('section', '', element('h3', '', 'Requests and spans'), element('ol', 'parts', ...items));
}

/**
 * The forward passes that the sample's requests sat in, call by call.
 * @param {import('#api').CallPasses[]} calls
 * @param {Pin} pin
 * @param {Actions} actions
 */
function passSection(calls, pin, actions) {
  const items = calls.map((call) => {
    const open = button(`${call.role} on ${call.worker.replace(/^https?:\/\//, '')}`, () => actions.pin({ row: pin.row, part: call.part, span: 0 }), { className: 'link' });
    const told = [
      `${call.is_exact ? '' : 'at most '}${number(call.count)} ${call.count === 1 ? 'pass' : 'passes'}`,
      `${duration(call.busy_s * 1e9)} of computing`,
      `${number(call.mean_batch)} requests in one`,
      `slowest ${duration(call.slowest_s * 1e9)}`,
      call.shared_with > 0 ? `shared with ${counted(call.shared_with, 'request')}` : '',
      call.lost > 0 ? `${number(call.not_found)} not found, at least ${number(call.lost)} of them lost` : '',
    ];
    return element('li', '', open, ` ${told.filter((text) => text !== '').join(' · ')}`);
  });
  return [element('h3', '', 'Forward passes'), element('ol', 'parts', ...items)];
}

/**
 * The turns of the sample as they were said, the generated tokens in the colour of how likely each was.
 * @param {import('#api').SampleAnswer} answer
 * @param {Pin} pin
 * @param {Actions} actions
 */
function conversation(answer, pin, actions) {
  const turns = turnsOf(answer.parts);
  if (turns.length === 0) return [];
  const said = turns.flatMap(({ part, prompt, output, tokens }, index) => {
    const open = button(`turn ${index + 1}`, () => actions.pin({ row: pin.row, part, span: 0 }), { className: 'link' });
    const text = tokens.length === 0 ? [output] : tokens.map(tokenElement);
    return [
      element('dt', '', open, prompt === '' ? '' : ' was asked'),
      prompt === '' ? '' : element('dd', 'prompt', prompt),
      element('dt', '', 'and answered'),
      element('dd', 'output', ...text),
    ];
  });
  const scale = element('p', 'of scale', 'tokens by how likely they were: ', ...['< 2 %', '< 10 %', '< 50 %', '< 90 %', 'more'].map((label, step) => element('span', `token p${step}`, label)));
  return [element('section', 'conversation', element('h3', '', 'Conversation'), scale, element('dl', '', ...said))];
}

/** @param {import('#texts').Token} token */
function tokenElement({ text, logprob }) {
  const made = element('span', logprob === undefined ? 'token' : `token p${likelihood(logprob)}`, text);
  if (logprob !== undefined) made.title = `log-probability ${logprob.toPrecision(3)}, ${percent(Math.exp(logprob))}`;
  return made;
}

/**
 * The samples of the same prompt.
 * @param {import('#table').Table} table
 * @param {Pin} pin
 * @param {Actions} actions
 */
function groupSection(table, pin, actions) {
  const group = table.group(pin.row);
  if (group < 0) return [];
  // Rows of a group stand side by side in the table.
  const rows = [];
  for (let row = pin.row; row >= 0 && table.group(row) === group; row--) rows.unshift(row);
  for (let row = pin.row + 1; row < table.count && table.group(row) === group; row++) rows.push(row);
  const name = table.fields.get('group')?.text(pin.row) ?? '';
  const [sample, reward, length, tokens] = ['sample', 'reward', 'duration', 'tokens'].map((field) => table.fields.get(field));
  const lines = rows.map((row) => {
    const open = button(sample?.text(row) ?? '', () => actions.pin({ row, part: 0, span: 0 }), { className: 'link' });
    if (row === pin.row) open.setAttribute('aria-current', 'true');
    const values = [reward, length, tokens].map((field) => element('td', '', field === undefined ? '' : tellField(field, row)));
    return element('tr', row === pin.row ? 'current' : '', element('th', '', open), ...values);
  });
  const headings = ['sample', 'reward', 'duration', 'tokens'].map(headCell);
  const only = button('only', () => actions.filter(`group = ${JSON.stringify(name)}`), { title: 'Show only this group' });
  const table_ = element('table', 'neighbours', element('thead', '', element('tr', '', ...headings)), element('tbody', '', ...lines));
  return [element('section', '', element('h3', '', `Group ${name}`, only), table_)];
}

/**
 * @param {string} text
 * @param {HTMLButtonElement} from
 */
async function copy(text, from) {
  const before = from.textContent;
  try {
    await navigator.clipboard.writeText(text);
    from.textContent = 'copied';
  } catch {
    from.textContent = 'not allowed';
  }
  setTimeout(() => {
    from.textContent = before;
  }, 1200);
}
