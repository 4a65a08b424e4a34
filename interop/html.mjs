// The exported page in a real browser, from disk: it draws the run, by sample and by worker, asks nobody for anything, and
// nothing that the console complains of.

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { resolve } from 'node:path';
import { pathToFileURL } from 'node:url';

import { launch, open, settled, shapesOf } from './browser.mjs';

const { ROLLSCOPE, RUN } = process.env;

const file = resolve('run.html');
execFileSync(ROLLSCOPE, ['export', RUN, '--to', 'html', file], { stdio: 'inherit' });
const samples = JSON.parse(execFileSync(ROLLSCOPE, ['report', RUN, '--json'], { encoding: 'utf8' })).steps[0].samples;

const browser = await launch();
try {
  const { page, complaints } = await open(browser, pathToFileURL(file).href);
  await settled(page);
  assert.equal((await page.evaluate(() => window.rollscope.samples())).length, samples, 'a row per sample');
  assert.ok((await shapesOf(page)).length > 0, 'with its spans');
  assert.ok((await page.textContent('#numbers')).length > 100, 'the numbers are there');
  await page.selectOption('#arrange', 'workers');
  await settled(page);
  assert.ok((await shapesOf(page)).some(({ kind }) => kind === 'leg'), 'legs stand on their workers');
  assert.ok((await page.evaluate(() => window.rollscope.passes())) > 0, 'with the forward passes that the demo recorded');
  await page.waitForFunction(() => location.hash.includes('step='));
  await page.screenshot({ path: 'html.png' });
  assert.deepEqual(complaints, [], 'nothing to complain of');
  console.log(`${samples} rows from ${file}`);
} finally {
  await browser.close();
}
