import assert from 'node:assert/strict';
import test from 'node:test';

import { axisTime, duration, inNamedUnit, inUnit, number, percent, tickStep } from '#format';

/** Spaces of any width as one. @param {string} text */
const plain = (text) => text.replace(/\s/g, ' ');

test('durations have three significant digits and the unit that fits', () => {
  /** @type {[number, string][]} */
  const cases = [
    [0, '0 s'],
    [850, '850 ns'],
    [12_345, '12.3 µs'],
    [999_960, '1.00 ms'],
    [12_300_000, '12.3 ms'],
    [999_960_000, '1.00 s'],
    [1_234_567_890, '1.23 s'],
    [59_940_000_000, '59.9 s'],
    [599_400_000_000, '599 s'],
    [725_000_000_000, '12 min 5 s'],
    [-1_500_000, '−1.50 ms'],
    [NaN, '?'],
  ];
  for (const [ns, text] of cases) assert.equal(plain(duration(ns)), text, String(ns));
});

test('numbers are short and never exponents', () => {
  /** @type {[number, string][]} */
  const cases = [
    [0, '0'],
    [7, '7'],
    [1477, '1477'],
    [16_384, '16 384'],
    [1477.4, '1477'],
    [0.7916, '0.792'],
    [0.0000001, '1e-7'],
    [-2.5, '−2.50'],
  ];
  for (const [value, text] of cases) assert.equal(plain(number(value)), text, String(value));
  assert.equal(plain(percent(0.004)), '<1 %');
  assert.equal(plain(percent(0)), '0 %');
  assert.equal(plain(percent(0.624)), '62 %');
  assert.equal(plain(inUnit(0.0123, 's')), '12.3 ms');
  assert.equal(plain(inUnit(83.333, 'tok/s')), '83.3');
});

test('an attribute is told in the unit that its name ends in', () => {
  /** @type {[string, number, string][]} */
  const cases = [
    ['pd_decode_forward_duration', 0.0123, '12.3 ms'],
    ['queue_time', 0.5, '500 ms'],
    ['clock_offset_s', -1.5, '−1.50 s'],
    ['pd_transfer_speed_gb_s', 1.25, '1.25'],
    ['tokens_per_s', 40, '40'],
    ['forward_entry_time', 1_700_000_000, '2023-11-14T22:13:20.000Z'],
    ['request_received_ts', 1_700_000_000.5, '2023-11-14T22:13:20.500Z'],
    ['prompt_tokens', 28, '28'],
  ];
  for (const [name, value, text] of cases) assert.equal(plain(inNamedUnit(name, value)), text, name);
});

test('ticks are round and told exactly enough to differ', () => {
  for (let range = 1000; range < 1e12; range *= 1.7) {
    const step = tickStep(range, 10);
    const digit = step / 10 ** Math.floor(Math.log10(step) + 1e-9);
    assert.ok([1, 2, 5].some((round) => Math.abs(digit - round) < 1e-6), `${step}`);
    assert.ok(range / step <= 10 + 1e-6 && range / step > 3, `${range} / ${step}`);
    const from = 3e9;
    const texts = Array.from({ length: 5 }, (_, at) => axisTime(from + at * step, step, from + range));
    assert.equal(new Set(texts).size, texts.length, texts.join());
  }
  assert.equal(plain(axisTime(-200e6, 100e6, 4e9)), '−0.2 s');
  assert.equal(plain(axisTime(0, 100e6, 4e9)), '0.0 s');
  assert.equal(plain(axisTime(2500, 500, 4000)), '2.5 µs');
});
