// Whatever is not plain has a sign of its own: instants, further tries, open ends, impossible values, failures, lost messages;
// by their pixels, as are the tail of the minimap, the strips of forward passes, the colours that spans are painted by, and a
// distribution.
//
// But for the strips the runs are made up, so that nothing hangs on how fast a machine is: six samples of one are odd, each
// in its own way, of another's twenty one is late, and a third's have these rewards. Strips have their passes from here, and all else from a recorded run.

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';

import { eventually, launch, onPage, open, rangeOf, settled, shapesOf, start, stateOf } from './browser.mjs';
import { BEGIN_S, END_S, add, asked, imported, samplesOf, span } from './dumps.mjs';

const { ROLLSCOPE, RUN } = process.env;
/** Where rows begin in the timeline, and below its axis. */
const [GUTTER, AXIS] = [168, 24];
/** Free height above and below a strip of forward passes. */
const STRIP_MARGIN = 6;

/** What is around the plot of a distribution. */
const PLOT = { left: 58, right: 44, top: 12, foot: 26 };

/** What the page asks for forward passes by. */
const PASSES = /api\/steps\/\d+\/passes/;

/** What is done to each sample, by its place. */
const ODD = { plain: 0, instants: 1, again: 2, open: 3, impossible: 4, failed: 5 };
const LABELS = Object.values(ODD).map((place) => `${place}/0`);
/** Rewards of samples, in order. */
const REWARDS = [0, 3, 3, 3, 7, 12, 12, 18, 20, 24];
const RUNS = { odd: odd(), late: late(), rewarded: rewarded(), recorded: RUN };
const browser = await launch();
try {
  for (const [run, check] of [
    ['odd', instants],
    ['odd', further],
    ['odd', openEnds],
    ['odd', impossible],
    ['odd', failed],
    ['odd', findings],
    ['odd', colours],
    ['odd', differences],
    ['late', tail],
    ['rewarded', distribution],
    ['recorded', strips],
    ['recorded', lost],
  ]) {
    await shown(RUNS[run], check);
    console.log(`ok ${check.name}`);
  }
} finally {
  await browser.close();
}

/** A run of samples with the instant, the try, the open span … that is to be seen. */
function odd() {
  const samples = samplesOf(Object.keys(ODD).length);
  /** A time after all of them, by tenths of what they take. */
  const after = (tenths) => END_S + (tenths * (END_S - BEGIN_S)) / 10;
  // The least and the greatest have colours of their own.
  [samples[ODD.plain].reward, samples[ODD.again].reward] = [0, 1];
  // One by itself, and one where a span ends.
  add(samples[ODD.instants], { type: 'event', name: 'noted', ts: after(1), attrs: { why: 'it was asked' } }, ...span('tool', 'a', after(2), after(3)), { type: 'event', name: 'at its end', ts: after(3), attrs: {} });
  const again = samples[ODD.again];
  asked(again).attempt = 1;
  for (const event of again.trace.events) event.attempt = 1;
  add(samples[ODD.open], ...span('never ends', 'b', after(1)));
  Object.assign(asked(samples[ODD.impossible]).legs[1].readings.find(([name]) => name === 'queue_time'), [, -1, 'negative']);
  const request = asked(samples[ODD.failed]);
  [request.outcome, request.legs[1].outcome, request.error] = ['failed', 'failed', 'the worker is gone'];
  // And the same once more, of which every decode worker took half of the time.
  const faster = structuredClone(samples);
  for (const reading of faster.flatMap((sample) => asked(sample).legs[1].readings)) if (reading[0] === 'pd_decode_forward_duration') reading[1] /= 2;
  return imported('odd', faster, samples);
}

/** A run of which one sample takes twice as long as all others. */
function late() {
  const samples = samplesOf(20);
  add(samples[0], ...span('late', 'c', END_S, END_S + (END_S - BEGIN_S)));
  return imported('late', samples);
}

