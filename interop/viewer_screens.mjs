// The page at three sizes, light and dark, over a file that is always the same: compared with what it looked like when
// somebody looked at it. Fonts differ between machines by a pixel here and a word there, so no pixels are compared: a
// screen is cut into cells, and of each cell the mean colour may be a little off. Beside it, what no font moves is held
// exactly: every span in sight is drawn in the colour that the legend gives its stage, nothing is cut off, and nothing
// lies over anything else.
//
// `UPDATE_SCREENS=1 cargo xtask interop viewer-screens` writes screens.json anew; look at the pictures in
// target/interop/work/viewer-screens.

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { readFileSync, writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

import { launch, open, settled, shapesOf, start } from './browser.mjs';

const { ROLLSCOPE } = process.env;
const here = (name) => fileURLToPath(new URL(name, import.meta.url));
const FILE = here('../crates/formats/tests/data/turns.pt');
const KEPT = here('screens.json');
const SIZES = [[1280, 720], [1920, 1080], [1000, 700]];
const TABS = ['timeline', 'samples', 'charts'];
/** A sample of two turns. */
const SAMPLE = '3/24';
/** What is shown of two steps: by its URL, and from where. */
const VIEWS = [
  ['compare', 'step=1&tab=compare&against=0', '#compare-content .difference'],
  ['pinned', `step=1&pin=1.1.${SAMPLE}`, '#details:not([hidden]) .stages'],
  ['sample', `step=1&pin=0.0.${SAMPLE}`, '#details .conversation'],
];
/** Cells of a screen. */
const [ACROSS, DOWN] = [16, 9];
/** How far the channels of a cell may be off, of 255: a word more or less; and of a screen in the mean. */
const CELL_OFF = 48;
const SCREEN_OFF = 6;

const kept = process.env.UPDATE_SCREENS ? {} : JSON.parse(readFileSync(KEPT, 'utf8'));
const seen = {};
const [viewer, ofTwo] = await Promise.all([FILE, twoSteps()].map((of) => start('view', of, '--no-open', '--listen', '127.0.0.1:0')));
const browser = await launch();
try {
  const reader = await (await browser.newContext()).newPage();
  for (const colorScheme of ['light', 'dark']) {
    for (const [width, height] of SIZES) {
      const options = { colorScheme, viewport: { width, height } };
      await shown(viewer.url, options, async (page) => {
        await page.waitForSelector('#summary .fact');
        for (const tab of TABS) {
          await page.click(`[data-tab=${tab}]`);
          const picture = await pictured(page, reader, `${tab}-${colorScheme}-${width}`);
          if (tab === 'timeline') await drawn(page, reader, picture);
        }
      });
      for (const [view, hash, wanted] of VIEWS) {
        await shown(`${ofTwo.url.replace(/\/$/, '')}/#${hash}`, options, async (page) => {
          await page.waitForSelector(wanted);
          if (view === 'sample') await page.locator(wanted).evaluate((of) => of.scrollIntoView());
          await pictured(page, reader, `${view}-${colorScheme}-${width}`);
        });
      }
      console.log(`ok ${colorScheme}, ${width} × ${height}`);
    }
  }
} finally {
  await browser.close();
  await Promise.all([viewer, ofTwo].map((server) => server.stop()));
}
if (process.env.UPDATE_SCREENS) writeFileSync(KEPT, `${JSON.stringify(seen, null, 1)}\n`);

/** The file's step and after it the same once more, in half of the time, of which a sample's turns were recorded. */
function twoSteps() {
  execFileSync(ROLLSCOPE, ['export', FILE, '--to', 'slime-json', 'first.json']);
  // Beyond 2^53 a number is another one: what was told at the end is told anew.
  const { rollscope: _, ...first } = JSON.parse(readFileSync('first.json', 'utf8'));
  const second = { ...structuredClone(first), rollout_id: 1 };
  for (const { rollscope, trace } of second.samples) {
    const begin = trace.events[0].ts;
    for (const event of trace.events) {
      event.ts = begin + (event.ts - begin) / 2;
      for (const name of Object.keys(event.attrs ?? {})) if (/_duration$|_latency$/.test(name)) event.attrs[name] /= 2;
    }
    if (`${rollscope.group}/${rollscope.sample}` === SAMPLE) trace.events.push(...turns(trace));
  }
  writeFileSync('steps.jsonl', `${[first, second].map((step) => JSON.stringify(step)).join('\n')}\n`);
  return 'steps.jsonl';
}

/** Spans of two turns in which something was said, each token less likely than the one before. */
function turns({ attempt, group_id, sample_id, trace_id, events }) {
  const shared = { attempt, group_id, sample_id, trace_id, name: 'turn' };
  return ['47+85=?', '132+19=?'].flatMap((prompt, turn) => {
    const words = [prompt.slice(0, -1), String([132, 151][turn]), '\n', '#', 'so'];
    const logprobs = words.map((text, index) => [-1.2 * index, index, text]);
    const attrs = { prompt_text: prompt, output_text: words.join(''), output_token_logprobs: JSON.stringify(logprobs) };
    const of = { ...shared, span_id: String(turn + 1).repeat(32) };
    const [start, end] = [turn, turn + 1].map((second) => events[0].ts + second);
    return [{ ...of, type: 'span_start', ts: start }, { ...of, type: 'span_end', ts: end, attrs }];
  });
}

/** Looks at a page; nothing may be complained of. */
async function shown(url, options, look) {
  const { page, complaints } = await open(browser, url, options);
  await settled(page);
  await look(page);
  assert.deepEqual(complaints, [], 'nothing to complain of');
  await page.context().close();
}

/** Compares what a page looks like, and gives its picture. */
async function pictured(page, reader, name) {
  await settled(page);
  await page.mouse.move(2, 2);
  const picture = await page.screenshot({ path: `${name}.png` });
  seen[name] = await cells(reader, picture);
  if (kept[name] !== undefined) compare(name, seen[name], kept[name]);
  else assert.ok(process.env.UPDATE_SCREENS, `screens.json has no ${name}`);
  await arranged(page, name);
  return picture;
}

/** The mean colour of each cell, six digits each, row by row. */
function cells(reader, picture) {
  return reader.evaluate(
    async ([base64, across, down]) => {
      const bytes = Uint8Array.from(atob(base64), (char) => char.charCodeAt(0));
      const image = await createImageBitmap(new Blob([bytes], { type: 'image/png' }));
      const canvas = new OffscreenCanvas(image.width, image.height);
      const context = canvas.getContext('2d');
      context.drawImage(image, 0, 0);
      const { data } = context.getImageData(0, 0, image.width, image.height);
      const sums = Array.from({ length: across * down }, () => [0, 0, 0, 0]);
      for (let y = 0; y < image.height; y++) {
        for (let x = 0; x < image.width; x++) {
          const sum = sums[Math.floor((y / image.height) * down) * across + Math.floor((x / image.width) * across)];
          const at = (y * image.width + x) * 4;
          for (let channel = 0; channel < 3; channel++) sum[channel] += data[at + channel];
          sum[3]++;
        }
      }
      const hex = (value) => Math.round(value).toString(16).padStart(2, '0');
      return Array.from({ length: down }, (_, row) => sums.slice(row * across, (row + 1) * across).map(([r, g, b, n]) => hex(r / n) + hex(g / n) + hex(b / n)).join(' '));
    },
    [picture.toString('base64'), ACROSS, DOWN],
  );
}

function compare(name, rows, wanted) {
  let sum = 0;
  rows.forEach((row, down) => {
    const others = wanted[down].split(' ');
    row.split(' ').forEach((cell, across) => {
      const off = [0, 2, 4].map((at) => Math.abs(parseInt(cell.slice(at, at + 2), 16) - parseInt(others[across].slice(at, at + 2), 16)));
      sum += Math.max(...off);
      assert.ok(Math.max(...off) <= CELL_OFF, `${name}.png: cell ${across}, ${down} is #${cell}, was #${others[across]}`);
    });
  });
  const mean = sum / (ACROSS * DOWN);
  assert.ok(mean <= SCREEN_OFF, `${name}.png is off by ${mean.toFixed(1)} in the mean`);
}

/** Stages in sight that nothing lies in, and wide enough to be sure, are in the colours of the legend. */
async function drawn(page, reader, picture) {
  const box = await page.locator('#canvas').boundingBox();
  const colors = await page.evaluate(() => {
    const found = {};
    for (const group of document.querySelectorAll('#legend .group')) {
      for (const entry of group.querySelectorAll('.entry')) {
        found[`${group.querySelector('b')?.textContent.toLowerCase() ?? ''}/${entry.textContent}`] = getComputedStyle(entry.querySelector('i')).backgroundColor;
      }
    }
    return found;
  });
  const shapes = (await shapesOf(page)).filter(({ kind, width, y, height }) => kind === 'stage' && width > 6 && y > 30 && y + height < box.height);
  assert.ok(shapes.length > 0, 'stages are in sight');
  const points = shapes.map(({ x, y, width }) => [Math.round(box.x + x + width - 2), Math.round(box.y + y + 2)]);
  const pixels = await reader.evaluate(
    async ([base64, points]) => {
      const bytes = Uint8Array.from(atob(base64), (char) => char.charCodeAt(0));
      const image = await createImageBitmap(new Blob([bytes], { type: 'image/png' }));
      const context = new OffscreenCanvas(image.width, image.height).getContext('2d');
      context.drawImage(image, 0, 0);
      return points.map(([x, y]) => `rgb(${[...context.getImageData(x, y, 1, 1).data].slice(0, 3).join(', ')})`);
    },
    [picture.toString('base64'), points],
  );
  shapes.forEach(({ lane, name }, index) => {
    const wanted = colors[`${lane}/${name.replaceAll('_', ' ')}`];
    if (wanted !== undefined) assert.equal(pixels[index], wanted, `${lane} ${name} at ${points[index]}`);
  });
}

/** The parts of the page lie side by side, within the window. */
async function arranged(page, name) {
  const boxes = await page.evaluate(() =>
    ['.bar', '#steps', '#summary', '.toolbar', '.tab:not([hidden])', '#legend'].flatMap((selector) =>
      [...document.querySelectorAll(selector)].filter((of) => of.offsetParent !== null && of.offsetWidth > 0).map((of) => {
        const { left, top, right, bottom } = of.getBoundingClientRect();
        return { selector, left, top, right, bottom };
      }),
    ),
  );
  const { width, height } = page.viewportSize();
  for (const box of boxes) assert.ok(box.left >= 0 && box.top >= 0 && box.right <= width + 1 && box.bottom <= height + 1, `${name}: ${box.selector} is cut off: ${JSON.stringify(box)}`);
  const holds = (outer, inner) => outer.left <= inner.left + 1 && outer.top <= inner.top + 1 && outer.right >= inner.right - 1 && outer.bottom >= inner.bottom - 1;
  for (const [index, a] of boxes.entries()) {
    for (const b of boxes.slice(index + 1)) {
      if (holds(a, b) || holds(b, a)) continue;
      const over = Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1 && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 1;
      assert.ok(!over, `${name}: ${a.selector} lies over ${b.selector}`);
    }
  }
}
