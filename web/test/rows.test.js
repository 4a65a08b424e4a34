import assert from 'node:assert/strict';
import test from 'node:test';

import { arrange, rowsWithin, trackPlace } from '#rows';
import { readTable } from '#table';
import { table } from './made.js';

const made = readTable(
  table([
    { name: 'a', group: 'g', start: 0, end: 30, reward: 2, worker: 1 },
    { name: 'b', group: 'g', start: 5, end: 10, worker: 0, users: 2 },
    { name: 'c', group: 'h', start: 3, end: 40, reward: 1 },
    { name: 'd', start: 4, end: 5, reward: 3 },
  ]),
);
const order = { arrange: 'samples', sort: '', falling: false, density: 'roomy' };

test('samples stand in the order that is asked for', () => {
  for (const [asked, expected] of [
    [{}, [0, 1, 2, 3]],
    [{ falling: true }, [3, 2, 1, 0]],
    [{ sort: 'start' }, [0, 2, 3, 1]],
    [{ sort: 'duration', falling: true }, [2, 0, 1, 3]],
    // What has no reward comes last, whichever way.
    [{ sort: 'reward' }, [2, 0, 3, 1]],
    [{ sort: 'reward', falling: true }, [3, 0, 2, 1]],
    [{ sort: 'worker' }, [2, 3, 0, 1]],
    [{ sort: 'no such field' }, [0, 1, 2, 3]],
    [{ arrange: 'workers' }, [-1, -2]],
    [{ arrange: 'both' }, [-1, -2, 0, 1, 2, 3]],
  ]) {
    assert.deepEqual([...arrange(made, { ...order, ...asked }, [0, 1, 2, 3]).index], expected, JSON.stringify(asked));
  }
  assert.deepEqual([...arrange(made, order, [2, 0]).index], [2, 0], 'only those that a filter has left');
});

test('groups begin where they begin and alternate', () => {
  const rows = arrange(made, order, [0, 1, 2, 3]);
  assert.deepEqual([...rows.first], [1, 0, 1, 1]);
  assert.deepEqual([...rows.odd], [1, 1, 0, 1]);
});

test('tracks stand one below the other within their row', () => {
  for (const density of ['roomy', 'compact']) {
    const rows = arrange(made, { ...order, arrange: 'both', density }, [0, 1, 2, 3]);
    for (let row = 0; row < rows.count; row++) {
      const height = rows.top[row + 1] - rows.top[row];
      const index = rows.index[row];
      let foot = 0;
      const lanes = index < 0 ? [made.workers[-1 - index].tracks] : made.tracks.map((tracks) => tracks[index]);
      lanes.forEach((tracks, lane) => {
        for (let track = 0; track < tracks; track++) {
          const place = trackPlace(made, index, density, lane, track);
          assert.ok(place.top >= foot, 'no track lies on another');
          foot = place.top + place.height;
        }
      });
      assert.ok(foot <= height, `${density} row ${row}: ${foot} of ${height}`);
    }
  }
});

test('rows within a stretch of height are found', () => {
  const rows = arrange(made, order, [0, 1, 2, 3]);
  const [, first, second, , all] = rows.top;
  for (const [from, to, expected] of [
    [0, 1, [0, 1]],
    [0, all, [0, 4]],
    [first, second, [1, 2]],
    [first - 1, first + 1, [0, 2]],
    [all, all + 10, [4, 4]],
    [-5, 0, [0, 0]],
  ]) {
    assert.deepEqual(rowsWithin(rows, from, to), expected, `${from} to ${to}`);
  }
});
