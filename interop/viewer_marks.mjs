// What the page draws besides bars, by its pixels: arrows of KV transfers, bounds of clocks, marks where weights changed,
// lines of steps; brushing in the scatter; and what it says of a step that is too large.
//
// Marks are looked for in runs that are made up, so that nothing hangs on how fast a machine is: three steps, in which every
// clock is unsure by some time and half of the samples were answered by the weights that came next.

import assert from 'node:assert/strict';
import { cpSync, readFileSync, readdirSync, writeFileSync } from 'node:fs';
import { crc32 } from 'node:zlib';

import { eventually, launch, open, rangeOf, settled, shapesOf, start, stateOf } from './browser.mjs';
import { BEGIN_S, END_S, asked, imported, samplesOf } from './dumps.mjs';

const { RUN } = process.env;
const SAMPLES = 8;
/** How unsure the clocks are. */
const BOUND_NS = 30_000_000;
/** How much later a worker begins than it is asked. */
const LATE_S = 0.1;
/** Where rows begin in the timeline, and below its axis. */
const [GUTTER, AXIS] = [168, 24];

const RUNS = { sure: made('sure', 0, 1), unsure: made('unsure', BOUND_NS, 3) };
const browser = await launch();
try {
  for (const check of [arrows, bounds, versions, sparklines, scatter, tooMany]) {
    await check();
    console.log(`ok ${check.name}`);
  }
} finally {
  await browser.close();
}

/** Some steps of the same samples; with clocks that are unsure, and then with two weights, of which the second answered later. */
function made(name, bound_ns, steps) {
  const samples = samplesOf(SAMPLES);
  for (const [place, { trace }] of samples.entries()) {
    const isLater = bound_ns > 0 && place >= SAMPLES / 2;
    const later_s = isLater ? END_S - BEGIN_S : 0;
    for (const event of trace.events) event.ts += later_s;
    const request = asked({ trace });
    request.arrival_ns += 1e9 * later_s;
    for (const leg of request.legs) {
      Object.assign(leg, { clock_ns: [0, bound_ns], weight_version: isLater ? '2' : '1' });
      // The worker's own clock tells when it began, within a request that is longer than what it did.
      leg.readings.push(['request_received_ts', BEGIN_S + later_s + LATE_S, null]);
      leg.end_ns += 2e9 * LATE_S;
    }
    request.end_ns += 2e9 * LATE_S;
  }
  return imported(name, ...Array.from({ length: steps }, () => samples));
}

/** Looks at a run; nothing may be complained of but what is expected. */
async function shown(run, look, expected = /^$/) {
  const viewer = await start('view', run, '--no-open', '--listen', '127.0.0.1:0');
  try {
    const { page, complaints } = await open(browser, viewer.url);
    await settled(page);
    const seen = await look(page, viewer);
    // That pixels are read is this check's doing.
    assert.deepEqual(complaints.filter((told) => !expected.test(told) && !told.includes('getImageData')), [], 'nothing to complain of');
    await page.context().close();
    return seen;
  } finally {
    await viewer.stop();
  }
}

/** Zooms to the request with the longest transfer, and gives the shapes of its sample. */
async function zoomed(page) {
  const isTransfer = ({ lane, name }) => lane === 'decode' && name === 'transfer';
  const longest = (await shapesOf(page)).filter(isTransfer).sort((a, b) => b.width - a.width)[0];
  assert.ok(longest, 'a transfer is in sight');
  const { from, to } = await rangeOf(page);
  const width = await page.evaluate(() => document.querySelector('#canvas').getBoundingClientRect().width);
  const at_s = (x) => (from + ((x - GUTTER) / (width - GUTTER)) * (to - from)) / 1e9;
  const range = { from: at_s(longest.x) - 0.7, to: at_s(longest.x + longest.width) + 0.7 };
  await page.evaluate(({ from, to }) => (location.hash = `#step=0&from=${from}&to=${to}`), range);
  await eventually('the URL is followed', () => rangeOf(page), (shown) => Math.abs(shown.from / 1e9 - range.from) < 1e-3);
  await settled(page);
  const shapes = (await shapesOf(page)).filter(({ sample }) => sample === longest.sample);
  const transfer = shapes.find(isTransfer);
  assert.ok(transfer.width > 12, `the transfer is ${transfer.width} pixels wide`);
  return { shapes, transfer };
}

