// The page beside a run that is being written: what is new appears, and the view stays where the user put it. What is
// written is hostile: markup in names and ids, values that no number holds, times that are far off, spans without an
// end, one attribute of megabytes.

import assert from 'node:assert/strict';

import { duration, number, percent } from '../web/page/format.js';
import { drag, eventually, launch, open, rangeOf, settled, shapesOf, start, stateOf } from './browser.mjs';

const HOSTILE = '</script><script>window.bad = 1</script><img src=x onerror="window.bad = 1">\u202e';
const NOW_S = 1_767_225_600;

const run = `${process.cwd()}/run`;
const gateway = await start('gateway', '--record', run, '--host', '127.0.0.1', '--port', '0');
const browser = await launch();
const viewer = await start('view', run, '--no-open', '--listen', '127.0.0.1:0');
try {
  const { page, complaints } = await open(browser, viewer.url);
  await eventually('an empty run says so', () => page.textContent('#message'), (text) => text.includes('No step has begun yet'));

  await send(span('a', 'tool', 0, 40), span('a', 'open', 10, null), { ...sample('a'), reward: 0.5 });
  await page.waitForFunction(() => window.rollscope.samples().length === 1);
  await settled(page);
  await eventually('it is live', () => page.textContent('#state'), (text) => text === 'live');
  await page.locator('#scroller').focus();
  await page.keyboard.press('w');
  await drag(page, 60);
  const before = await rangeOf(page);

  await send(span(HOSTILE, HOSTILE, 20, 30, { [HOSTILE]: HOSTILE, big: 'x'.repeat(3_000_000), none: 9007199254740993 }));
  await send(span('far', 'far off', -1e8, -1e8 + 1), span('b', 'two at once', 12, 14), span('b', 'two at once', 13, 15));
  await page.waitForFunction(() => window.rollscope.samples().length === 4);
  await settled(page);
  assert.deepEqual(await rangeOf(page), before, 'the view stays where the user put it');

  await page.keyboard.press('f');
  await settled(page);
  const shapes = await shapesOf(page);
  const two = shapes.filter(({ name }) => name === 'two at once');
  assert.equal(two.length, 2);
  assert.notEqual(two[0].y, two[1].y, 'what overlaps stands on tracks of its own');
  assert.ok(shapes.some(({ name }) => name === 'open'), 'an open span is drawn');
  const { from, to } = await rangeOf(page);
  assert.ok(to - from < 3600e9, 'a clock that is off does not widen the view');

  await page.fill('#search', 'onerror');
  await eventually('hostile texts are found', () => page.textContent('#search-told'), (text) => /^\d+ found$/.test(text));
  await page.keyboard.press('Enter');
  await eventually('and pinned', () => stateOf(page), ({ pin }) => pin?.sample.includes('</script>'));
  await eventually('and told as they are', () => page.textContent('#details'), (text) => text.includes('onerror') && text.includes('Requests and spans'));
  await page.keyboard.press('Escape');
  await page.fill('#filter', `sample = ${JSON.stringify(HOSTILE)}`);
  assert.equal(await page.evaluate(() => window.rollscope.rows().length), 1);
  for (const tab of ['samples', 'charts', 'compare', 'timeline']) await page.click(`[data-tab=${tab}]`);
  await page.waitForFunction(() => location.hash.includes('filter='));
  await page.reload();
  await settled(page);
  assert.equal(await page.evaluate(() => window.rollscope.rows().length), 1, 'and kept in the URL');
  assert.equal(await page.evaluate(() => window.bad), undefined, 'nothing that was recorded was run');
  for (const hash of ['#step=99', '#pin=1.1.nobody', '#from=1e300&to=2e300', `#filter=${encodeURIComponent('((((')}`, '#sort=none&rows=both&top=%00']) {
    await page.goto(`${viewer.url.replace(/\/$/, '')}/${hash}`);
    await eventually(`${hash} is answered`, () => page.evaluate(() => document.querySelector('#message').textContent !== '' || window.rollscope.samples().length > 0), (holds) => holds);
  }
  await conversation(page);
  await lateAnswers(page);
  await statistics(page);
  await changed(page);
  await addresses();
  assert.deepEqual(complaints, [], 'nothing to complain of');

  await viewer.stop();
  await eventually('a server that is gone is said so', () => page.textContent('#message'), (text) => text.includes('does not answer'));
  console.log('ok: followed, and nothing hostile was run');
} finally {
  await browser.close();
  await viewer.stop();
  await gateway.stop();
}

