// Whatever is not plain has a sign of its own: instants, further tries, open ends, impossible values, failures, lost messages;
// by their pixels, as are the tail of the minimap, the strips of forward passes and the colours that spans are painted by.
//
// The run that it shows is made of six samples of a recorded one, each of them odd in its own way.

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { readFileSync, writeFileSync } from 'node:fs';

import { eventually, launch, onPage, open, rangeOf, settled, shapesOf, start } from './browser.mjs';

const { ROLLSCOPE, RUN } = process.env;
/** Where rows begin in the timeline, and below its axis. */
const [GUTTER, AXIS] = [168, 24];
/** Free height above and below a strip of forward passes. */
const STRIP_MARGIN = 6;

/** What the page asks for forward passes by. */
const PASSES = /api\/steps\/\d+\/passes/;

/** What is done to each sample, by its place. */
const ODD = { plain: 0, instants: 1, again: 2, open: 3, impossible: 4, failed: 5 };
const LABELS = [];
const RUNS = { odd: made('odd'), recorded: RUN };
const browser = await launch();
try {
  for (const [run, check] of [
    ['odd', instants],
    ['odd', further],
    ['odd', openEnds],
    ['odd', impossible],
    ['odd', failed],
    ['recorded', findings],
    ['odd', colours],
    ['odd', differences],
    ['recorded', tail],
    ['recorded', strips],
    ['recorded', lost],
  ]) {
    await shown(RUNS[run], check);
    console.log(`ok ${check.name}`);
  }
} finally {
  await browser.close();
}

/** The first samples of the recorded run, with the instant, the try, the open span … that is to be seen. */
function made(name) {
  execFileSync(ROLLSCOPE, ['export', RUN, '--to', 'slime-json', 'recorded.json']);
  // Beyond 2^53 a number is another one: what was told at the end is told anew.
  const { rollscope: _, ...rest } = JSON.parse(readFileSync('recorded.json', 'utf8').split('\n')[0]);
  const samples = rest.samples.slice(0, Object.keys(ODD).length);
  for (const { rollscope, trace } of samples) LABELS.push(`${rollscope.group}/${rollscope.sample}`);
  const requestOf = ({ trace }) => trace.events.map(({ attrs }) => attrs?.rollscope?.request).find((request) => request !== undefined);
  const last = ({ trace }) => trace.events.at(-1).ts;
  const add = ({ trace }, ...events) => {
    const { attempt, group_id, sample_id, trace_id } = trace.events[0];
    trace.events.push(...events.map((event) => ({ attempt, group_id, sample_id, trace_id, ...event })));
  };
  const span = (name, id, from, to) => [
    { type: 'span_start', name, span_id: id.repeat(32), ts: from },
    ...(to === undefined ? [] : [{ type: 'span_end', name, span_id: id.repeat(32), ts: to, attrs: {} }]),
  ];
  const noted = samples[ODD.instants];
  // One by itself, and one where a span ends.
  const end = last(noted);
  add(noted, { type: 'event', name: 'noted', ts: end + 0.2, attrs: { why: 'it was asked' } }, ...span('tool', 'a', end + 0.3, end + 0.5), { type: 'event', name: 'at its end', ts: end + 0.5, attrs: {} });
  const again = samples[ODD.again];
  requestOf(again).attempt = 1;
  for (const event of again.trace.events) event.attempt = 1;
  const left = samples[ODD.open];
  add(left, ...span('never ends', 'b', last(left) + 0.05));
  Object.assign(requestOf(samples[ODD.impossible]).legs[1].readings.find(([name]) => name === 'queue_time'), [, -1, 'negative']);
  const request = requestOf(samples[ODD.failed]);
  [request.outcome, request.legs[1].outcome, request.error] = ['failed', 'failed', 'the worker is gone'];
  // And the same once more, of which every decode worker took half of the time.
  const faster = structuredClone(samples);
  for (const reading of faster.flatMap((sample) => requestOf(sample).legs[1].readings)) if (reading[0] === 'pd_decode_forward_duration') reading[1] /= 2;
  const lines = [faster, samples].map((samples, step) => JSON.stringify({ ...rest, rollout_id: step, samples }));
  writeFileSync(`${name}.jsonl`, `${lines.join('\n')}\n`);
  execFileSync(ROLLSCOPE, ['import', `${name}.jsonl`, '--out', name]);
  return name;
}