/** A run of samples with known rewards. */
function rewarded() {
  const samples = samplesOf(REWARDS.length);
  for (const [place, reward] of REWARDS.entries()) samples[place].reward = reward;
  return imported('rewarded', samples);
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

/** What the report finds stands on the page, word for word; that a request failed is found at least. */
async function findings(page) {
  const { steps } = JSON.parse(execFileSync(ROLLSCOPE, ['report', RUNS.odd, '--json'], { encoding: 'utf8' }));
  const step = await page.evaluate(() => window.rollscope.step());
  const found = steps.find((of) => of.step === step).findings;
  // These two have places of their own.
  const due = found.filter(({ check }) => !['where_time_went', 'slowest_sample'].includes(check)).map(({ explain }) => explain[0].toUpperCase() + explain.slice(1));
  assert.ok(due.some((text) => text.includes('the worker is gone')), `the failure is found: ${due}`);
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
  assert.ok(end - begin > width / 4 && height > 10, `a tail from ${begin} to ${end}`);
  assert.notEqual(at(begin + 3), at(begin - 3), 'the tail has a shade that what is before has not');
  assert.equal(at(begin + 3), at((begin + end) / 2), 'all of it');
  assert.notEqual(at(end - 2), at(end + 3), 'as far as the last end');
}

/** A bar is as high as there are samples of its value, and the line stands, left and right of each value, at the share up to there. */
async function distribution(page) {
  await page.click('[data-tab=charts]');
  await page.selectOption('#chart-field', 'reward');
  await page.waitForFunction(() => document.querySelector('#chart-facts').textContent.includes('median'));
  const { width, height } = await page.locator('#histogram').evaluate(({ clientWidth: width, clientHeight: height }) => ({ width, height }));
  const plot = { x: PLOT.left, y: PLOT.top, width: width - PLOT.left - PLOT.right, height: height - PLOT.top - PLOT.foot };
  const [bars, line] = await Promise.all(['--accent', '--warn'].map((color) => painted(page, plot, color, { canvas: '#histogram', near: 70 })));
  await page.screenshot({ path: 'distribution.png' });

  // What is brushed tells which value stands where.
  const box = await page.locator('#histogram').boundingBox();
  const brushed = [plot.x + 20, plot.x + plot.width - 20];
  await page.mouse.move(box.x + brushed[0], box.y + 60);
  await page.mouse.down();
  await page.mouse.move(box.x + brushed[1], box.y + 60, { steps: 4 });
  await page.mouse.up();
  const { filter } = await stateOf(page);
  const [from, to] = /^reward >= (\S+) and reward <= (\S+)$/.exec(filter).slice(1).map(Number);
  const xOf = (value) => 20 + ((value - from) / (to - from)) * (brushed[1] - brushed[0]);

  /** The middle of what is drawn of a column, from the foot, as a share of the plot. */
  const shareAt = (x) => {
    const at = line.flatMap((row, y) => (row[Math.round(x)] ? [y + 0.5] : []));
    assert.ok(at.length > 0, `a line at ${x}`);
    return 1 - at.reduce((sum, y) => sum + y, 0) / at.length / plot.height;
  };
  const upTo = (value) => REWARDS.filter((reward) => reward <= value).length / REWARDS.length;
  const off = 2 / plot.height;
  for (const value of new Set(REWARDS)) {
    for (const [side, x, due] of [['left', xOf(value) - 4, upTo(value - 1)], ['right', xOf(value) + 4, upTo(value)]]) {
      if (x > 0) assert.ok(Math.abs(shareAt(x) - due) < off, `${side} of ${value} the line is at ${shareAt(x)}, not ${due}`);
    }
  }

  const heightOf = (value) => bars.filter((row) => row[Math.round(xOf(value) + 8)]).length;
  const [one, two, three] = [7, 12, 3].map(heightOf);
  assert.ok(one > 20 && Math.abs(two - 2 * one) <= 4 && Math.abs(three - 3 * one) <= 6, `bars of one, two and three samples: ${[one, two, three]}`);
  assert.equal(heightOf(5), 0, 'none where no sample is');
}

/** A table as the page reads it (crates/view/src/columns.rs), of numbers only. */
function tableOf(meta, columns) {
  const entries = Object.entries(columns);
  const heads = entries.map(([name, values], place) => [name, ['f64', 8 * values.length * place, values.length]]);
  const text = JSON.stringify({ meta, columns: Object.fromEntries(heads) });
  const head = Buffer.from(text.padEnd(Math.ceil(text.length / 8) * 8));
  const begin = Buffer.from('RSC1\0\0\0\0');
  begin.writeUInt32LE(head.length, 4);
  return Buffer.concat([begin, head, ...entries.map(([, values]) => Buffer.from(Float64Array.from(values).buffer))]);
}

/**
 * Shows workers, the first of them with these passes instead of what was recorded, each as long as what is between them.
 * Gives the strip that they stand in, and of each pass where in it its bar begins and where its middle is.
 */
async function showPasses(page, passes) {
  const parts = 2 * passes.length + 1;
  await page.route(PASSES, async (route) => {
    const { from, to } = await rangeOf(page);
    const worker = await page.evaluate(() => -1 - window.rollscope.rows()[0]);
    const wall = (to - from) / parts;
    const of = (value) => passes.map(value);
    const columns = {
      worker: of(() => worker),
      end_ns: of((_, place) => from + (2 * place + 2) * wall),
      wall_ns: of(() => wall),
      bound_ns: of(() => 0),
      prefill_requests: of(({ prompts }) => prompts),
      prefill_tokens: of(({ prompts }) => 10 * prompts),
      decode_requests: of(() => 0),
      kv_tokens: of(() => 0),
      queued: of(() => 0),
      lost_before: of(({ lost }) => lost),
    };
    const peaks = [{ worker, requests: Math.max(...columns.prefill_requests), kv_tokens: 0 }];
    await route.fulfill({ contentType: 'application/octet-stream', body: tableOf({ unplaced: 0, peaks, left_out: 0 }, columns) });
  });
  await page.selectOption('#arrange', 'workers');
  await eventually('passes come', () => page.evaluate(() => window.rollscope.passes()), (count) => count === passes.length);
  await settled(page);
  const width = (await page.locator('#canvas').evaluate(({ clientWidth }) => clientWidth)) - GUTTER;
  // It ends above the first leg.
  const tops = (await shapesOf(page)).filter(({ kind }) => kind === 'leg').map(({ y }) => y);
  const strip = { x: GUTTER, y: AXIS, width, height: Math.min(...tops) - AXIS };
  const bars = passes.map((_, place) => ({ begin: ((2 * place + 1) * width) / parts, middle: Math.round(((2 * place + 1.5) * width) / parts) }));
  return { strip, bars };
}

/** The colour that prompts have in a strip. */
function promptsColor(page) {
  return page.locator('#legend .entry').evaluateAll((entries) => {
    const forward = entries.find((entry) => entry.parentElement.textContent.startsWith('Prefill') && entry.textContent === 'forward');
    return getComputedStyle(forward.querySelector('.swatch')).backgroundColor;
  });
}

/** Of each column of a strip how many pixels are of a colour. */
async function heightsIn(page, strip, color) {
  const rows = await painted(page, strip, color);
  return rows[0].map((_, x) => rows.filter((row) => row[x]).length);
}

/** A bar is as high as the batch that it tells. */
async function strips(page) {
  const batches = [1, 3, 2, 4];
  const { strip, bars } = await showPasses(page, batches.map((prompts) => ({ prompts, lost: 0 })));
  const columns = await heightsIn(page, strip, hexOf(await promptsColor(page)));
  const heights = bars.map(({ middle }) => columns[middle]);
  const perPrompt = Math.max(...heights) / Math.max(...batches);
  assert.ok(perPrompt > 2 && batches.every((prompts, place) => Math.abs(heights[place] - prompts * perPrompt) < 2), `bars as high as ${batches}: ${heights}`);
  const box = await page.locator('#canvas').boundingBox();
  for (const [place, prompts] of batches.entries()) {
    await page.mouse.move(box.x + GUTTER + bars[place].middle, box.y + AXIS + strip.height - STRIP_MARGIN - 2);
    await eventually(`a batch of ${prompts} is told`, () => page.textContent('#tooltip'), (text) => Number(/forward pass.*?(\d+) prompts?,/s.exec(text)?.[1]) === prompts);
  }
}

/** Red where messages were lost, and only there. */
async function lost(page) {
  const { strip, bars } = await showPasses(page, [0, 3, 0].map((lost) => ({ prompts: 2, lost })));
  const high = Math.max(...(await heightsIn(page, strip, hexOf(await promptsColor(page)))));
  const red = (await heightsIn(page, strip, '--bad')).flatMap((height, x) => (height === 0 ? [] : [{ x, height }]));
  const near = red.filter(({ x }) => Math.abs(x - bars[1].begin) <= 3);
  assert.ok(high > 2 * STRIP_MARGIN && near.some(({ height }) => Math.abs(height - high) <= 2), `a red line as high as the strip: ${JSON.stringify(near)} of ${high}`);
  assert.deepEqual(red, near, 'and none where nothing was lost');
}
