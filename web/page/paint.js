// What a span is filled with: by stage, or by what its sample or its worker is.

import { at } from '#columns';
import { pixelOf } from '#pixels';
import { workerName } from '#table';

/**
 * @typedef {'stage' | 'worker' | 'reward' | 'version'} ColorBy
 *
 * @typedef {{ fill: string, ink: string, pixel: number }} Paint
 *
 * @typedef {Object} Painter
 * @property {(tile: import('#tile').Tile) => (span: number) => Paint} of
 * @property {(sample: number) => Paint} ofSample
 * @property {{ label: string, fill: string }[] | undefined} legend  Nothing where the stages' own legend holds.
 */

/** Categories that colour-blind people tell apart (after Okabe and Ito), on light and on dark. */
const CATEGORIES = {
  light: ['#0072b2', '#d98200', '#1f9e77', '#b7508f', '#3a9fd6', '#a3421b', '#8a7a00', '#5b5f97'],
  dark: ['#4c9fe0', '#e69f00', '#2bb58c', '#d67fb5', '#7cc4ee', '#d9693a', '#c9b83a', '#9297dd'],
};
/** From least to most: one hue that grows lighter on dark and darker on light. */
const SCALE = {
  light: ['#c9d3ef', '#9fb4e2', '#7391d0', '#486db8', '#1f4690'],
  dark: ['#2b3a63', '#3d5797', '#5579c4', '#7fa0e4', '#b5cbfa'],
};

/**
 * @param {ColorBy} by
 * @param {import('#table').Table} table
 * @param {import('#theme').Theme} theme
 * @returns {Painter}
 */
export function painter(by, table, theme) {
  const missing = { fill: theme.muted, ink: theme.surface, pixel: pixelOf(theme.muted) };
  if (by === 'stage') {
    /** Of each tile the paints of its names. @type {WeakMap<import('#tile').Tile, Paint[]>} */
    const paints = new WeakMap();
    return {
      of: (tile) => {
        const known = paints.get(tile) ?? tile.names.map(({ color }) => theme.spans.get(color) ?? missing);
        paints.set(tile, known);
        return (span) => known[at(tile.name, span)] ?? missing;
      },
      ofSample: (sample) => theme.spans.get(longestStage(table, sample)) ?? missing,
      legend: undefined,
    };
  }
  const paintOf = (/** @type {string} */ fill) => ({ fill, ink: theme.inkOn(fill), pixel: pixelOf(fill) });
  if (by === 'reward') return byReward(table, SCALE[theme.dark ? 'dark' : 'light'].map(paintOf), missing);
  const palette = CATEGORIES[theme.dark ? 'dark' : 'light'].map(paintOf);
  /** @param {number} category */
  const paint = (category) => (category < 0 ? missing : (palette[category % palette.length] ?? missing));
  const names = by === 'worker' ? table.workers.map(workerName) : table.versions.map(({ name }) => name);
  const legend = names.slice(0, palette.length).map((label, category) => ({ label, fill: paint(category).fill }));
  if (names.length > palette.length) legend.push({ label: `and ${names.length - palette.length} more, in the same colours`, fill: 'transparent' });
  return {
    ofSample: (sample) => paint(at(by === 'worker' ? table.worker : table.version, sample)),
    of: by === 'worker' ? (tile) => (span) => paint(at(tile.worker, span)) : (tile) => (span) => paint(at(table.version, at(tile.sample, span))),
    legend,
  };
}

/** Stages that lie in no other, with the queue and the user's code, and their colours. @type {[string, string][]} */
const LONG = [
  ['queue_time', 'queue'],
  ['prefill_bootstrap_queue', 'prefill/bootstrap_queue'],
  ['prefill_forward', 'prefill/forward'],
  ['decode_prealloc', 'decode/prealloc'],
  ['decode_transfer', 'decode/transfer'],
  ['decode_forward', 'decode/forward'],
  ['user_time', 'user'],
];

/**
 * @param {import('#table').Table} table
 * @param {number} sample
 */
function longestStage(table, sample) {
  let [longest, most] = ['request', 0];
  for (const [name, color] of LONG) {
    const time = table.fields.get(name)?.number(sample) ?? 0;
    if (time > most) [longest, most] = [color, time];
  }
  return longest;
}

/**
 * @param {import('#table').Table} table
 * @param {Paint[]} scale
 * @param {Paint} missing
 * @returns {Painter}
 */
function byReward(table, scale, missing) {
  let [least, most] = [Infinity, -Infinity];
  for (let row = 0; row < table.count; row++) {
    const reward = table.reward[row] ?? NaN;
    if (reward < least) least = reward;
    if (reward > most) most = reward;
  }
  const width = Math.max(most - least, Number.MIN_VALUE);
  /** @param {number} reward */
  const paint = (reward) => {
    const bin = Math.min(Math.floor(((reward - least) / width) * scale.length), scale.length - 1);
    return Number.isFinite(reward) ? (scale[Math.max(bin, 0)] ?? missing) : missing;
  };
  const told = (/** @type {number} */ value) => Number(value.toPrecision(3));
  return {
    of: (tile) => (span) => paint(table.reward[at(tile.sample, span)] ?? NaN),
    ofSample: (sample) => paint(table.reward[sample] ?? NaN),
    legend:
      most < least
        ? [{ label: 'no sample has a reward', fill: missing.fill }]
        : scale.map(({ fill }, bin) => ({
            label: bin === 0 ? `reward ${told(least)}` : bin === scale.length - 1 ? String(told(most)) : '',
            fill,
          })),
  };
}
