// Measures the page over large runs: what `cargo xtask bench viewer` runs, and what its figures mean.
//
//   first paint   from the command to the first rows drawn with their spans, in a browser that is open already
//   frame         the page's work for a frame while the view is panned and zoomed without pause, 95th percentile
//   filter        from a key in the filter to the rows drawn that it leaves
//   search        from a key in the search to what was found
//   memory        private memory of the page's process after all of that
//
// A figure of a machine that does other things as well is too high, never too low; the median of the rounds counts.

import { readFileSync } from 'node:fs';

import { launch, open, settled, start } from './browser.mjs';

const CASES = JSON.parse(process.env.CASES);
const ROUNDS = Number(process.env.ROUNDS);
const FRAMES = 150;

const bars = [];
for (const one of CASES) {
  const rounds = [];
  for (let round = 0; round < ROUNDS; round++) rounds.push(await measure(one));
  console.log(`== ${one.name}: ${rounds[0].samples} samples`);
  for (const [figure, limit] of Object.entries(one.bars)) {
    const values = rounds.map((of) => of[figure]).sort((a, b) => a - b);
    const median = values[values.length >> 1];
    bars.push(median <= limit);
    const spread = `${values[0].toFixed(1)} … ${values.at(-1).toFixed(1)}`;
    console.log(`${median <= limit ? 'met   ' : 'MISSED'} ${figure.padEnd(16)} ${median.toFixed(1).padStart(8)}  (${spread}), at most ${limit}`);
  }
}
process.exit(bars.every(Boolean) ? 0 : 1);

async function measure({ run }) {
  const browser = await launch();
  try {
    const began = performance.now();
    const viewer = await start('view', run, '--no-open', '--listen', '127.0.0.1:0');
    const { page } = await open(browser, viewer.url);
    await settled(page);
    const first_paint_ms = performance.now() - began;
    await page.waitForSelector('#summary .share-bar');
    const samples = await page.evaluate(() => window.rollscope.samples().length);
    const frame_ms = Math.max(...(await inOrder([() => frames(page, 'samples'), () => frames(page, 'workers')])));
    await page.selectOption('#arrange', 'samples');
    const filter_ms = Math.max(...(await inOrder(['duration > 1', 'duration > 1 and worker ~ decode-2', 'reward = 1'].map((text) => () => keystroke(page, text)))));
    await page.fill('#filter', '');
    // As a user does: into the field first, and then the keys.
    await Promise.all([page.waitForResponse(/search\?text=$/), page.locator('#search').focus()]);
    const search_ms = Math.max(...(await inOrder(['sample-', 'prompt-17', 'decode-3'].map((text) => () => searched(page, text)))));
    const memory_mb = await memory(browser, page);
    await viewer.stop();
    return { samples, first_paint_ms, frame_ms, filter_ms, search_ms, memory_mb };
  } finally {
    await browser.close();
  }
}

async function inOrder(steps) {
  const results = [];
  for (const step of steps) results.push(await step());
  return results;
}

/** The 95th percentile of the work for a frame while the wheel and the keys move the view. */
async function frames(page, arrange) {
  await page.selectOption('#arrange', arrange);
  await page.locator('#scroller').focus();
  await settled(page);
  const box = await page.locator('#canvas').boundingBox();
  await page.mouse.move(box.x + box.width / 2, box.y + 120);
  const taken = [];
  for (let frame = 0; frame < FRAMES; frame++) {
    const before = await page.evaluate(() => window.rollscope.drawings().count);
    if (frame % 3 === 0) await page.keyboard.press(frame % 2 === 0 ? 'd' : 'ArrowDown');
    else await page.mouse.wheel(0, frame < FRAMES / 2 ? -100 : 100);
    await page.waitForFunction((count) => window.rollscope.drawings().count > count, before, { polling: 'raf', timeout: 5000 }).catch(() => {});
    taken.push(await page.evaluate(() => window.rollscope.drawings().last_ms));
  }
  await page.keyboard.press('f');
  taken.sort((a, b) => a - b);
  return taken[Math.floor(taken.length * 0.95)];
}

/** From a change of the filter until its rows are drawn. */
function keystroke(page, text) {
  return page.evaluate(async (text) => {
    const input = document.querySelector('#filter');
    const began = performance.now();
    input.value = text;
    input.dispatchEvent(new Event('input'));
    await new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)));
    return performance.now() - began;
  }, text);
}

/** From a change of the search until it is told what was found. */
function searched(page, text) {
  return page.evaluate(async (text) => {
    const [input, told] = [document.querySelector('#search'), document.querySelector('#search-told')];
    told.textContent = '';
    const began = performance.now();
    input.value = text;
    input.dispatchEvent(new Event('input'));
    while (!told.textContent.includes('found')) await new Promise((resolve) => setTimeout(resolve, 1));
    return performance.now() - began;
  }, text);
}

/** Private memory of the page's process. */
async function memory(browser, page) {
  const session = await browser.newBrowserCDPSession();
  const { processInfo } = await session.send('SystemInfo.getProcessInfo');
  await page.evaluate(() => 0);
  const sizes = processInfo.filter(({ type }) => type === 'renderer').map(({ id }) => {
    const rollup = readFileSync(`/proc/${id}/smaps_rollup`, 'utf8');
    const kb = (name) => Number(new RegExp(`^${name}: +(\\d+)`, 'm').exec(rollup)?.[1] ?? 0);
    return (kb('Private_Clean') + kb('Private_Dirty')) / 1024;
  });
  return Math.max(...sizes);
}