/** What was said in a turn is shown as it was said, each token by how likely it was. */
async function conversation(page) {
  const logprobs = JSON.stringify([[-0.01, 1, 'th'], [-5, 2, HOSTILE], [null, 3, null]]);
  await send(span('said', 'turn', 1, 2, { prompt_text: `1 + 1 = ?\n${HOSTILE}`, output_text: 'thx', output_token_logprobs: logprobs }));
  await page.goto(`${viewer.url.replace(/\/$/, '')}/#pin=${encodeURIComponent(`1.0.${HOSTILE}/said`)}`);
  await page.reload();
  await page.waitForSelector('.conversation');
  assert.equal(await page.textContent('.conversation .prompt'), `1 + 1 = ?\n${HOSTILE}`);
  const tokens = await page.locator('.conversation .output .token').evaluateAll((all) => all.map(({ className, textContent }) => [className, textContent]));
  assert.deepEqual(tokens, [['token p4', 'th'], ['token p0', HOSTILE], ['token', '⟨3⟩']]);
  assert.equal(await page.evaluate(() => window.bad), undefined);
}

/** Of a stretch of time that is measured the numbers are those of what lies in it. */
async function statistics(page) {
  const known = { x: [[0, 10], [20, 30]], y: [[25, 45]], late: [[90, 100]] };
  await send(
    ...Object.entries(known).flatMap(([name, spans]) => [{ ...sample(name), step: 7 }, ...spans.map(([from, to]) => ({ ...span(name, 'tool', from, to), step: 7 }))]),
  );
  await page.goto(`${viewer.url.replace(/\/$/, '')}/#step=7`);
  await page.reload();
  await page.waitForFunction(() => window.rollscope?.samples().length === 3);
  await settled(page);
  const { from, to } = await rangeOf(page);
  // The panel of what is measured takes some of the timeline's width.
  const moveTo = async (time_s) => {
    const box = await page.locator('#canvas').boundingBox();
    await page.mouse.move(box.x + 168 + ((time_s * 1e9 - from) / (to - from)) * (box.width - 168), box.y + 300);
  };
  await moveTo(5);
  await page.keyboard.down('Shift');
  await page.mouse.down();
  await moveTo(20);
  await page.waitForSelector('#selection:not([hidden])');
  await settled(page);
  await moveTo(35);
  await page.mouse.up();
  await page.keyboard.up('Shift');
  const { selected } = await stateOf(page);
  assert.ok(Math.abs(selected.from / 1e9 - 5) < 0.2 && Math.abs(selected.to / 1e9 - 35) < 0.2, JSON.stringify(selected));
  const within = (start, end) => Math.max(Math.min(end * 1e9, selected.to) - Math.max(start * 1e9, selected.from), 0);
  const tools = Object.values(known).flat().map(([start, end]) => within(start, end));
  const live = Object.values(known).map((spans) => within(spans[0][0], spans.at(-1)[1]));
  const sum = (values) => values.reduce((all, value) => all + value, 0);
  await page.waitForSelector('#selection tbody tr');
  const facts = await page.locator('#selection dd').allTextContents();
  assert.deepEqual(facts, [duration(selected.to - selected.from), '2', '1 · 1', number(sum(live) / (selected.to - selected.from))]);
  const stages = await page.locator('#selection tbody tr').evaluateAll((rows) => rows.map((row) => [...row.cells].map((cell) => cell.textContent)));
  assert.deepEqual(stages, [['your code', duration(sum(tools)), percent(1), '3 spans']]);
  await page.keyboard.press('Escape');
}

