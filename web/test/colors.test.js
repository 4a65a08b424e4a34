import assert from 'node:assert/strict';
import test from 'node:test';

import { COLORS, colorValue, partColor, seriesColor, spanColor } from '#colors';

/** Colours that stand side by side in one lane. */
const LANES = [
  ['prefill/bootstrap_queue', 'prefill/bootstrap', 'prefill/alloc_wait', 'queue', 'prefill/forward', 'prefill/transfer_queue'],
  ['decode/prealloc', 'decode/bootstrap', 'decode/alloc_wait', 'decode/transfer', 'queue', 'decode/forward'],
  ['queue', 'prefill/forward', 'decode/forward', 'forward'],
];
/** Least distances in Oklab; 0.02 is what a good eye just tells apart. */
const IN_A_LANE = 0.08;
const ANYWHERE = 0.045;

/**
 * How linear RGB looks with a kind of colour vision: Machado, Oliveira, Fernandes, "A Physiologically-based Model for
 * Simulation of Color Vision Deficiency", 2009, at full severity.
 * @type {Record<string, number[][]>}
 */
const VISION = {
  full: [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
  protan: [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
  deutan: [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
  tritan: [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
};

/** @param {string} color @param {number[][]} vision */
function oklab(color, vision) {
  const linear = [1, 3, 5].map((at) => {
    const value = parseInt(color.slice(at, at + 2), 16) / 255;
    return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  });
  const [r, g, b] = vision.map((row) => Math.max(0, row.reduce((sum, weight, at) => sum + weight * linear[at], 0)));
  const l = Math.cbrt(0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b);
  const m = Math.cbrt(0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b);
  const s = Math.cbrt(0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b);
  return [
    0.2104542553 * l + 0.793617785 * m - 0.0040720468 * s,
    1.9779984951 * l - 2.428592205 * m + 0.4505937099 * s,
    0.0259040371 * l + 0.7827717662 * m - 0.808675766 * s,
  ];
}

for (const dark of [false, true]) {
  for (const [kind, vision] of Object.entries(VISION)) {
    test(`colours stay apart: ${dark ? 'dark' : 'light'}, ${kind}`, () => {
      for (const [at, a] of COLORS.entries()) {
        for (const b of COLORS.slice(at + 1)) {
          const [one, other] = [a.id, b.id].map((id) => oklab(colorValue(id, dark), vision));
          const distance = Math.hypot(...one.map((value, axis) => value - other[axis]));
          const together = LANES.some((lane) => lane.includes(a.id) && lane.includes(b.id));
          assert.ok(distance >= (together ? IN_A_LANE : ANYWHERE), `${a.id} and ${b.id}: ${distance.toFixed(3)}`);
        }
      }
    });
  }
}

test('a span, its statistics and its part of a breakdown have one colour', () => {
  assert.equal(spanColor('prefill', 'forward'), 'prefill/forward');
  assert.equal(seriesColor('prefill/forward_duration'), 'prefill/forward');
  assert.equal(partColor('prefill forward'), 'prefill/forward');
  assert.equal(spanColor('decode', 'queue'), seriesColor('request/queue_time'));
  assert.equal(spanColor('request', 'decode'), 'decode/forward');
  assert.equal(spanColor('user', 'forward'), 'user');
  assert.equal(spanColor('prefill', '__proto__'), 'request');
  assert.equal(seriesColor('request/e2e_latency'), undefined);
});
