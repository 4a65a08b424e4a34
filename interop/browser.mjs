// A browser, and the viewer that it looks at: what the checks of the page share.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { createRequire } from 'node:module';
import { createInterface } from 'node:readline';

const { chromium } = createRequire(`${process.env.NODE_PACKAGES}/`)('playwright-core');
const { ROLLSCOPE, CHROMIUM } = process.env;

const CHROMIUM_ARGS = [
  '--no-sandbox',
  '--disable-gpu',
  '--disable-quic',
  '--no-first-run',
  '--disable-background-networking',
  '--disable-component-update',
  '--disable-sync',
];
/** Beyond this the page hangs: not a bar of its speed, which no check of this folder has. */
export const HANGS_MS = 120_000;

const running = new Set();
process.on('exit', () => running.forEach((child) => child.kill()));
process.on('SIGTERM', () => process.exit(1));

/** Starts a server of `rollscope`; its URL is the one that it prints. */
export async function start(...args) {
  const child = spawn(ROLLSCOPE, [...args, '--exit-on-stdin-close'], { stdio: ['pipe', 'pipe', 'inherit'] });
  running.add(child);
  child.on('exit', () => running.delete(child));
  for await (const line of createInterface({ input: child.stdout })) {
    const match = /^rollscope \w+ ready on (http:\S+)$/.exec(line);
    if (match) return { url: match[1], pid: child.pid, stop: () => stopped(child) };
  }
  throw new Error(`rollscope ${args.join(' ')} ended without a ready line`);
}

function stopped(child) {
  if (child.exitCode !== null || child.signalCode !== null) return Promise.resolve();
  const ended = new Promise((resolve) => child.once('exit', resolve));
  child.stdin.end();
  return ended;
}

export function launch() {
  return chromium.launch({ executablePath: CHROMIUM, args: CHROMIUM_ARGS });
}

/** An empty tab. */
export async function tab(browser, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1400, height: 900 }, ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(HANGS_MS);
  return page;
}

/** A page of the viewer, with all that its console complains of. */
export async function open(browser, url, options = {}) {
  const page = await tab(browser, options);
  const complaints = [];
  page.on('console', (message) => ['error', 'warning'].includes(message.type()) && complaints.push(message.text()));
  page.on('pageerror', (error) => complaints.push(String(error)));
  page.on('requestfailed', (request) => {
    const why = request.failure()?.errorText;
    // A page that is left or reloaded drops what it was still loading.
    if (why !== 'net::ERR_ABORTED') complaints.push(`${request.url()}: ${why}`);
  });
  // A page from disk holds all it needs: its icon is a `data:` URL.
  const isOwn = (asked) => asked.startsWith('data:') || (url.startsWith('file:') ? asked.split('#')[0] === url : new URL(asked).origin === new URL(url).origin);
  page.on('request', (request) => {
    if (!isOwn(request.url())) complaints.push(`asks another: ${request.url()}`);
  });
  await page.goto(url);
  return { page, complaints };
}

/** Waits until everything in sight has come, and what the last input changed is drawn. Where that never is, the page says why. */
export async function settled(page) {
  try {
    await page.waitForFunction(() => window.rollscope?.samples().length > 0 && !window.rollscope.isWaiting());
  } catch (cause) {
    const told = await page.evaluate(() => document.querySelector('#message')?.textContent);
    throw new Error(`the page has not settled; it says: ${told || 'nothing'}`, { cause });
  }
  await page.evaluate(() => new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve))));
}

export const shapesOf = (page) => page.evaluate(() => window.rollscope.shapes());
export const rangeOf = (page) => page.evaluate(() => window.rollscope.range());
export const stateOf = (page) => page.evaluate(() => window.rollscope.state());

/** A point of a shape, by default its middle, in the window. */
export async function onPage(page, shape, share = 0.5) {
  const box = await page.locator('#canvas').boundingBox();
  return { x: box.x + shape.x + shape.width * share, y: box.y + shape.y + shape.height / 2 };
}

/** Drags the mouse over the timeline, from its middle, or from the middle at a height in the window. */
export async function drag(page, byX, byY = 0, key = undefined, fromY = undefined) {
  const box = await page.locator('#canvas').boundingBox();
  const [x, y] = [box.x + box.width / 2, fromY ?? box.y + box.height / 2];
  await page.mouse.move(x, y);
  if (key !== undefined) await page.keyboard.down(key);
  await page.mouse.down();
  await page.mouse.move(x + byX, y + byY, { steps: 4 });
  await page.mouse.up();
  if (key !== undefined) await page.keyboard.up(key);
  await settled(page);
}

/** Polls until something holds; says what was last seen where it never does. */
export async function eventually(what, look, holds) {
  const deadline = Date.now() + HANGS_MS;
  for (;;) {
    const seen = await look();
    if (holds(seen)) return seen;
    assert.ok(Date.now() < deadline, `${what}; last seen: ${JSON.stringify(seen)}`);
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
}
