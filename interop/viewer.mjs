// The timeline page in a real browser: a row per sample, the stages as spans on the P and D lanes, a tooltip with a
// span's attributes, a view that survives a reload, and nothing that the console complains of.

import assert from 'node:assert/strict';
import { execFileSync, spawn } from 'node:child_process';
import { createRequire } from 'node:module';
import { createInterface } from 'node:readline';

const { chromium } = createRequire(`${process.env.NODE_PACKAGES}/`)('playwright-core');
const { ROLLSCOPE, RUN, CHROMIUM } = process.env;

const CHROMIUM_ARGS = [
  '--no-sandbox',
  '--disable-gpu',
  '--disable-quic',
  '--no-first-run',
  '--disable-background-networking',
  '--disable-component-update',
  '--disable-sync',
];
const STAGES = {
  prefill: ['bootstrap_queue', 'bootstrap', 'forward', 'transfer_queue'],
  decode: ['prealloc', 'bootstrap', 'transfer', 'forward'],
};

const viewer = spawn(ROLLSCOPE, ['view', RUN, '--no-open', '--listen', '127.0.0.1:0', '--exit-on-stdin-close'], {
  stdio: ['pipe', 'pipe', 'inherit'],
});
process.on('exit', () => viewer.kill());
process.on('SIGTERM', () => process.exit(1));

const browser = await chromium.launch({ executablePath: CHROMIUM, args: CHROMIUM_ARGS });
try {
  await check(await readyUrl());
} finally {
  await browser.close();
  viewer.stdin.end();
}

async function readyUrl() {
  for await (const line of createInterface({ input: viewer.stdout })) {
    const match = /^rollscope view ready on (http:\S+)$/.exec(line);
    if (match) return match[1];
  }
  throw new Error('rollscope view ended without a ready line');
}

async function check(url) {
  const page = await browser.newPage({ viewport: { width: 1400, height: 900 } });
  const complaints = [];
  page.on('console', (message) => ['error', 'warning'].includes(message.type()) && complaints.push(message.text()));
  page.on('pageerror', (error) => complaints.push(String(error)));
  page.on('requestfailed', (request) => complaints.push(`${request.url()}: ${request.failure()?.errorText}`));
  page.on('request', (request) => {
    if (!request.url().startsWith(url)) complaints.push(`asks another host: ${request.url()}`);
  });
  await page.goto(url);
  await page.waitForFunction(() => window.rollscope?.samples().length > 0);

  const reported = JSON.parse(execFileSync(ROLLSCOPE, ['report', RUN, '--json'], { encoding: 'utf8' })).steps[0];
  const samples = await page.evaluate(() => window.rollscope.samples());
  assert.equal(samples.length, reported.samples, 'a row per sample');
  assert.equal(new Set(samples).size, samples.length, 'rows have labels of their own');
  assert.equal(Number(await page.getAttribute('#canvas', 'data-rows')), samples.length);
  await page.screenshot({ path: 'step.png' });

  await zoomInto(page, samples[0]);
  const shapes = await shapesOf(page);
  const on = (lane, name) => shapes.filter((shape) => shape.lane === lane && shape.name === name);
  for (const [lane, stages] of Object.entries(STAGES)) {
    const missing = stages.filter((stage) => on(lane, stage).length === 0);
    assert.deepEqual(missing, [], `stages in sight on the ${lane} lane`);
  }
  const [prefill, decode] = ['prefill', 'decode'].map((lane) =>
    on(lane, `sglang_pd_${lane}`).find((shape) => shape.sample === samples[0]),
  );
  assert.notEqual(prefill.y, decode.y, 'P and D have lanes of their own');

  const forward = on('decode', 'forward').reduce((a, b) => (a.width > b.width ? a : b));
  const told = await hover(page, forward);
  for (const expected of ['forward', forward.sample, 'of its sglang_pd_decode', 'completion_tokens', 'weight_version', 'worker']) {
    assert.ok(told.includes(expected), `the tooltip tells ${expected}: ${told}`);
  }
  await page.screenshot({ path: 'sample.png' });
  await dragToUserSpan(page, samples[0]);

  const range = await page.evaluate(() => window.rollscope.range());
  await page.waitForFunction(() => location.hash.includes('from='));
  await page.reload();
  await page.waitForFunction(() => window.rollscope?.samples().length > 0);
  const again = await page.evaluate(() => window.rollscope.range());
  assert.ok(Math.abs(again.from - range.from) < 10 && Math.abs(again.to - range.to) < 10, 'the view survives a reload');

  await page.keyboard.press('f');
  await page.waitForFunction((zoomed) => window.rollscope.range().to > zoomed, range.to);
  assert.deepEqual(complaints, [], 'nothing to complain of');
  console.log(`${samples.length} rows, ${shapes.length} spans in sight; pictures in ${process.cwd()}`);
}

/** Zooms until the request of a sample fills much of the page, by wheel and drag, as a user does. */
async function zoomInto(page, sample) {
  const [wide, left] = [500, 200];
  for (let turns = 0; turns < 80; turns++) {
    const request = (await shapesOf(page)).find((shape) => shape.sample === sample && shape.name === 'request');
    assert.ok(request, 'the request is in sight');
    if (request.width > wide) return;
    // At its beginning, so that it grows to the right; and that at the left, where it has room to grow.
    const at = await onPage(page, request, 0);
    await page.mouse.move(at.x, at.y);
    await page.mouse.wheel(0, -200);
    await drawn(page);
    if (request.x > left) await drag(page, left - request.x);
  }
  throw new Error(`the request of ${sample} does not get wide`);
}

/** Drags towards later times until a span of the driver's own is in sight: a sample's reward follows its request. */
async function dragToUserSpan(page, sample) {
  for (let drags = 0; drags < 40; drags++) {
    if ((await shapesOf(page)).some((shape) => shape.sample === sample && shape.lane === 'user')) return;
    await drag(page, -300);
  }
  throw new Error(`${sample} has no span of the driver's own after its request`);
}

/** Drags the view by so many pixels to the right, or with a negative number to the left. */
async function drag(page, by) {
  const box = await page.locator('#canvas').boundingBox();
  const [x, y] = [box.x + box.width / 2, box.y + box.height / 2];
  await page.mouse.move(x, y);
  await page.mouse.down();
  await page.mouse.move(x + by, y, { steps: 4 });
  await page.mouse.up();
  await drawn(page);
}

/** Waits for what the last input changed. */
async function drawn(page) {
  await page.evaluate(() => new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve))));
}

async function shapesOf(page) {
  return page.evaluate(() => window.rollscope.shapes());
}

/** A point of a shape, by default its middle, in the window. */
async function onPage(page, shape, share = 0.5) {
  const box = await page.locator('#canvas').boundingBox();
  return { x: box.x + shape.x + shape.width * share, y: box.y + shape.y + shape.height / 2 };
}

/** Points at a shape; returns what the tooltip tells. */
async function hover(page, shape) {
  const at = await onPage(page, shape);
  await page.mouse.move(at.x, at.y);
  await page.waitForSelector('#tooltip:not([hidden])');
  return page.textContent('#tooltip');
}