/** Looks at a run; nothing may be complained of. */
async function shown(run, look) {
  const viewer = await start('view', run, '--no-open', '--listen', '127.0.0.1:0');
  try {
    const { page, complaints } = await open(browser, viewer.url);
    await settled(page);
    await look(page);
    // That pixels are read is this check's doing.
    assert.deepEqual(complaints.filter((told) => !told.includes('getImageData')), [], 'nothing to complain of');
    await page.context().close();
  } finally {
    await viewer.stop();
  }
}

/** Of each pixel of a box of a canvas whether it is of a colour: `#rrggbb`, or a property of the page. */
function painted(page, box, color, { canvas = '#canvas', near = 12 } = {}) {
  return page.evaluate(
    ([{ x, y, width, height }, color, selector, near]) => {
      const of = document.querySelector(selector);
      const ratio = of.width / of.getBoundingClientRect().width;
      const hex = color.startsWith('--') ? getComputedStyle(document.documentElement).getPropertyValue(color).trim() : color;
      const wanted = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
      const rows = [];
      for (let down = 0; down < Math.round(height * ratio); down++) {
        const { data } = of.getContext('2d').getImageData(Math.round(x * ratio), Math.round(y * ratio) + down, Math.round(width * ratio), 1);
        rows.push(Array.from({ length: data.length / 4 }, (_, at) => wanted.every((value, channel) => Math.abs(value - data[at * 4 + channel]) <= near)));
      }
      return rows;
    },
    [box, color, canvas, near],
  );
}

/** A colour as the browser tells it, as `#rrggbb`. */
function hexOf(told) {
  const channels = told.match(/\d+/g).slice(0, 3);
  return `#${channels.map((value) => Number(value).toString(16).padStart(2, '0')).join('')}`;
}

function countOf(rows) {
  return rows.flat().filter(Boolean).length;
}

/** The shapes of a sample that is odd in a way. */
async function shapesOfOdd(page, odd) {
  return (await shapesOf(page)).filter(({ sample }) => sample === LABELS[odd]);
}

function legs(shapes) {
  return shapes.filter(({ kind, lane }) => kind === 'leg' && lane === 'decode');
}

function requests(shapes) {
  return shapes.filter(({ kind }) => kind === 'request');
}

/** A diamond, at any zoom as large; it tells what it is when it is pointed at. The legend has it too. */
async function instants(page) {
  const hex = hexOf(await page.locator('#legend .swatch.instant').evaluate((found) => getComputedStyle(found).backgroundColor));
  for (const zoom of [0, 3, 6]) {
    for (const name of ['noted', 'at its end']) {
      await page.keyboard.press('f');
      await settled(page);
      const find = async () => (await shapesOfOdd(page, ODD.instants)).find((shape) => shape.name === name);
      const first = await find();
      assert.ok(first, `${name} is in sight`);
      const over = await onPage(page, first);
      await page.mouse.move(over.x, over.y);
      for (let turn = 0; turn < zoom; turn++) await page.keyboard.press('w');
      await settled(page);
      const shape = await find();
      assert.ok(shape && shape.width <= 2, `${name} after ${zoom} zooms takes no time: ${JSON.stringify(shape)}`);
      const middle = { x: Math.round(shape.x), y: Math.round(shape.y + shape.height / 2) };
      const rows = await painted(page, { x: middle.x - 4, y: middle.y - 4, width: 9, height: 9 }, hex);
      const widths = rows.map((row) => row.filter(Boolean).length);
      const widest = Math.max(...widths);
      assert.ok(widest >= 8 && Math.min(widths[0], widths.at(-1)) <= 3 && countOf(rows) >= 30, `${name} after ${zoom} zooms is a diamond: ${widths}`);
      const at = await onPage(page, shape);
      await page.mouse.move(at.x + 3, at.y);
      await eventually(`${name} is told`, () => page.textContent('#tooltip'), (text) => text.includes(name) && text.includes('an instant'));
      if (name === 'noted') await eventually('with its attributes', () => page.textContent('#tooltip'), (text) => text.includes('it was asked'));
    }
  }
  await page.screenshot({ path: 'instants.png' });
}

