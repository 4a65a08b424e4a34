// The page beside `rollscope demo` while that is at work: steps and rows appear as they are made, and nothing is complained of.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { existsSync } from 'node:fs';

import { drag, eventually, launch, open, rangeOf, settled, shapesOf, start, stateOf } from './browser.mjs';

const { ROLLSCOPE } = process.env;
const run = `${process.cwd()}/run`;
// More steps than anybody waits for: it is at work for as long as it is looked at.
const demo = spawn(ROLLSCOPE, ['demo', '--out', run, '--steps', '100000', '--prompts-per-step', '24', '--samples-per-prompt', '4', '--concurrency', '8'], { stdio: 'ignore' });
process.on('exit', () => demo.kill());
const browser = await launch();
let viewer;
try {
  await eventually('the demo begins its run', () => existsSync(`${run}/run.json`) || existsSync(`${run}/manifest`), (holds) => holds);
  viewer = await start('view', run, '--no-open', '--listen', '127.0.0.1:0');
  const { page, complaints } = await open(browser, viewer.url);
  const rows = () => page.evaluate(() => window.rollscope.rows().length);
  const steps = () => page.locator('#steps [data-step]').count();

  const few = await eventually('rows appear', rows, (count) => count > 0);
  await eventually('it is live', () => page.textContent('#state'), (text) => text === 'live');
  const first = await page.evaluate(() => window.rollscope.step());
  await eventually('the next step appears in the list', steps, (count) => count >= 2);
  assert.ok(demo.exitCode === null, 'the demo is at work');
  await page.click(`[data-step="${first}"]`);
  await eventually('a step that is over has all its rows', rows, (count) => count === 96 && count >= few);
  await settled(page);
  assert.ok((await shapesOf(page)).some(({ lane, name }) => lane === 'decode' && name === 'forward'), 'with its stages');

  // Where the user looks at one step, those that come after it move nothing.
  await page.locator('#scroller').focus();
  await page.keyboard.press('w');
  await drag(page, 60);
  const [before, known] = [await rangeOf(page), await steps()];
  await eventually('another step appears', steps, (count) => count > known);
  assert.deepEqual(await rangeOf(page), before, 'the view stays where the user put it');
  assert.equal((await stateOf(page)).step, first, 'and at the step');
  assert.ok(demo.exitCode === null, 'the demo is still at work');
  await page.screenshot({ path: 'demo.png' });

  const ended = new Promise((resolve) => demo.once('exit', resolve));
  demo.kill('SIGINT');
  await ended;
  await eventually('a run that nobody writes is not live', () => page.textContent('#state'), (text) => text !== 'live');
  assert.deepEqual(complaints, [], 'nothing to complain of');
  console.log(`ok: ${await steps()} steps of a demo at work`);
} finally {
  await browser.close();
  await viewer?.stop();
}
