// The timeline page in a real browser, by real mouse and keys: what is drawn is what was recorded, everything that can
// be done to the view does what it says, the URL keeps it, and the console complains of nothing.

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';

import { drag, eventually, launch, onPage, open, rangeOf, settled, shapesOf, start, stateOf } from './browser.mjs';

const { ROLLSCOPE, RUN } = process.env;
const AXE = createRequire(`${process.env.NODE_PACKAGES}/`).resolve('axe-core/axe.min.js');

const STAGES = {
  prefill: ['bootstrap_queue', 'bootstrap', 'forward', 'transfer_queue'],
  decode: ['prealloc', 'bootstrap', 'transfer', 'forward'],
};

// Compared with itself, so that every difference is known.
const viewer = await start('view', RUN, '--against', RUN, '--no-open', '--listen', '127.0.0.1:0');
const browser = await launch();
try {
  const { page, complaints } = await open(browser, viewer.url);
  await settled(page);
  for (const check of [rows, stages, tooltip, keysAndWheel, touching, dragging, pinning, searching, filtering, ordering, tabs, themes, help, reload]) {
    await check(page);
    assert.deepEqual(complaints, [], `nothing to complain of after: ${check.name}`);
    console.log(`ok ${check.name}`);
  }
  await accessible();
} finally {
  await browser.close();
  await viewer.stop();
}

/** A row per sample, and the step at a glance. */
async function rows(page) {
  const reported = JSON.parse(execFileSync(ROLLSCOPE, ['report', RUN, '--json'], { encoding: 'utf8' })).steps[0];
  const samples = await page.evaluate(() => window.rollscope.samples());
  assert.equal(samples.length, reported.samples, 'a row per sample');
  assert.equal(new Set(samples).size, samples.length, 'rows have labels of their own');
  assert.equal(Number(await page.getAttribute('#canvas', 'data-rows')), samples.length);
  await page.waitForSelector('#summary .share-bar');
  const summary = await page.textContent('#summary');
  for (const told of ['Step 1', 'samples', 'tokens/s', 'reward', 'tail', 'Where the time went']) assert.ok(summary.includes(told), told);
  assert.match(await page.getAttribute('#minimap', 'aria-label'), /^Live samples over time, at most \d/);
  await page.screenshot({ path: 'step.png' });
}

/** A sample by its own link: every stage that it reported is drawn, P and D on lanes of their own. */
async function stages(page) {
  // Of those in sight the one whose stages are the longest, beside its own length: what is shorter than a pixel is not drawn.
  const [first] = await page.evaluate((stages) => {
    const { samples, shapes, value } = window.rollscope;
    const labels = samples();
    const shortest = (label) => Math.min(...stages.map((stage) => value(stage, labels.indexOf(label)))) / value('duration', labels.indexOf(label));
    const inSight = shapes().filter(({ name }) => name === 'request').map(({ sample }) => sample);
    return inSight.sort((a, b) => shortest(b) - shortest(a));
  }, Object.entries(STAGES).flatMap(([lane, names]) => names.map((name) => `${lane}_${name}`)));
  const request = (await shapesOf(page)).find((shape) => shape.sample === first && shape.name === 'request');
  await zoomAround(page, request);
  const shapes = (await shapesOf(page)).filter((shape) => shape.sample === first);
  const on = (lane, name) => shapes.filter((shape) => shape.lane === lane && shape.name === name);
  for (const [lane, wanted] of Object.entries(STAGES)) {
    assert.deepEqual(wanted.filter((stage) => on(lane, stage).length === 0), [], `stages on the ${lane} lane`);
  }
  const [prefill, decode] = ['prefill', 'decode'].map((lane) => on(lane, `sglang_pd_${lane}`)[0]);
  assert.notEqual(prefill.y, decode.y, 'P and D have lanes of their own');
  assert.ok(shapes.some(({ lane }) => lane === 'user'), 'spans of the driver’s own follow');
  for (const { x, width, y } of on('decode', 'bootstrap')) {
    const parent = on('decode', 'prealloc').find((shape) => shape.x <= x && shape.x + shape.width >= x + width - 1);
    assert.ok(parent && parent.y < y, 'a nested stage lies at the foot of its own');
  }
  await page.screenshot({ path: 'sample.png' });
}

