// Measures the page over large runs: what `cargo xtask bench viewer` runs, and what its figures mean.
//
//   first paint   from the command to the first rows drawn with their spans, in an empty tab of a browser that runs already,
//                 as a user's does
//   cold paint    the same with a browser that is started when the viewer is ready; no bar, since it is the browser's start
//   whole         from the command until all samples are there; no bar. A foreign file is shown while it is being read
//   frame         the page's main thread at a frame while the view is panned and zoomed without pause: the 95th
//                 percentile, from Chromium's own trace; by samples and by workers, of which the slower counts
//   filter        from a key in the filter to the rows drawn that it leaves
//   search        from the first key in the search to what was found
//   memory        private memory of the page's process after all of that
//
// Each time is told twice: by the clock, which counts against the bar, and by the processor, which a machine that does
// other things as well does not lengthen. The median of the rounds counts.

import { readFileSync } from 'node:fs';

import { launch, settled, start, tab } from './browser.mjs';

const CASES = JSON.parse(process.env.CASES);
const ROUNDS = Number(process.env.ROUNDS);
const FRAMES = 120;

const bars = [];
for (const one of CASES) {
  const rounds = [];
  for (let round = 0; round < ROUNDS; round++) rounds.push(await measure(one));
  console.log(`== ${one.name}: ${rounds[0].samples} samples, ${rounds[0].passes} forward passes`);
  for (const figure of ['cold_paint_ms', 'whole_ms']) {
    console.log(`       ${figure.padEnd(16)} ${medianOf(rounds.map((of) => of[figure])).toFixed(1).padStart(8)}`);
  }
  for (const [figure, limit] of Object.entries(one.bars)) {
    const median = medianOf(rounds.map((of) => of[figure]));
    const cpu = medianOf(rounds.map((of) => of.cpu[figure]).filter((value) => value !== undefined));
    bars.push(median <= limit);
    const values = rounds.map((of) => of[figure]).sort((a, b) => a - b);
    const spread = `${values[0].toFixed(1)} … ${values.at(-1).toFixed(1)}`;
    const told = cpu === undefined ? '' : `; ${cpu.toFixed(1)} of the processor`;
    console.log(`${median <= limit ? 'met   ' : 'MISSED'} ${figure.padEnd(16)} ${median.toFixed(1).padStart(8)}  (${spread}), at most ${limit}${told}`);
  }
}
process.exit(bars.every(Boolean) ? 0 : 1);

function medianOf(values) {
  return [...values].sort((a, b) => a - b)[values.length >> 1];
}

async function measure({ run, bars, samples }) {
  const cold_paint_ms = await coldPaint(run);
  const browser = await launch();
  try {
    const page = await tab(browser);
    const before_s = await processorTime(browser);
    const began = performance.now();
    const viewer = await start('view', run, '--no-open', '--listen', '127.0.0.1:0');
    await page.goto(viewer.url);
    await settled(page);
    const first_paint_ms = performance.now() - began;
    const browser_s = (await processorTime(browser)) - before_s;
    const cpu = { first_paint_ms: browser_s * 1000 + serverTime_ms(viewer.pid) };
    const figures = { first_paint_ms, cold_paint_ms, cpu, passes: 0 };
    await page.waitForFunction((samples) => window.rollscope.samples().length === samples, samples);
    figures.whole_ms = performance.now() - began;
    await page.waitForSelector('#summary .share-bar');
    figures.samples = await page.evaluate(() => window.rollscope.samples().length);
    if (bars.frame_ms !== undefined) await handle(browser, page, figures);
    await viewer.stop();
    return figures;
  } finally {
    await browser.close();
  }
}

/** From the command to the first rows, where no browser runs yet. */
async function coldPaint(run) {
  const began = performance.now();
  const viewer = await start('view', run, '--no-open', '--listen', '127.0.0.1:0');
  const browser = await launch();
  try {
    const page = await tab(browser);
    await page.goto(viewer.url);
    await settled(page);
    return performance.now() - began;
  } finally {
    await viewer.stop();
    await browser.close();
  }
}