/** A flag before a further try, and its number in words. */
async function further(page) {
  const flag = async (odd) => {
    const [request] = requests(await shapesOfOdd(page, odd));
    return { request, inked: countOf(await painted(page, { x: request.x, y: request.y - 2, width: 2, height: request.height + 4 }, '--text')) };
  };
  const { request, inked } = await flag(ODD.again);
  assert.ok(inked >= 14, `a flag on a further try: ${inked} pixels`);
  assert.ok((await flag(ODD.plain)).inked < 4, 'none on the first');
  const at = await onPage(page, request);
  await page.mouse.move(at.x, at.y);
  await eventually('it is told', () => page.textContent('#tooltip'), (text) => text.includes('try 2'));
}

/** Stripes at the end of what has not ended. */
async function openEnds(page) {
  const span = (await shapesOfOdd(page, ODD.open)).find(({ name }) => name === 'never ends');
  assert.ok(span.width > 45, `an open span of ${span.width} pixels`);
  const stripes = async ({ x, y, width, height }) => {
    const [row] = await painted(page, { x: x + width - 40, y: y + Math.floor(height / 2), width: 38, height: 1 }, '--surface');
    return row.filter((is, index) => is && !row[index - 1]).length;
  };
  assert.ok((await stripes(span)) >= 4, 'stripes');
  const closed = legs(await shapesOfOdd(page, ODD.plain))[0];
  assert.ok((await stripes(closed)) < 3, 'none on what has ended');
}

/** An orange corner on a leg that reported what cannot be true. */
async function impossible(page) {
  const corner = async (odd) => {
    const [{ x, y, width }] = legs(await shapesOfOdd(page, odd));
    return countOf(await painted(page, { x: x + width - 8, y, width: 8, height: 8 }, '--warn'));
  };
  const inked = await corner(ODD.impossible);
  assert.ok(inked >= 20 && inked <= 50, `half of a square: ${inked} pixels`);
  assert.equal(await corner(ODD.plain), 0, 'none on a good one');
}

/** A red head on what did not complete, and its outcome in words. */
async function failed(page) {
  const head = async (odd) => {
    const [{ x, y, width }] = legs(await shapesOfOdd(page, odd));
    return countOf(await painted(page, { x, y, width, height: 4 }, '--bad')) / (width * 4);
  };
  assert.ok((await head(ODD.failed)) > 0.4, `a red head, but for what is written: ${await head(ODD.failed)}`);
  assert.equal(await head(ODD.plain), 0, 'none on what completed');
  const at = await onPage(page, requests(await shapesOfOdd(page, ODD.failed))[0]);
  await page.mouse.move(at.x, at.y);
  await eventually('it is told', () => page.textContent('#tooltip'), (text) => text.includes('failed'));
}

/** What the report finds stands on the page, word for word. */
async function findings(page) {
  const { steps } = JSON.parse(execFileSync(ROLLSCOPE, ['report', RUN, '--json'], { encoding: 'utf8' }));
  // These two have places of their own.
  const due = steps[0].findings.filter(({ check }) => !['where_time_went', 'slowest_sample'].includes(check)).map(({ explain }) => explain[0].toUpperCase() + explain.slice(1));
  await page.waitForSelector('#summary .share-bar');
  assert.deepEqual(await page.locator('#summary .findings li').allTextContents(), due);
}