/** Of two steps those ten samples are told that changed most, most first. */
async function changed(page) {
  const lengths = { 8: () => 20, 9: (index) => 20 + (index % 2 === 0 ? index : -index) };
  for (const [step, length] of Object.entries(lengths)) {
    const names = Array.from({ length: 12 }, (_, index) => [`s${index}`, length(index)]);
    await send(...names.flatMap(([name, of]) => [{ ...sample(name), group: 'g', step: Number(step) }, { ...span(name, 'tool', 0, of), group: 'g', step: Number(step) }]));
  }
  await page.goto(`${viewer.url.replace(/\/$/, '')}/#step=9&tab=compare&against=8`);
  await page.reload();
  await page.waitForSelector('#compare-content section tbody tr');
  const rows = await page.locator('#compare-content section tbody tr').evaluateAll((rows) => rows.map((row) => [...row.cells].map((cell) => cell.textContent)));
  const expected = [11, 10, 9, 8, 7, 6, 5, 4, 3, 2].map((index) => {
    const after = lengths[9](index);
    return [`g/s${index}`, duration(20e9), duration(after * 1e9), `${after > 20 ? '+' : '−'}${percent(index / 20)}`];
  });
  assert.deepEqual(rows, expected);
}

/** It listens on this machine alone, unless it is told otherwise: then nothing is answered without the token of its URL. */
async function addresses() {
  const usual = await start('view', run, '--no-open');
  assert.match(usual.url, /^http:\/\/127\.0\.0\.1:\d+\/?$/);
  await usual.stop();
  const wide = await start('view', run, '--no-open', '--listen', '0.0.0.0:0');
  try {
    const url = new URL(wide.url);
    assert.match(url.search, /^\?token=\w{32,}$/, wide.url);
    const status = async (path) => (await fetch(`http://127.0.0.1:${url.port}${path}`)).status;
    assert.equal(await status(`/api/run${url.search}`), 200);
    for (const path of ['/', '/api/run', '/api/run?token=0']) assert.ok([401, 403].includes(await status(path)), path);
  } finally {
    await wide.stop();
  }
}

/** An answer that comes after a newer one was asked for is not shown. */
async function lateAnswers(page) {
  await send({ ...sample('of two'), step: 2, reward: 1 }, { ...span('of two', 'tool', 0, 4), step: 2 });
  await page.waitForSelector('[data-step="2"]');
  let release;
  const held = new Promise((resolve) => (release = resolve));
  await page.route('**/api/steps/1', async (route) => {
    await held;
    await route.continue();
  });
  await page.click('[data-step="2"]');
  await eventually('step 2 is shown', () => page.textContent('#summary h2'), (text) => text === 'Step 2');
  await page.click('[data-step="1"]');
  await page.waitForFunction(() => window.rollscope.step() === 1);
  await page.click('[data-step="2"]');
  await page.waitForFunction(() => window.rollscope.step() === 2);
  await eventually('step 2 is told', () => page.textContent('#summary h2').catch(() => ''), (text) => text === 'Step 2');
  const answered = page.waitForResponse(/api\/steps\/1$/);
  release();
  await answered;
  await settled(page);
  assert.equal(await page.textContent('#summary h2'), 'Step 2', 'the numbers of step 1 came late');
  await page.unroute('**/api/steps/1');
}

function sample(name) {
  return { type: 'sample', step: 1, group: HOSTILE, sample: name };
}

function span(name, of, start, end, attrs = {}) {
  const times = { start: NOW_S + start, ...(end === null ? {} : { end: NOW_S + end }) };
  return { ...sample(name), type: 'span', name: of, ...times, attrs };
}

async function send(...lines) {
  const body = lines.map((line) => JSON.stringify(line)).join('\n');
  const reply = await fetch(new URL('/rollscope/v1/spans', gateway.url), { method: 'POST', body });
  assert.ok(reply.ok, `${reply.status}: ${await reply.text()}`);
}