/** Shows the time of a shape, and some before and after, with everything in sight. */
async function zoomAround(page, shape) {
  const range = await rangeOf(page);
  const box = await page.locator('#canvas').boundingBox();
  const perPixel = (range.to - range.from) / (box.width - 168);
  const from = range.from + (shape.x - 168) * perPixel;
  const length = shape.width * perPixel;
  await page.evaluate(([a, b]) => {
    location.hash = `#step=1&from=${a}&to=${b}`;
  }, [(from - length * 0.2) / 1e9, (from + length * 1.6) / 1e9]);
  await eventually('the URL is followed', () => rangeOf(page), (shown) => shown.to - shown.from < length * 2);
  await settled(page);
}

async function tooltip(page) {
  const forward = (await shapesOf(page)).filter((shape) => shape.lane === 'decode' && shape.name === 'forward').reduce((a, b) => (a.width > b.width ? a : b));
  const at = await onPage(page, forward);
  await page.mouse.move(at.x, at.y);
  const wanted = ['forward', forward.sample, 'decode', 'starts at', 'of its sglang_pd_decode', 'completion_tokens', 'weight_version', 'worker'];
  await eventually('the tooltip tells all', () => page.textContent('#tooltip'), (told) => wanted.every((text) => told.includes(text)));
  const box = await page.locator('#tooltip').boundingBox();
  const window = page.viewportSize();
  assert.ok(box.x >= 0 && box.y >= 0 && box.x + box.width <= window.width + 1 && box.y + box.height <= window.height + 1, 'the tooltip is not cut');
}

async function keysAndWheel(page) {
  const length = async () => {
    const { from, to } = await rangeOf(page);
    return to - from;
  };
  const press = async (key) => {
    await page.keyboard.press(key);
    await settled(page);
  };
  let before = await length();
  await press('w');
  assert.ok((await length()) < before, 'W zooms in');
  await press('s');
  assert.ok(Math.abs((await length()) - before) < before * 1e-6, 'S zooms out by as much');
  before = await rangeOf(page);
  for (const [forth, back] of [['d', 'a'], ['ArrowRight', 'ArrowLeft']]) {
    await press(forth);
    assert.ok((await rangeOf(page)).from > before.from, `${forth} goes to later times`);
    await press(back);
    assert.ok(Math.abs((await rangeOf(page)).from - before.from) < 10, `${back} goes back`);
  }
  const top = () => page.evaluate(() => document.querySelector('#scroller').scrollTop);
  await press('ArrowDown');
  assert.ok((await top()) > 0, '↓ goes to rows below');
  await press('ArrowUp');
  assert.equal(await top(), 0, '↑ goes back');

  // By the wheel down to the microsecond: the time under the mouse stays under it.
  const box = await page.locator('#canvas').boundingBox();
  const [x, width] = [700, box.width - 168];
  await page.mouse.move(box.x + x, box.y + 100);
  const timeAt = async () => {
    const { from, to } = await rangeOf(page);
    return from + ((x - 168) / width) * (to - from);
  };
  const [under, wide] = [await timeAt(), await length()];
  for (let turn = 0; turn < 60; turn++) await page.mouse.wheel(0, -600);
  await eventually('the wheel zooms to the microsecond', length, (now) => now <= 1001);
  assert.ok(Math.abs((await timeAt()) - under) < wide / width, 'the time under the mouse stays');
  // A pinch on a trackpad comes as a wheel with ctrl held.
  await page.keyboard.down('Control');
  await page.mouse.wheel(0, 100);
  await page.keyboard.up('Control');
  await eventually('a pinch zooms too', length, (now) => now > 1001);
  await press('f');
  await eventually('F shows all', () => stateOf(page), ({ range }) => range === undefined);
  // With shift, and over the labels, the wheel scrolls.
  for (const [at, key] of [[700, 'Shift'], [60, undefined]]) {
    const before = await top();
    await page.mouse.move(box.x + at, box.y + 200);
    if (key !== undefined) await page.keyboard.down(key);
    await page.mouse.wheel(0, 240);
    if (key !== undefined) await page.keyboard.up(key);
    await eventually('the wheel scrolls', top, (now) => now !== before);
    assert.equal((await stateOf(page)).range, undefined, 'and does not zoom');
  }
  await page.evaluate(() => (document.querySelector('#scroller').scrollTop = 0));
  await settled(page);
}