/** Spans are painted as the legend says, whatever they are coloured by. */
async function colours(page) {
  for (const color of ['worker', 'reward', 'version']) {
    await page.selectOption('#color', color);
    await settled(page);
    const legend = await page.locator('#legend .entry').evaluateAll((entries) =>
      entries.map((entry) => ({ text: entry.textContent, fill: getComputedStyle(entry.querySelector('.swatch') ?? entry).backgroundColor })),
    );
    for (const odd of [ODD.plain, ODD.again]) {
      const forward = (await shapesOfOdd(page, odd)).find(({ lane, name }) => lane === 'decode' && name === 'forward');
      const row = await page.evaluate((label) => window.rollscope.samples().indexOf(label), LABELS[odd]);
      const [worker, version] = await page.evaluate((row) => ['worker', 'weight_version'].map((field) => window.rollscope.text(field, row)), row);
      const reward = await page.evaluate((row) => window.rollscope.value('reward', row), row);
      const rewards = await page.evaluate(() => window.rollscope.samples().map((_, row) => window.rollscope.value('reward', row)));
      const entry = {
        worker: () => legend.find(({ text }) => text === worker),
        version: () => legend.find(({ text }) => text === version),
        // The darkest for the most; all have the first where they are one.
        reward: () => (reward === Math.min(...rewards) ? legend[0] : reward === Math.max(...rewards) ? legend.at(-1) : undefined),
      }[color]();
      assert.ok(entry, `an entry for ${color} of ${LABELS[odd]}: ${JSON.stringify(legend)}`);
      const box = { x: forward.x + 1, y: forward.y + forward.height - 4, width: Math.max(forward.width - 2, 1), height: 3 };
      const share = countOf(await painted(page, box, hexOf(entry.fill))) / Math.max(Math.round(box.width) * 3, 1);
      assert.ok(share > 0.6, `${color}: ${share} of a forward stage is ${entry.fill}`);
    }
  }
}

/** Of two steps that differ in one stage that stage is told, and no other. */
async function differences(page) {
  await page.click('[data-tab=compare]');
  await page.waitForSelector('#compare-content .difference');
  const rows = await page.locator('#compare-content .columns > table tbody tr').evaluateAll((rows) => rows.map(({ cells }) => [cells[0].textContent, cells[3].textContent]));
  const told = new Map(rows);
  assert.match(told.get('decode forward'), /^\+100/, JSON.stringify(rows));
  for (const stage of ['prefill forward', 'decode transfer', 'decode prealloc']) assert.equal(told.get(stage), '=', stage);
}

/** The tail is shaded in the minimap, from where nine of ten samples have ended. */
async function tail(page) {
  const samples = await page.evaluate(() => window.rollscope.samples().map((_, row) => ['start', 'duration'].map((field) => window.rollscope.value(field, row))));
  const ends = samples.map(([start, duration]) => start + duration).sort((a, b) => a - b);
  const nine = ends[Math.ceil(ends.length * 0.9) - 1];
  const { from, to } = await rangeOf(page);
  const { width, height } = await page.locator('#minimap').evaluate(({ clientWidth: width, clientHeight: height }) => ({ width, height }));
  const xOf = (time_s) => GUTTER + ((time_s * 1e9 - from) / (to - from)) * (width - GUTTER);
  // Above the curve, beside what is written: where nothing but the shade can be.
  const shades = await page.evaluate(
    ([y]) => {
      const of = document.querySelector('#minimap');
      const ratio = of.width / of.getBoundingClientRect().width;
      const { data } = of.getContext('2d').getImageData(0, Math.round(y * ratio), of.width, 1);
      return Array.from({ length: of.width }, (_, x) => data.slice(x * 4, x * 4 + 4).join());
    },
    [2],
  );
  const at = (x) => shades[Math.round((x * shades.length) / width)];
  const [begin, end] = [xOf(nine), xOf(ends.at(-1))];
  assert.ok(end - begin > 6 && height > 10, `a tail from ${begin} to ${end}`);
  assert.notEqual(at(begin + 3), at(begin - 3), 'the tail has a shade that what is before has not');
  assert.equal(at(begin + 3), at((begin + end) / 2), 'all of it');
  assert.notEqual(at(end - 2), at(end + 3), 'as far as the last end');
}

