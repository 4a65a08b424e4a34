// The exported page in a real browser, from disk: it draws the run, asks nobody for anything, and nothing that the
// console complains of.

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { createRequire } from 'node:module';
import { resolve } from 'node:path';
import { pathToFileURL } from 'node:url';

const { chromium } = createRequire(`${process.env.NODE_PACKAGES}/`)('playwright-core');
const { ROLLSCOPE, RUN, CHROMIUM } = process.env;

const file = resolve('run.html');
execFileSync(ROLLSCOPE, ['export', RUN, '--to', 'html', file], { stdio: 'inherit' });
const samples = JSON.parse(execFileSync(ROLLSCOPE, ['report', RUN, '--json'], { encoding: 'utf8' })).steps[0].samples;

const browser = await chromium.launch({
  executablePath: CHROMIUM,
  args: ['--no-sandbox', '--disable-gpu', '--disable-background-networking', '--no-first-run'],
});
try {
  const page = await browser.newPage({ viewport: { width: 1400, height: 900 } });
  const complaints = [];
  page.on('console', (message) => ['error', 'warning'].includes(message.type()) && complaints.push(message.text()));
  page.on('pageerror', (error) => complaints.push(String(error)));
  page.on('request', (request) => {
    const url = request.url();
    if (!url.startsWith('data:') && url.split('#')[0] !== pathToFileURL(file).href) complaints.push(`asks for ${url}`);
  });
  await page.goto(pathToFileURL(file).href);
  await page.waitForFunction(() => window.rollscope?.samples().length > 0);
  assert.equal((await page.evaluate(() => window.rollscope.samples())).length, samples, 'a row per sample');
  await page.waitForFunction(() => window.rollscope.shapes().length > 0);
  assert.ok((await page.textContent('#numbers')).length > 100, 'the numbers are there');
  await page.waitForFunction(() => location.hash.includes('step='));
  await page.screenshot({ path: 'html.png' });
  assert.deepEqual(complaints, [], 'nothing to complain of');
  console.log(`${samples} rows from ${file}`);
} finally {
  await browser.close();
}