/** Two fingers on a screen zoom about what lies between them. */
async function touching(page) {
  const box = await page.locator('#canvas').boundingBox();
  const session = await page.context().newCDPSession(page);
  const touch = (type, ...xs) => session.send('Input.dispatchTouchEvent', { type, touchPoints: xs.map((x, id) => ({ x: box.x + x, y: box.y + 120, id })) });
  const before = await rangeOf(page);
  const timeAt = ({ from, to }, x) => from + ((x - 168) / (box.width - 168)) * (to - from);
  await touch('touchStart', 600, 700);
  for (const spread of [80, 120, 200]) await touch('touchMove', 650 - spread, 650 + spread);
  await touch('touchEnd');
  const after = await eventually('a pinch zooms in', () => rangeOf(page), ({ from, to }) => to - from < (before.to - before.from) / 3);
  assert.ok(Math.abs(timeAt(after, 650) - timeAt(before, 650)) < (before.to - before.from) / 50, 'what lies between the fingers stays');
  await page.keyboard.press('f');
  await settled(page);
}

async function dragging(page) {
  await settled(page);
  const all = await rangeOf(page);
  await page.keyboard.press('w');
  await page.keyboard.press('w');
  await settled(page);
  const before = await rangeOf(page);
  await drag(page, 120);
  assert.ok((await rangeOf(page)).from < before.from, 'dragging to the right shows earlier times');
  assert.equal((await stateOf(page)).pin, undefined, 'and pins nothing');

  await drag(page, 150, 0, 'Shift');
  const { selected } = await stateOf(page);
  assert.ok(selected && selected.to > selected.from, 'shift and drag selects time');
  await eventually('its statistics are told', () => page.textContent('#selection'), (text) => /samples/.test(text) && !/adding up/.test(text));
  await page.keyboard.press('z');
  await settled(page);
  const zoomed = await rangeOf(page);
  assert.ok(Math.abs(zoomed.from - selected.from) < 10 && Math.abs(zoomed.to - selected.to) < 10, 'Z zooms to it');
  await page.keyboard.press('Escape');
  await page.waitForSelector('#selection', { state: 'hidden' });

  await page.keyboard.press('f');
  await settled(page);
  const inSight = (await shapesOf(page)).filter(({ kind }) => kind === 'sample');
  const at = inSight[inSight.length >> 1];
  await drag(page, 200, 80, 'Control', (await onPage(page, at)).y);
  const boxed = await rangeOf(page);
  assert.ok(boxed.to - boxed.from < (all.to - all.from) / 2, 'ctrl and drag zooms into the box');
  assert.equal((await stateOf(page)).top, at.sample, 'and its first row is the first in sight');

  const map = await page.locator('#minimap').boundingBox();
  await page.mouse.dblclick(map.x + map.width / 2, map.y + 20);
  await page.keyboard.press('f');
  await settled(page);
  await page.mouse.move(map.x + 500, map.y + 20);
  await page.mouse.down();
  await page.mouse.move(map.x + 700, map.y + 20, { steps: 4 });
  await page.mouse.up();
  const chosen = await rangeOf(page);
  const share = (chosen.to - chosen.from) / (all.to - all.from);
  assert.ok(Math.abs(share - 200 / (map.width - 168)) < 0.02, `the minimap chooses what is dragged over: ${share}`);
  const canvas = await page.locator('#canvas').boundingBox();
  await page.mouse.dblclick(canvas.x + 400, canvas.y + 8);
  await eventually('a double click shows all', () => stateOf(page), ({ range }) => range === undefined);
}