/** Everything that is done by hand. */
async function handle(browser, page, figures) {
  const [bySamples, byWorkers] = [await frames(browser, page, 'samples'), await frames(browser, page, 'workers')];
  figures.frame_ms = Math.max(bySamples.wall_ms, byWorkers.wall_ms);
  figures.cpu.frame_ms = Math.max(bySamples.cpu_ms, byWorkers.cpu_ms);
  figures.passes = await page.evaluate(() => window.rollscope.passes());
  await page.selectOption('#arrange', 'samples');
  figures.filter_ms = Math.max(...(await inOrder(['duration > 1', 'duration > 1 and worker ~ decode-2', 'reward = 1'].map((text) => () => keystroke(page, text)))));
  await page.fill('#filter', '');
  // As a user does: into the field first, and then the keys.
  await Promise.all([page.waitForResponse(/search\?text=$/), page.locator('#search').focus()]);
  figures.search_ms = Math.max(...(await inOrder(['sample-', 'prompt-17', 'decode-3'].map((text) => () => searched(page, text)))));
  figures.memory_mb = await memory(browser);
}

async function inOrder(steps) {
  const results = [];
  for (const step of steps) results.push(await step());
  return results;
}

/** The 95th percentile of the main thread's time at a frame, while the wheel and the keys move the view. */
async function frames(browser, page, arrange) {
  await page.selectOption('#arrange', arrange);
  await page.locator('#scroller').focus();
  await settled(page);
  const box = await page.locator('#canvas').boundingBox();
  await page.mouse.move(box.x + box.width / 2, box.y + 120);
  await browser.startTracing(page, { categories: ['devtools.timeline', 'toplevel'] });
  for (let frame = 0; frame < FRAMES; frame++) {
    const before = await page.evaluate(() => window.rollscope.drawings());
    if (frame % 3 === 0) await page.keyboard.press(frame % 2 === 0 ? 'd' : 'ArrowDown');
    else await page.mouse.wheel(0, frame < FRAMES / 2 ? -100 : 100);
    // Where it cannot be moved further nothing is drawn.
    await page.evaluate(
      (count) =>
        new Promise((resolve) => {
          let left = 10;
          const look = () => (window.rollscope.drawings() > count || left-- === 0 ? resolve() : requestAnimationFrame(look));
          look();
        }),
      before,
    );
  }
  const { traceEvents } = JSON.parse(await browser.stopTracing());
  await page.keyboard.press('f');
  await settled(page);
  return slowFrame(traceEvents);
}

/** Of the tasks of the main thread in which something was drawn, the 95th percentile. */
function slowFrame(events) {
  const thread = ({ pid, tid }) => `${pid}/${tid}`;
  const drawn = events.filter(({ name }) => name === 'FireAnimationFrame');
  const main = drawn.length > 0 ? thread(drawn[0]) : '';
  const tasks = events.filter((event) => event.ph === 'X' && thread(event) === main && /RunTask$/.test(event.name));
  const frames = tasks.filter(({ ts, dur }) => drawn.some((of) => thread(of) === main && of.ts >= ts && of.ts <= ts + dur));
  // Looking whether something was drawn takes frames as well: those of drawings are the longest.
  const slow = (name) => {
    const taken = frames.map((task) => task[name] ?? 0).sort((a, b) => b - a);
    return (taken[Math.floor(Math.min(taken.length, FRAMES) * 0.05)] ?? 0) / 1000;
  };
  return { wall_ms: slow('dur'), cpu_ms: slow('tdur') };
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

/** Processor time of the browser with all its processes so far. */
async function processorTime(browser) {
  const session = await browser.newBrowserCDPSession();
  const { processInfo } = await session.send('SystemInfo.getProcessInfo');
  return processInfo.reduce((sum, { cpuTime }) => sum + cpuTime, 0);
}

/** Processor time of a process of ours, as the kernel counts it: in hundredths. */
function serverTime_ms(pid) {
  const fields = readFileSync(`/proc/${pid}/stat`, 'utf8').replace(/^.*\) /s, '').split(' ');
  return (Number(fields[11]) + Number(fields[12])) * 10;
}

/** Private memory of the page's process. */
async function memory(browser) {
  const session = await browser.newBrowserCDPSession();
  const { processInfo } = await session.send('SystemInfo.getProcessInfo');
  const sizes = processInfo.filter(({ type }) => type === 'renderer').map(({ id }) => {
    const rollup = readFileSync(`/proc/${id}/smaps_rollup`, 'utf8');
    const kb = (name) => Number(new RegExp(`^${name}: +(\\d+)`, 'm').exec(rollup)?.[1] ?? 0);
    return (kb('Private_Clean') + kb('Private_Dirty')) / 1024;
  });
  return Math.max(...sizes);
}
