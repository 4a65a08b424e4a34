// Files that mean harm, or are only broken, in the viewer: each is shown, or refused with a sentence; nothing that stands in
// one is run, and nothing hangs.

import assert from 'node:assert/strict';
import { execFileSync, spawnSync } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { resolve } from 'node:path';
import { fileURLToPath } from 'node:url';

import { HANGS_MS, eventually, launch, open, settled, shapesOf, start } from './browser.mjs';

const { ROLLSCOPE } = process.env;
const HOSTILE = '</script><script>window.bad = 1</script><img src=x onerror="window.bad = 1">\u202e';
const NOW_S = 1_767_225_600;
/** An attribute as long as a program gone wrong makes it. */
const LONG_BYTES = 64 << 20;

/** Each a dump of one sample, by its events; a number of JavaScript's or the text of one. */
const DUMPS = {
  'markup in every name': { name: HOSTILE, events: [span(HOSTILE, 1, 0, 1, { [HOSTILE]: HOSTILE })] },
  'times that are no numbers': { isTorch: true, events: [span('nan', 1, 'NaN', 'NaN'), span('good', 2, 0, 1)] },
  'times beyond all clocks': { events: [span('endless', 1, 0, 1e300), span('early', 2, -1e300, 1), span('good', 3, 0, 1)] },
  'ends before begins': { events: [span('back', 1, 10, 5), span('good', 2, 0, 1)] },
  'parents in a circle': { events: [span('a', 1, 0, 3, {}, 2), span('b', 2, 1, 2, {}, 1), span('self', 3, 0, 1, {}, 3), span('nobody', 4, 0, 1, {}, 99)] },
  'one id for all': { events: [span('a', 1, 0, 3), span('b', 1, 1, 2), span('c', 1, 2, 3)] },
  'an attribute without end': { events: [span('long', 1, 0, 1, { long: 'x'.repeat(LONG_BYTES) })] },
  'ten thousand at once': { events: Array.from({ length: 10_000 }, (_, index) => span(`s${index}`, index + 1, 0, 1)) },
  'a dump that is cut': { events: [span('good', 1, 0, 1)], cut: 40 },
  'no events': { events: [] },
};

const browser = await launch();
try {
  for (const [what, dump] of Object.entries(DUMPS)) {
    console.log(`ok ${what}: ${await shown(what, dump)}`);
  }
} finally {
  await browser.close();
}

/** Shows a dump; says how it went. */
async function shown(what, dump) {
  const file = write(resolve(what.replaceAll(' ', '-')), dump);
  const viewer = await start('view', file, '--no-open', '--listen', '127.0.0.1:0').catch(() => undefined);
  if (viewer === undefined) return refusal(file);
  try {
    const { page, complaints } = await open(browser, viewer.url);
    await eventually('something is told', () => page.evaluate(() => (window.rollscope?.samples().length ?? 0) + document.querySelector('#message').textContent.length), (told) => told > 0);
    if (await page.evaluate(() => window.rollscope.samples().length > 0)) await settled(page);
    const shapes = await shapesOf(page);
    const isGood = ({ name }) => name === 'good';
    assert.equal(shapes.some(isGood), dump.events.flat().some(isGood), 'what is good beside it is in sight');
    const { from, to } = await page.evaluate(() => window.rollscope.range());
    assert.ok(Number.isFinite(from) && Number.isFinite(to) && to > from, `a view from ${from} to ${to}`);
    for (const arrange of ['workers', 'both', 'samples']) await page.selectOption('#arrange', arrange);
    for (const tab of ['samples', 'charts', 'compare', 'timeline']) await page.click(`[data-tab=${tab}]`);
    const [first] = await page.evaluate(() => window.rollscope.samples());
    if (first !== undefined) {
      await page.evaluate((label) => (location.hash = `#pin=1.0.${encodeURIComponent(label)}`), first);
      await page.waitForSelector('#details:not([hidden]) h2');
    }
    assert.equal(await page.evaluate(() => window.bad), undefined, 'nothing that was recorded was run');
    assert.deepEqual(complaints, [], 'nothing to complain of');
    await page.context().close();
    return `${shapes.length} spans in sight`;
  } finally {
    await viewer.stop();
  }
}

/** What the program says of a file that it does not show. */
function refusal(file) {
  const { status, stderr } = spawnSync(ROLLSCOPE, ['view', file, '--no-open'], { encoding: 'utf8', maxBuffer: 1 << 24, timeout: HANGS_MS });
  assert.equal(status, 1, `it ended with ${status}: ${stderr}`);
  assert.match(stderr, /^rollscope: .+\n$/, 'one sentence');
  assert.ok(stderr.length < 2000 && !stderr.includes('panicked'), stderr.slice(0, 2000));
  return `refused: ${stderr.trim().slice(0, 120)}`;
}

/** A span's two events. A time that is no number of JSON's is written as Python does. */
function span(name, id, from, to, attrs = {}, parent = undefined) {
  const ts = (time) => (typeof time === 'number' ? NOW_S + time : time);
  const of = { name, span_id: id.toString(16).padStart(32, '0'), ...(parent === undefined ? {} : { parent_span_id: parent.toString(16).padStart(32, '0') }) };
  return [
    { ...of, type: 'span_start', ts: ts(from) },
    { ...of, type: 'span_end', ts: ts(to), attrs },
  ];
}

/** Writes a dump as JSON, or as torch.save does, where there are floats that JSON does not know; gives its path. */
function write(path, { name = 'a', events, cut = 0, isTorch = false }) {
  const trace = { version: 1, trace_id: '1', sample_id: name, group_id: 'g', attempt: 0, events: events.flat() };
  const sample = { group_index: 0, index: 0, reward: 1, response_length: 3, trace };
  const text = JSON.stringify({ rollout_id: 3, samples: [sample] }).replace(/"ts":"(\w+)"/g, '"ts":$1');
  writeFileSync(`${path}.json`, text.slice(0, text.length - cut));
  if (!isTorch) return `${path}.json`;
  const script = fileURLToPath(new URL('torch_dump.py', import.meta.url));
  execFileSync('python3', [script, `${path}.json`, `${path}.pt`]);
  return `${path}.pt`;
}
