import assert from 'node:assert/strict';
import test from 'node:test';

import { likelihood, turnsOf } from '#texts';

/** @param {[string, any][]} attrs */
const span = (attrs) => ({ name: 'turn', lane: 'user', attrs });

test('a part that carries texts is a turn', () => {
  const parts = [
    [span([['outcome', 'completed']]), span([['worker', 'w']])],
    [span([['prompt_text', '1+1=?'], ['output_text', '2'], ['output_token_logprobs', '[[-0.1,17,"2"],[null,2,null]]']])],
    [span([['output_text', 'more']])],
  ];
  assert.deepEqual(turnsOf(parts), [
    { part: 2, prompt: '1+1=?', output: '2', tokens: [{ text: '2', logprob: -0.1 }, { text: '⟨2⟩', logprob: undefined }] },
    { part: 3, prompt: '', output: 'more', tokens: [] },
  ]);
});

test('what is no list of tokens is none', () => {
  for (const json of ['', '[[-0.1,', '{}', '5', '[5, null, "x"]', 'null']) {
    assert.deepEqual(turnsOf([[span([['output_text', 'x'], ['output_token_logprobs', json]])]])[0].tokens, [], json);
  }
});

test('likelihood has five steps', () => {
  assert.deepEqual([-10, -3, -1, -0.5, 0].map(likelihood), [0, 1, 2, 3, 4]);
});
