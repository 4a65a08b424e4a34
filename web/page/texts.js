// What was said in a sample's turns, where the run has recorded it: attributes of a request or of a span of the user's.

/** Names of the attributes. */
const [PROMPT, OUTPUT, LOGPROBS] = ['prompt_text', 'output_text', 'output_token_logprobs'];
export const TEXTS = new Set([PROMPT, OUTPUT, LOGPROBS]);

/**
 * @typedef {{ text: string, logprob: number | undefined }} Token
 * @typedef {{ part: number, prompt: string, output: string, tokens: Token[] }} Turn  Of a part of the sample, from 1; without tokens where none were recorded.
 */

/**
 * @param {import('#api').SpanDetails[][]} parts
 * @returns {Turn[]}
 */
export function turnsOf(parts) {
  return parts.flatMap((part, index) => {
    const attrs = new Map(part.flatMap(({ attrs }) => attrs).filter(([name]) => TEXTS.has(name)));
    const [prompt, output] = [textOf(attrs.get(PROMPT)), textOf(attrs.get(OUTPUT))];
    const tokens = tokensOf(textOf(attrs.get(LOGPROBS)));
    return prompt === '' && output === '' && tokens.length === 0 ? [] : [{ part: index + 1, prompt, output, tokens }];
  });
}

/**
 * How likely a token was, in five steps: 0 is unlikely.
 * @param {number} logprob
 */
export function likelihood(logprob) {
  const share = Math.exp(logprob);
  return [0.02, 0.1, 0.5, 0.9].filter((bound) => share >= bound).length;
}

/** @param {import('#api').AttrValue | undefined} value */
function textOf(value) {
  return typeof value === 'string' ? value : '';
}

/**
 * Tokens as SGLang tells them, `[[logprob, id, text], …]`; nothing of what is not that, or was cut.
 * @param {string} json
 * @returns {Token[]}
 */
function tokensOf(json) {
  let list;
  try {
    list = JSON.parse(json === '' ? '[]' : json);
  } catch {
    return [];
  }
  if (!Array.isArray(list)) return [];
  return list.flatMap((entry) => {
    if (!Array.isArray(entry)) return [];
    const [logprob, id, text] = entry;
    return [{ text: typeof text === 'string' ? text : `⟨${String(id)}⟩`, logprob: typeof logprob === 'number' ? logprob : undefined }];
  });
}