/** The pixels of a box of the timeline, in rows: of each whether it is as near to the colour of text. */
function inked(page, box, near = 150) {
  return page.evaluate(
    ([{ x, y, width, height }, near]) => {
      const of = document.querySelector('#canvas');
      const ratio = of.width / of.getBoundingClientRect().width;
      const [r, g, b] = getComputedStyle(document.body).color.match(/\d+/g).map(Number);
      const rows = [];
      for (let down = 0; down < height; down++) {
        const { data } = of.getContext('2d').getImageData(Math.round(x * ratio), Math.round((y + down) * ratio), Math.round(width * ratio), 1);
        rows.push(Array.from({ length: data.length / 4 }, (_, at) => Math.abs(data[at * 4] - r) + Math.abs(data[at * 4 + 1] - g) + Math.abs(data[at * 4 + 2] - b) < near));
      }
      return rows;
    },
    [box, near],
  );
}

function countOf(rows) {
  return rows.flat().filter(Boolean).length;
}

/** The head of an arrow stands where the KV cache has arrived, and at no other stage's end. */
async function arrows() {
  await shown(RUNS.sure, async (page) => {
    const { transfer } = await zoomed(page);
    const head = ({ x, y, width }) => ({ x: x + width - 3, y, width: 7, height: 6 });
    const arrived = countOf(await inked(page, head(transfer)));
    assert.ok(arrived >= 12, `the head of an arrow: ${arrived} pixels`);
    // One that ends away from the arrow at its begin, and in sight.
    const edge = (await page.locator('#canvas').boundingBox()).width - 20;
    const forward = (await shapesOf(page)).find(({ lane, name, x, width }) => lane === 'decode' && name === 'forward' && width > 30 && x + width < edge);
    assert.ok(forward, 'a forward stage is in sight');
    assert.ok(countOf(await inked(page, head(forward))) < 6, 'no arrow at the end of a forward stage');
    await page.screenshot({ path: 'arrows.png' });
    await page.keyboard.press('c');
    await settled(page);
    const compact = (await shapesOf(page)).find(({ sample, lane, name }) => sample === transfer.sample && lane === 'decode' && name === 'transfer');
    assert.ok(compact === undefined || countOf(await inked(page, head(compact))) < 6, 'no arrows between compact rows');
  });
}

/** A line from the first stage of a leg as far as its clock is unsure; none where it is sure. */
async function bounds() {
  const reach = (run) =>
    shown(run, async (page) => {
      const { shapes } = await zoomed(page);
      const first = shapes.find(({ lane, name }) => lane === 'decode' && name === 'prealloc');
      assert.ok(first && first.x > GUTTER + 40, `the first stage of the decode leg: ${JSON.stringify(first)}`);
      const rows = await inked(page, { x: first.x - 40, y: first.y + Math.floor(first.height / 2) - 1, width: 39, height: 3 }, 250);
      const { from, to } = await rangeOf(page);
      const width = await page.evaluate(() => document.querySelector('#canvas').getBoundingClientRect().width);
      await page.screenshot({ path: `bounds-${run}.png` });
      return { drawn: Math.max(...rows.map((row) => row.filter(Boolean).length)), due: Math.min((BOUND_NS / (to - from)) * (width - GUTTER), 39) };
    });
  const [sure, unsure] = [await reach(RUNS.sure), await reach(RUNS.unsure)];
  assert.ok(sure.drawn < 3, `no line where clocks are sure: ${sure.drawn}`);
  assert.ok(Math.abs(unsure.drawn - unsure.due) < 4, `a line of ${unsure.due} pixels: ${unsure.drawn}`);
}

/** A vertical mark through all rows for each of the weights that answered; none where there was one. */
async function versions() {
  const marks = (run) =>
    shown(run, (page) =>
      page.evaluate((axis) => {
        const canvas = document.querySelector('#marks');
        const ratio = canvas.width / canvas.getBoundingClientRect().width;
        const top = Math.round((axis + 16) * ratio);
        const { data, width, height } = canvas.getContext('2d').getImageData(0, top, canvas.width, canvas.height - top);
        let marked = 0;
        for (let x = 0, before = false; x < width; x++) {
          let inked = 0;
          for (let y = 0; y < height; y++) inked += data[(y * width + x) * 4 + 3] > 0 ? 1 : 0;
          const isMark = inked > height * 0.95;
          marked += isMark && !before ? 1 : 0;
          before = isMark;
        }
        return marked;
      }, AXIS),
    );
  assert.equal(await marks(RUNS.sure), 0, 'one version is not marked');
  assert.equal(await marks(RUNS.unsure), 2, 'two versions are');
}