async function pinning(page) {
  const request = (await shapesOf(page)).find((shape) => shape.lane === 'decode' && shape.kind === 'leg');
  const first = request.sample;
  const group = first.slice(0, first.lastIndexOf('/') + 1);
  const second = (await page.evaluate(() => window.rollscope.samples())).find((label) => label.startsWith(group) && label !== first);
  const at = await onPage(page, request);
  await page.mouse.click(at.x, at.y);
  await page.waitForSelector('#details:not([hidden]) .attributes');
  const told = await eventually('details tell all', () => page.textContent('#details'), (text) => text.includes('Requests and spans'));
  for (const text of [first, 'weight_version', 'pd_decode_forward_duration', 'Stages', 'Group', 'copy', 'link']) assert.ok(told.includes(text), text);
  await page.context().grantPermissions(['clipboard-read', 'clipboard-write']);
  await page.click('#details [aria-label="Copy all attributes"]');
  await page.waitForFunction(() => document.querySelector('#details [aria-label="Copy all attributes"]').textContent === 'copied');
  assert.match(await page.evaluate(() => navigator.clipboard.readText()), /^worker: http/m);
  await page.waitForFunction(() => location.hash.includes('pin='));
  await page.click('#details [title="Copy a link to this"]');
  await page.waitForFunction(() => document.querySelector('#details [title="Copy a link to this"]').textContent === 'copied');
  assert.equal(await page.evaluate(() => navigator.clipboard.readText()), page.url(), 'a link to this span');
  await eventually('its forward passes are told', () => page.textContent('#details'), (text) => /Forward passes.*of computing/s.test(text));
  // A neighbour of the same group.
  const sibling = page.locator('#details .neighbours button').filter({ hasText: second.split('/').at(-1) }).first();
  await sibling.click();
  await eventually('a neighbour is opened', () => stateOf(page), ({ pin }) => pin?.sample === second);
  await page.waitForFunction(() => location.hash.includes('pin='));
  await page.click('#details [aria-label="Close"], #details [title="Close"]');
  await page.waitForSelector('#details', { state: 'hidden' });
}

async function searching(page) {
  const samples = await page.evaluate(() => window.rollscope.samples());
  const wanted = samples.at(-1);
  await page.locator('#scroller').focus();
  await page.keyboard.press('/');
  await page.keyboard.type(wanted);
  await eventually('it is found', () => page.textContent('#search-told'), (text) => /found$/.test(text) && text !== 'not found');
  await page.keyboard.press('Enter');
  const first = await eventually('Enter goes to it', () => stateOf(page), ({ pin }) => pin !== undefined);
  assert.ok(first.pin.sample.includes(wanted));
  await settled(page);
  assert.ok((await shapesOf(page)).some((shape) => shape.sample === first.pin.sample), 'it is in sight');
  await page.fill('#search', 'no such text anywhere');
  await eventually('what is not there is said so', () => page.textContent('#search-told'), (text) => text === 'not found');
  await page.fill('#search', 'completed');
  await eventually('attributes are searched', () => page.textContent('#search-told'), (text) => / found$/.test(text) && text !== 'not found');
  await page.keyboard.press('Escape');
  const at = async () => (await page.textContent('#search-told')).replace(/ of .*/, '');
  await page.keyboard.press('n');
  await eventually('N goes to the next', at, (text) => text === '1');
  await page.keyboard.press('n');
  await eventually('and on', at, (text) => text === '2');
  await page.keyboard.press('p');
  await eventually('P goes back', at, (text) => text === '1');
  await page.fill('#search', '');
  await page.locator('#scroller').focus();
  await page.keyboard.press('Escape');
}

