// The list of steps.

import { byId, element } from '#dom';
import { counted } from '#format';

const list = byId('steps', HTMLElement);
/** What the list was made from: made anew only when it differs, so that it stays still under the mouse. */
let shown = '';

/**
 * @param {import('#api').StepEntry[]} steps
 * @param {number | undefined} current
 * @param {(step: number) => void} choose
 */
export function showSteps(steps, current, choose) {
  const state = JSON.stringify([steps, current]);
  if (state === shown) return;
  shown = state;
  const focused = document.activeElement instanceof HTMLElement ? document.activeElement.dataset.step : undefined;
  const buttons = steps.map((entry) => button(entry, entry.step === current, choose));
  list.replaceChildren(...buttons);
  buttons.find((made) => made.dataset.step === focused)?.focus();
}

/**
 * @param {import('#api').StepEntry} entry
 * @param {boolean} current
 * @param {(step: number) => void} choose
 */
function button(entry, current, choose) {
  const state = entry.closed === null ? element('span', 'open', 'open') : '';
  const made = element('button', '', element('b', '', `Step ${entry.step}`), state, element('small', '', counted(entry.samples, 'sample')));
  made.type = 'button';
  made.dataset.step = String(entry.step);
  if (current) made.setAttribute('aria-current', 'true');
  made.addEventListener('click', () => choose(entry.step));
  return made;
}