/** A line over the steps for each number that several of them have. */
async function sparklines() {
  await shown(RUNS.unsure, async (page) => {
    const lines = await page.locator('#steps .sparkline').evaluateAll((found) =>
      found.map((line) => ({
        name: line.querySelector('span').textContent,
        points: line.querySelector('svg polyline').getAttribute('points').split(' ').length,
        width: line.querySelector('svg').getBoundingClientRect().width,
        told: line.querySelector('b').textContent,
      })),
    );
    assert.ok(lines.some(({ name }) => name === 'reward') && lines.length >= 2, JSON.stringify(lines));
    for (const { name, points, width, told } of lines) {
      assert.ok(points === 3 && width > 40 && told !== '', `${name}: ${points} points, ${width} pixels, ${told}`);
    }
  });
  await shown(RUNS.sure, async (page) => assert.equal(await page.locator('#steps .sparkline').count(), 0, 'a single step has no line'));
}

/** A box that is dragged over the scatter becomes a filter of both fields, which leaves the samples in it. */
async function scatter() {
  await shown(RUN, async (page) => {
    await page.click('[data-tab=charts]');
    await page.selectOption('#chart-field', 'duration');
    await page.selectOption('#chart-other', 'tokens');
    await page.waitForFunction(() => document.querySelector('#chart-facts').textContent.includes('median'));
    const canvas = page.locator('#scatter');
    await canvas.scrollIntoViewIfNeeded();
    const box = await canvas.boundingBox();
    await page.mouse.move(box.x + 62, box.y + 16);
    await page.mouse.down();
    await page.mouse.move(box.x + box.width * 0.55, box.y + box.height - 30, { steps: 4 });
    await page.mouse.up();
    const { filter } = await stateOf(page);
    const told = /^duration >= (\S+) and duration <= (\S+) and tokens >= (\S+) and tokens <= (\S+)$/.exec(filter);
    assert.ok(told, `brushing filters by both: ${filter}`);
    const values = await page.evaluate(() => window.rollscope.samples().map((_, row) => ['duration', 'tokens'].map((field) => window.rollscope.value(field, row))));
    const [fromA, toA, fromB, toB] = told.slice(1).map(Number);
    const within = values.filter(([a, b]) => a >= fromA && a <= toA && b >= fromB && b <= toB).length;
    await page.click('[data-tab=timeline]');
    await settled(page);
    const rows = await page.evaluate(() => window.rollscope.rows().length);
    assert.ok(rows > 0 && rows < values.length, `${rows} of ${values.length} samples are left`);
    assert.equal(rows, within, 'those that lie within');
  });
}

/** A step that is too large is shown as it was made when it was sealed; of the rest a sentence is told. */
async function tooMany() {
  const claimed = claiming('many-passes', [[/("table":"forward_passes".*?"rows":)\d+/, '$14000000']]);
  await shown(
    claimed,
    async (page) => {
      await page.selectOption('#arrange', 'workers');
      await eventually('it is told', () => page.textContent('#message'), (text) => /400000\d forward passes, more than the 3000000/.test(text));
      await eventually('legs are shown all the same', () => shapesOf(page), (shapes) => shapes.some(({ kind }) => kind === 'leg'));
    },
    /413/,
  );
  const samples = claiming('many-requests', [[/("requests":)\d+/, '$110000000']]);
  await shown(
    samples,
    async (page, viewer) => {
      assert.ok((await shapesOf(page)).length > 0, 'the first rows are shown');
      await page.keyboard.press('End');
      await page.locator('#scroller').evaluate((scroller) => (scroller.scrollTop = scroller.scrollHeight));
      await eventually('it is told', () => page.textContent('#message'), (text) => /requests and spans, more than the \d+ that the viewer reads/.test(text));
      assert.equal((await fetch(`${viewer.url}/api/steps/1/tiles/1`)).status, 413);
    },
    /413/,
  );
}

/** A copy of the recorded run that says of itself what it is not. */
function claiming(name, changes) {
  cpSync(RUN, name, { recursive: true });
  const manifest = `${name}/manifest/${readdirSync(`${name}/manifest`).sort((a, b) => parseInt(b) - parseInt(a))[0]}`;
  let text = readFileSync(manifest, 'utf8').replace(/,"crc32":\d+\}\n$/, '');
  for (const [from, to] of changes) {
    assert.match(text, from);
    text = text.replace(from, to);
  }
  writeFileSync(manifest, `${text},"crc32":${crc32(text)}}\n`);
  return name;
}