async function filtering(page) {
  const all = await page.evaluate(() => window.rollscope.samples().length);
  const count = () => page.evaluate(() => window.rollscope.rows().length);
  // Not all take equally long, whatever was recorded.
  const longest = await page.evaluate(() => Math.max(...window.rollscope.samples().map((_, row) => window.rollscope.value('duration', row))));
  await page.keyboard.press('e');
  await page.keyboard.type(`duration < ${longest}`);
  const shorter = await count();
  assert.ok(shorter > 0 && shorter < all, 'a filter leaves some');
  await page.fill('#filter', `not duration < ${longest}`);
  assert.equal((await count()) + shorter, all, 'and its contrary the others');
  await page.fill('#filter', 'rewrad > 1');
  assert.match(await page.textContent('#filter-told'), /no field “rewrad”/);
  assert.equal(await page.getAttribute('#filter', 'aria-invalid'), 'true');
  assert.equal(await count(), all, 'one that cannot be read filters nothing');
  await page.fill('#filter', 'reward > 1e9');
  assert.match(await page.textContent('#message'), /No sample passes/);
  await page.fill('#filter', '');
  await page.keyboard.press('Escape');
  assert.equal(await count(), all);
}

async function ordering(page) {
  await page.selectOption('#sort', 'duration');
  await page.click('#falling');
  await settled(page);
  const lengths = (await shapesOf(page)).filter(({ kind }) => kind === 'sample').map(({ width }) => width);
  assert.ok(lengths.length > 2 && lengths.every((width, index) => index === 0 || width <= lengths[index - 1] + 1.5), `longest first: ${lengths}`);
  // Whatever is sorted by, the samples stand in the order of what the table tells of them; their times differ at least.
  for (const field of ['start', 'reward', 'tokens', 'decode_forward']) {
    await page.selectOption('#sort', field);
    await page.click('[data-tab=samples]');
    const column = await page.locator('#samples-head button').allTextContents();
    const place = column.findIndex((text) => text.startsWith(field.replaceAll('_', ' ')));
    assert.ok(place >= 0, `a column for ${field}`);
    assert.equal(await page.locator('#samples-head th').nth(place).getAttribute('aria-sort'), 'descending', field);
    await page.click('[data-tab=timeline]');
    const values = await page.evaluate((field) => window.rollscope.rows().map((row) => window.rollscope.value(field, row)), field);
    assert.ok(values.every((value, index) => index === 0 || !(value > values[index - 1])), `most ${field} first`);
    if (['start', 'decode_forward'].includes(field)) assert.ok(new Set(values).size > 1, `${field} differs`);
  }
  for (const color of ['worker', 'reward', 'version', 'stage']) {
    await page.selectOption('#color', color);
    await settled(page);
    assert.notEqual(await page.textContent('#legend'), '', `a legend for ${color}`);
  }
  await page.selectOption('#arrange', 'workers');
  await settled(page);
  const lanes = new Set((await shapesOf(page)).filter(({ kind }) => kind === 'leg').map(({ lane }) => lane));
  assert.ok(lanes.has('prefill'), 'legs stand on their workers');
  assert.ok((await page.evaluate(() => window.rollscope.passes())) > 0, 'forward passes stand with them');
  await pointAtPass(page);
  await page.screenshot({ path: 'workers.png' });
  await page.selectOption('#arrange', 'both');
  const rows = await page.evaluate(() => window.rollscope.rows());
  assert.ok(rows.some((row) => row < 0) && rows.some((row) => row >= 0), 'workers and samples');
  await page.selectOption('#arrange', 'samples');
  await page.keyboard.press('Tab');
  await page.locator('#scroller').focus();
  const seen = async () => new Set((await shapesOf(page)).map(({ row }) => row)).size;
  const roomy = await seen();
  await page.keyboard.press('c');
  await settled(page);
  assert.ok((await seen()) > roomy, 'C shows more rows');
  await page.keyboard.press('c');
  await settled(page);
  const [inSight, height] = await page.evaluate(() => [document.querySelector('#content').offsetHeight, document.querySelector('#scroller').offsetHeight]);
  assert.ok(inSight <= height, 'C again has all in sight');
  await page.keyboard.press('c');
  await page.click('#falling');
  await page.selectOption('#sort', '');
}

