// The keys, and the help that lists them.

import { byId, element } from '#dom';

/**
 * @typedef {Object} Key
 * @property {string[]} keys   As `KeyboardEvent.key` tells them, small.
 * @property {string} shown
 * @property {string} does
 * @property {() => void} act
 */

/** What the mouse does, for the help. */
const MOUSE = [
  ['wheel', 'zoom about the mouse'],
  ['shift + wheel', 'scroll'],
  ['drag', 'move'],
  ['shift + drag', 'measure, and statistics of a range of time'],
  ['ctrl + drag', 'zoom into a box'],
  ['click', 'pin details'],
  ['double click', 'show all'],
];

const help = byId('help', HTMLDialogElement);

/** @param {Key[]} keys */
export function listenToKeys(keys) {
  help.querySelector('tbody')?.replaceChildren(
    ...keys.map(({ shown, does }) => row(shown, does)),
    ...MOUSE.map(([shown = '', does = '']) => row(shown, does)),
  );
  help.addEventListener('click', (event) => {
    if (event.target === help) help.close();
  });
  byId('help-close', HTMLButtonElement).addEventListener('click', () => help.close());
  addEventListener('keydown', (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || help.open || isTyping(event)) return;
    const key = keys.find((one) => one.keys.includes(event.key.length === 1 ? event.key.toLowerCase() : event.key));
    if (key === undefined) return;
    event.preventDefault();
    key.act();
  });
}

export function toggleHelp() {
  if (help.open) help.close();
  else help.showModal();
}

/** Whether the key belongs to a field or to a button. @param {KeyboardEvent} event */
function isTyping({ target, key }) {
  if (target instanceof HTMLInputElement || target instanceof HTMLSelectElement || target instanceof HTMLTextAreaElement) return true;
  return target instanceof HTMLButtonElement && (key === 'Enter' || key === ' ');
}

/** @param {string} shown @param {string} does */
function row(shown, does) {
  return element('tr', '', element('th', '', element('kbd', '', shown)), element('td', '', does));
}
