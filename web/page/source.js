// Where the page's data come from: a server that is asked, or the document itself.
//
// A document that holds its data has them in `<script type="application/json" id="data">`: an object with the API's
// paths as keys (`api/run`, `api/steps/1/table`). An answer in JSON stands there as it is; columns stand there as
// `{"base64": "…"}`. What a path does not name is not in the document, and is said so.

/**
 * @typedef {Object} Source
 * @property {boolean} isLive  Whether asking again may give more.
 * @property {(path: string) => Promise<any>} json
 * @property {(path: string) => Promise<ArrayBuffer>} bytes
 */

/** @returns {Source} */
export function openSource() {
  const data = document.getElementById('data');
  return data === null ? overHttp() : inDocument(JSON.parse(data.textContent ?? '{}'));
}

/** @returns {Source} */
function overHttp() {
  return {
    isLive: true,
    json: async (path) => (await ask(path)).json(),
    bytes: async (path) => (await ask(path)).arrayBuffer(),
  };
}

/** @param {string} path */
async function ask(path) {
  let response;
  try {
    response = await fetch(path);
  } catch {
    throw new Error('The viewer’s server does not answer.');
  }
  if (response.ok) return response;
  const told = await response.text();
  let error = told;
  try {
    error = JSON.parse(told).error ?? told;
  } catch {
    // No JSON: the sentence itself.
  }
  throw new Error(`The run cannot be read: ${error || response.statusText}`);
}

/**
 * @param {Record<string, any>} answers
 * @returns {Source}
 */
export function inDocument(answers) {
  /** @param {string} path */
  const find = async (path) => {
    if (!Object.hasOwn(answers, path)) throw new Error('This file does not hold that part of the run.');
    return answers[path];
  };
  return {
    isLive: false,
    json: find,
    // Tiles are in the document whole, whatever window is asked for.
    bytes: async (path) => Uint8Array.from(atob((await find(path.replace(/\?.*/, ''))).base64), (c) => c.charCodeAt(0)).buffer,
  };
}