/** A forward pass under the mouse tells what it was. */
async function pointAtPass(page) {
  const box = await page.locator('#canvas').boundingBox();
  const tooltip = page.locator('#tooltip');
  for (let x = 200; x < box.width - 10; x += 7) {
    await page.mouse.move(box.x + x, box.y + 24 + 20);
    await settled(page);
    if (!(await tooltip.isVisible())) continue;
    const told = await tooltip.textContent();
    assert.match(told, /forward pass.* KV cache .*heard of at/s);
    return;
  }
  assert.fail('no forward pass is in sight');
}

async function tabs(page) {
  await page.click('[data-tab=samples]');
  await page.click('#samples-head button:text-is("duration")');
  await page.click('#samples-head button:text("duration")');
  await page.waitForSelector('#samples-head [aria-sort=descending]');
  await page.locator('#samples-body .link').first().click();
  await page.waitForSelector('#details:not([hidden]) .stages');
  await page.screenshot({ path: 'samples.png' });

  await page.click('[data-tab=charts]');
  await page.waitForFunction(() => document.querySelector('#chart-facts').textContent.includes('median'));
  await page.selectOption('#chart-field', 'e2e_latency');
  const box = await page.locator('#histogram').boundingBox();
  await page.mouse.move(box.x + box.width * 0.3, box.y + 60);
  await page.mouse.down();
  await page.mouse.move(box.x + box.width * 0.6, box.y + 60, { steps: 4 });
  await page.mouse.up();
  const { filter } = await stateOf(page);
  assert.match(filter, /^e2e_latency >= [\d.e-]+ and e2e_latency <= [\d.e-]+$/, 'brushing filters');
  await page.screenshot({ path: 'charts.png' });
  await page.fill('#filter', '');

  await page.click('[data-tab=compare]');
  const compared = await eventually('the other run is compared', () => page.textContent('#compare-content'), (text) => text.includes('mean, other run, step 1'));
  assert.match(compared, /Samples that changed most, of \d/);
  const differences = await page.locator('#compare-content .difference').allTextContents();
  assert.ok(differences.length > 10 && differences.every((text) => text === '='), `nothing differs: ${differences}`);
  await page.keyboard.press('ArrowRight');
  await eventually('arrows go through the tabs', () => stateOf(page), ({ tab }) => tab === 'timeline');
  await page.keyboard.press('Escape');
  await page.selectOption('#sort', '');
}

/** The other theme, and back. */
async function themes(page) {
  const surface = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  const light = await surface();
  await page.click('#theme');
  await eventually('it is dark', surface, (color) => color !== light);
  await page.click('#theme');
  await eventually('and light again', surface, (color) => color === light);
}

async function help(page) {
  await page.locator('#scroller').focus();
  await page.keyboard.press('?');
  await page.waitForSelector('#help[open]');
  assert.match(await page.textContent('#help'), /zoom in/);
  await page.keyboard.press('Escape');
  await page.waitForSelector('#help', { state: 'hidden' });
}