/** The strips of forward passes: where they stand, and the colours of theirs. */
async function stripsOf(page) {
  await page.selectOption('#arrange', 'workers');
  await eventually('passes come', () => page.evaluate(() => window.rollscope.passes()), (count) => count > 0);
  await settled(page);
}

/** A bar is as high as the batch that it tells: here the prompts of the prefill worker, whose row is the first. */
async function strips(page) {
  await stripsOf(page);
  const box = await page.locator('#canvas').boundingBox();
  const tooltip = page.locator('#tooltip');
  const color = await page.locator('#legend .entry').evaluateAll((entries) => {
    const after = entries.find((entry) => entry.parentElement.textContent.startsWith('Prefill') && entry.textContent === 'forward');
    return getComputedStyle(after.querySelector('.swatch')).backgroundColor;
  });
  const foot = Math.min(...(await shapesOf(page)).filter(({ kind }) => kind === 'leg').map(({ y }) => y)) - STRIP_MARGIN;
  const bars = await painted(page, { x: GUTTER, y: AXIS, width: box.width - GUTTER, height: foot - AXIS }, hexOf(color));
  /** Of each batch that was pointed at the height of its bar. */
  const heights = new Map();
  for (let x = 0; x < bars[0].length && heights.size < 3; x += 3) {
    const height = bars.length - bars.findIndex((row) => row[x]);
    if (height > bars.length) continue;
    await page.mouse.move(box.x + GUTTER + x + 0.5, box.y + foot - 2);
    await settled(page);
    const told = (await tooltip.isVisible()) && /forward pass.*?(\d+) prompts?,/s.exec(await tooltip.textContent());
    if (told && !heights.has(Number(told[1]))) heights.set(Number(told[1]), height);
  }
  const [[few, low], [many, high]] = [...heights].sort(([a], [b]) => a - b).filter((_, at, all) => at === 0 || at === all.length - 1);
  assert.ok(many > few && high > low, `larger batches are higher: ${JSON.stringify([...heights])}`);
}

/** Red where messages were lost. */
async function lost(page) {
  await page.route(PASSES, async (route) => {
    const answer = await route.fetch();
    const body = await answer.body();
    const length = body.readUInt32LE(4);
    const { columns } = JSON.parse(body.subarray(8, 8 + length).toString());
    const [kind, first, entries] = columns.lost_before;
    const size = { u8: 1, u32: 4, i32: 4, f32: 4, f64: 8 }[kind];
    // One of the first worker's.
    const at = 8 + length + first + size * Math.min(5, entries - 1);
    if (kind === 'f64') body.writeDoubleLE(3, at);
    else if (kind === 'f32') body.writeFloatLE(3, at);
    else body[at] = 3;
    await route.fulfill({ response: answer, body });
  });
  const red = async () => {
    const { width, height } = await page.locator('#canvas').evaluate(({ clientWidth: width, clientHeight: height }) => ({ width, height }));
    const rows = await painted(page, { x: GUTTER, y: AXIS, width: width - GUTTER, height: height - AXIS }, '--bad');
    const columns = rows[0].map((_, x) => rows.filter((row) => row[x]).length);
    return Math.max(...columns);
  };
  await stripsOf(page);
  assert.ok((await red()) > 2 * STRIP_MARGIN, `a red line as high as the strip: ${await red()}`);
  const before = await red();
  await page.unroute(PASSES);
  await page.reload();
  await settled(page);
  await stripsOf(page);
  assert.ok((await red()) < before, 'and none where nothing was lost');
}
