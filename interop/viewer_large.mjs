// What is far too large for a page: ten million spans in one step, and an attribute of a gigabyte. Each is shown, or refused
// with a sentence.

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { closeSync, openSync, writeSync } from 'node:fs';

import { HANGS_MS, eventually, launch, open, rangeOf, settled, shapesOf, start } from './browser.mjs';

const { ROLLSCOPE, LARGE_RUN } = process.env;
/** Samples of the large run, of four requests with 13 spans each. */
const SAMPLES = 200_000;
const MIB = 1 << 20;
const NOW_S = 1_767_225_600;

const browser = await launch();
try {
  console.log(`ok ten million spans: ${await tenMillion()}`);
  for (const mib of [1000, 1024]) console.log(`ok an attribute of ${mib} MiB: ${await longAttribute(mib)}`);
} finally {
  await browser.close();
}

/** All that a user does first: looks, goes to the middle, zooms, looks at the workers, and pins a sample. */
async function tenMillion() {
  const viewer = await start('view', LARGE_RUN, '--no-open', '--listen', '127.0.0.1:0');
  try {
    const { page, complaints } = await open(browser, viewer.url);
    await settled(page);
    const labels = await page.evaluate(() => window.rollscope.samples());
    assert.equal(labels.length, SAMPLES);
    const first = await shapesOf(page);
    assert.ok(first.length > 0, 'spans are in sight at once');

    await page.evaluate(() => {
      const scroller = document.querySelector('#scroller');
      scroller.scrollTop = scroller.scrollHeight / 2;
    });
    const wereInSight = new Set(first.map(({ sample }) => sample));
    await eventually('other rows come', () => shapesOf(page), (shapes) => shapes.some(({ sample }) => !wereInSight.has(sample)));
    await settled(page);
    const before = await rangeOf(page);
    await page.locator('#scroller').focus();
    await page.keyboard.press('w');
    await settled(page);
    const after = await rangeOf(page);
    assert.ok(after.to - after.from < before.to - before.from, 'the key zooms');

    await page.selectOption('#arrange', 'workers');
    await settled(page);
    assert.ok((await shapesOf(page)).length > 0, 'workers have spans');
    await page.selectOption('#arrange', 'samples');
    await page.evaluate((label) => (location.hash = `#pin=1.0.${encodeURIComponent(label)}`), labels[SAMPLES >> 1]);
    await page.waitForSelector('#details:not([hidden]) h2');
    const found = () => page.textContent('#search-told');
    await page.fill('#search', labels[SAMPLES >> 1]);
    await eventually('a sample is found by its name', found, (text) => /^[1-9][\d,.\s]* found$/.test(text));
    await page.fill('#search', 'http://decode-0:30000');
    await eventually('and all requests by a worker', found, (text) => /^[1-9][\d,.\s]{4,} found$/.test(text));
    const passes = await (await fetch(`${viewer.url}/api/steps/1/samples/${SAMPLES >> 1}/passes`)).json();
    assert.ok(passes.length > 0, 'the passes of one sample');
    assert.deepEqual(complaints, [], 'nothing to complain of');
    await page.context().close();
    return `${first.length} spans in sight of ${SAMPLES} samples`;
  } finally {
    await viewer.stop();
  }
}

/** A dump of one sample, of which a span has an attribute of so many MiB. */
async function longAttribute(mib) {
  const file = `attribute-${mib}.json`;
  const span = (type, ts, attrs) => ({ type, name: 'long', span_id: '1'.repeat(32), ts, attrs });
  const events = [span('span_start', NOW_S, {}), span('span_end', NOW_S + 1, { long: '@' })];
  const trace = { version: 1, trace_id: '1', sample_id: 'a', group_id: 'g', attempt: 0, events };
  const [head, tail] = JSON.stringify({ rollout_id: 3, samples: [{ group_index: 0, index: 0, reward: 1, response_length: 3, trace }] }).split('@');
  const to = openSync(file, 'w');
  writeSync(to, head);
  for (let piece = 0; piece < mib; piece++) writeSync(to, 'x'.repeat(MIB));
  writeSync(to, tail);
  closeSync(to);

  const { status, stderr } = spawnSync(ROLLSCOPE, ['import', file, '--out', `run-${mib}`], { encoding: 'utf8', timeout: HANGS_MS });
  if (status !== 0) {
    assert.equal(status, 1, stderr);
    assert.match(stderr, /^rollscope: .*(longer|larger) than .+\n$/, 'one sentence');
    return `refused: ${stderr.trim()}`;
  }
  const viewer = await start('view', `run-${mib}`, '--no-open', '--listen', '127.0.0.1:0');
  try {
    const { page, complaints } = await open(browser, viewer.url);
    await settled(page);
    const [label] = await page.evaluate(() => window.rollscope.samples());
    await page.evaluate((label) => (location.hash = `#pin=3.0.${encodeURIComponent(label)}`), label);
    await page.waitForSelector('#details:not([hidden]) h2');
    assert.deepEqual(complaints, [], 'nothing to complain of');
    await page.context().close();
    return 'shown';
  } finally {
    await viewer.stop();
  }
}