/** The whole view survives a reload: all of it is in the URL. */
async function reload(page) {
  await page.selectOption('#sort', 'e2e_latency');
  await page.selectOption('#color', 'worker');
  await page.fill('#filter', 'tokens > 0');
  await page.locator('#scroller').focus();
  await page.keyboard.press('w');
  await drag(page, 80, -60);
  await drag(page, 90, 0, 'Shift');
  await page.waitForFunction(() => location.hash.includes('a=') && location.hash.includes('from='));
  await new Promise((resolve) => setTimeout(resolve, 0));
  const [range, state, url] = [await rangeOf(page), await stateOf(page), page.url()];
  await page.reload();
  await settled(page);
  const again = await rangeOf(page);
  assert.ok(Math.abs(again.from - range.from) < 10 && Math.abs(again.to - range.to) < 10, `the view survives a reload: ${url}`);
  const told = await stateOf(page);
  for (const part of ['order', 'color', 'filter', 'top']) assert.deepEqual(told[part], state[part], part);
  assert.ok(Math.abs(told.selected.from - state.selected.from) < 10);

  // What is beside the timeline too: what is pinned, sought and arranged, and the tab.
  await page.selectOption('#arrange', 'both');
  await page.fill('#search', 'completed');
  await page.click('[data-tab=samples]');
  await page.locator('#samples-body .link').first().click();
  await page.waitForSelector('#details:not([hidden]) h2');
  await page.waitForFunction(() => ['tab=samples', 'pin=', 'search=completed', 'rows=both'].every((part) => location.hash.includes(part)));
  const before = await stateOf(page);
  await page.reload();
  await page.waitForSelector('#details:not([hidden]) h2');
  const after = await stateOf(page);
  for (const part of ['tab', 'pin', 'search', 'order']) assert.deepEqual(after[part], before[part], part);
  assert.ok((await page.textContent('#details')).includes(before.pin.sample), 'the sample is shown');
  assert.ok(await page.isVisible('#samples-body .link'), 'in its table');
  assert.equal(await page.inputValue('#search'), 'completed');
  await eventually('it is sought again', () => page.textContent('#search-told'), (text) => / found$/.test(text) && text !== 'not found');
  await page.click('[data-tab=timeline]');
  await settled(page);
  const shown = await page.evaluate(() => window.rollscope.rows());
  assert.ok(shown.some((row) => row < 0) && shown.some((row) => row >= 0), 'workers and samples');
}

/** Both themes, three sizes, every tab: nothing that axe finds, nothing that is cut off. */
async function accessible() {
  const source = readFileSync(AXE, 'utf8');
  const sizes = [[1280, 720], [1920, 1080], [1000, 700]];
  const views = sizes.flatMap(([width, height]) => ['light', 'dark'].map((colorScheme) => ({ colorScheme, width, height })));
  for (const { colorScheme, width, height } of views) {
    const { page } = await open(browser, viewer.url, { colorScheme, viewport: { width, height }, bypassCSP: true });
    await settled(page);
    await page.waitForSelector('#summary .share-bar');
    await page.evaluate(source);
    for (const [tab, key] of [['timeline'], ['timeline', 'workers'], ['timeline', '?'], ['samples'], ['charts'], ['compare']]) {
      await page.click(`[data-tab=${tab}]`);
      if (tab === 'timeline') await page.selectOption('#arrange', key === 'workers' ? 'workers' : 'samples');
      if (key === '?') {
        await page.locator('#scroller').focus();
        await page.keyboard.press(key);
        await page.waitForSelector('#help[open]');
      }
      if (tab === 'samples') await page.locator('#samples-body .link').first().click();
      const { violations } = await page.evaluate(() => window.axe.run(document, { resultTypes: ['violations'] }));
      const told = violations.map(({ id, nodes }) => `${id}: ${nodes.map(({ html }) => html.slice(0, 120)).join(' | ')}`);
      assert.deepEqual(told, [], `${tab} ${key ?? ''}, ${colorScheme}, ${width} × ${height}`);
      if (key === '?') await page.keyboard.press('Escape');
      const wide = await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
      assert.ok(wide[0] <= wide[1], `${tab} is no wider than the window`);
      await page.screenshot({ path: `${tab}-${colorScheme}-${width}.png` });
    }
    await page.context().close();
    console.log(`ok accessible, ${colorScheme}, ${width} × ${height}`);
  }
}
