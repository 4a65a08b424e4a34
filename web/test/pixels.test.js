import assert from 'node:assert/strict';
import test from 'node:test';

import { Pixels, pixelOf } from '#pixels';

const [RED, WHITE, BLACK] = ['#ff0000', '#fff', '#000000'].map(pixelOf);

/** @param {Pixels} pixels @param {number} width */
function rows(pixels, width) {
  const names = new Map([[RED, 'r'], [WHITE, 'w'], [0, '.']]);
  const text = Array.from(pixels.words, (word) => names.get(word) ?? '?').join('');
  return text.match(new RegExp(`.{${width}}`, 'g'));
}

test('a colour is the bytes that a canvas takes', () => {
  assert.deepEqual([...new Uint8Array(Uint32Array.of(pixelOf('#123456')).buffer)], [0x12, 0x34, 0x56, 0xff]);
  assert.deepEqual([...new Uint8Array(Uint32Array.of(pixelOf('#abc')).buffer)], [0xaa, 0xbb, 0xcc, 0xff]);
});

test('rectangles stand on whole pixels, are a pixel at least, and end with the canvas and the clip', () => {
  const pixels = new Pixels();
  pixels.resize(6, 3, 1);
  pixels.fill(1.4, 0.6, 2, 1, RED);
  assert.deepEqual(rows(pixels, 6), ['......', '.rr...', '......']);
  pixels.fill(0, 0, 0.1, 0.1, WHITE);
  pixels.fill(4, 1, 100, 100, WHITE);
  pixels.fill(-100, 2, 101, 1, RED);
  pixels.fill(50, 0, 1, 1, RED);
  pixels.fill(0, -50, 1, 1, RED);
  assert.deepEqual(rows(pixels, 6), ['w.....', '.rr.ww', 'r...ww']);
  pixels.clip(2, 1);
  pixels.fill(0, 0, 6, 3, RED);
  assert.deepEqual(rows(pixels, 6), ['w.....', '.rrrrr', 'r.rrrr']);
});

test('a screen of two pixels for each has them', () => {
  const pixels = new Pixels();
  pixels.resize(2, 1, 2);
  pixels.fill(0.5, 0, 1, 1, RED);
  assert.deepEqual(rows(pixels, 4), ['.rr.', '.rr.']);
});

test('a veil mixes the channels, each by itself', () => {
  const pixels = new Pixels();
  for (const [under, over] of [[WHITE, BLACK], [BLACK, WHITE], [RED, WHITE], [WHITE, RED]]) {
    for (const alpha of [0, 0.06, 0.2, 0.5, 0.9, 1]) {
      pixels.resize(1, 1, 1);
      pixels.fill(0, 0, 1, 1, under);
      pixels.veil(0, 0, 1, 1, over, alpha);
      const [a, b] = [under, over].map((of) => [...new Uint8Array(Uint32Array.of(of).buffer)]);
      const mixed = new Uint8Array(pixels.words.buffer);
      a.forEach((value, channel) => {
        const wanted = value + (b[channel] - value) * alpha;
        assert.ok(Math.abs(mixed[channel] - wanted) <= 2.5, `${mixed[channel]} for ${wanted}`);
      });
    }
  }
});
