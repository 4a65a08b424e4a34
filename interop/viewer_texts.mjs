// What a client and a pair of engines say to each other, through a gateway with `--record-text`, stands on the page as a
// conversation: word for word, each generated token in the shade of how likely the client was told that it was.

import assert from 'node:assert/strict';

import { launch, open, start } from './browser.mjs';

const RUN = `${process.cwd()}/run`;
/** Not what the model would say by itself, so that not all tokens are likely; and always the same. */
const [TEMPERATURE, SEED, TOKENS] = [1.5, 7, 24];
const MESSAGES = [{ role: 'system', content: 'Be “brief” & <b>exact</b>.' }, { role: 'user', content: '47+85+19=?' }];
/** Shades as the page explains them, by the share that a token must not reach. */
const SHADES = [['< 2 %', 0.02], ['< 10 %', 0.1], ['< 50 %', 0.5], ['< 90 %', 0.9], ['more', Infinity]];

/** Of each sample what was asked and what the client got, turn by turn. */
const said = await recorded();
const viewer = await start('view', RUN, '--no-open', '--listen', '127.0.0.1:0');
const browser = await launch();
try {
  const { page, complaints } = await open(browser, viewer.url);
  for (const [sample, turns] of Object.entries(said)) {
    await page.goto(`${viewer.url.replace(/\/$/, '')}/#pin=${encodeURIComponent(`1.0.talk/${sample}`)}`);
    await page.reload();
    await page.waitForSelector('.conversation');
    assert.deepEqual(await page.locator('.conversation .prompt').allTextContents(), turns.map(({ prompt }) => prompt), sample);
    const shown = await page.locator('.conversation .output').evaluateAll((outputs) =>
      outputs.map((output) => [...output.querySelectorAll('.token')].map((token) => ({ text: token.textContent, shade: getComputedStyle(token).backgroundColor }))),
    );
    const shades = await shadesOf(page);
    const due = turns.map(({ tokens }) => tokens.map(([logprob, text]) => ({ text, shade: shades[SHADES.findIndex(([, below]) => Math.exp(logprob) < below)] })));
    assert.deepEqual(shown, due, sample);
    assert.deepEqual(shown.map((tokens) => tokens.map(({ text }) => text).join('')), turns.map(({ output }) => output), `${sample}: the whole reply`);
    assert.ok(new Set(due.flat().map(({ shade }) => shade)).size >= 2, 'tokens differ in how likely they were');
    await page.locator('.conversation').screenshot({ path: `${sample}.png` });
    console.log(`ok ${sample}: ${turns.length} turns`);
  }
  assert.deepEqual(complaints, [], 'nothing to complain of');
} finally {
  await browser.close();
  await viewer.stop();
}

/** The colours of the page's scale, each stronger than the next. */
async function shadesOf(page) {
  const scale = await page.locator('.conversation .scale .token').evaluateAll((tokens) => tokens.map((token) => [token.textContent, getComputedStyle(token).backgroundColor]));
  assert.deepEqual(scale.map(([label]) => label), SHADES.map(([label]) => label));
  const shades = scale.map(([, shade]) => shade);
  // `color(srgb R G B / A)`, and `rgba(0, 0, 0, 0)` for none.
  const strengths = shades.map((shade) => Number(/[\d.]+(?=\)$)/.exec(shade)[0]));
  assert.ok(strengths.every((strength, index) => index === 0 || strength < strengths[index - 1]), `less likely is stronger: ${shades}`);
  return shades;
}

/** A sealed run of two samples, each of two turns: one whole, one streamed. */
async function recorded() {
  const mode = (role, ...more) => start('engine', '--model-path', 'bundled', '--port', '0', '--disaggregation-mode', role, ...more);
  const prefill = await mode('prefill', '--disaggregation-bootstrap-port', '0');
  const decode = await mode('decode');
  const info = await (await fetch(new URL('/server_info', prefill.url))).json();
  const port = info.internal_states[0].disaggregation_bootstrap_port;
  const pair = ['--pd-disaggregation', '--prefill', prefill.url, String(port), '--decode', decode.url];
  const gateway = await start('gateway', '--host', '127.0.0.1', '--port', '0', ...pair, '--record', RUN, '--record-text');
  try {
    return { generate: await generated(gateway), chat: await chatted(gateway) };
  } finally {
    // It seals what it has recorded.
    for (const server of [gateway, decode, prefill]) await server.stop();
  }
}

async function generated(gateway) {
  const turns = [];
  for (const stream of [false, true]) {
    const prompt = `47+85+${turns.length}=?\n`;
    const asked = { text: prompt, stream, return_logprob: true, return_text_in_logprobs: true, sampling_params: { temperature: TEMPERATURE, sampling_seed: SEED, max_new_tokens: TOKENS, ignore_eos: true } };
    const { text, meta_info } = (await ask(gateway, '/generate', 'generate', asked)).at(-1);
    turns.push({ prompt, output: text, tokens: meta_info.output_token_logprobs.map(([logprob, , text]) => [logprob, text]) });
  }
  return turns;
}

async function chatted(gateway) {
  const turns = [];
  for (const stream of [false, true]) {
    const asked = { model: 'any', messages: MESSAGES, stream, logprobs: true, ignore_eos: true, max_tokens: TOKENS, temperature: TEMPERATURE, seed: SEED };
    const choices = (await ask(gateway, '/v1/chat/completions', 'chat', asked)).flatMap(({ choices }) => choices);
    turns.push({
      prompt: MESSAGES.map(({ role, content }) => `${role}: ${content}`).join('\n\n'),
      output: choices.map(({ message, delta }) => (message ?? delta).content ?? '').join(''),
      tokens: choices.flatMap(({ logprobs }) => logprobs?.content ?? []).map(({ logprob, token }) => [logprob, token]),
    });
  }
  return turns;
}

/** The reply, or the events of a stream. */
async function ask(gateway, path, sample, body) {
  const headers = { 'content-type': 'application/json', 'x-rollscope-step': '1', 'x-rollscope-group': 'talk', 'x-rollscope-sample': sample };
  const reply = await fetch(new URL(path, gateway.url), { method: 'POST', headers, body: JSON.stringify(body) });
  const text = await reply.text();
  assert.ok(reply.ok, `${reply.status}: ${text}`);
  if (!body.stream) return [JSON.parse(text)];
  const events = text.split('\n\n').filter((event) => event !== '');
  assert.equal(events.pop(), 'data: [DONE]');
  return events.map((event) => JSON.parse(event.replace(/^data: /, '')));
}
