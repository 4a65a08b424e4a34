// The bar at the top: the run, how it stands and what is wrong with it; and the message in place of, or over, the
// timeline.

import { isFollowed } from '#api';
import { byId } from '#dom';
import { number } from '#format';

const message = byId('message', HTMLElement);

/**
 * @param {import('#api').RunAnswer} run
 * @param {import('#api').StepsAnswer} answer
 */
export function showRun(run, answer) {
  document.title = `${run.name} · Rollscope`;
  byId('run', HTMLElement).textContent = run.name;
  const told = byId('state', HTMLElement);
  const interrupted = run.writers.filter((writer) => writer.state === 'interrupted');
  told.textContent = answer.reading ? 'reading' : isLive(run) ? 'live' : interrupted.length > 0 ? 'interrupted' : 'ended';
  told.className = `state ${told.textContent}`;
  const { profiles, user_records } = answer.dropped;
  const warnings = [
    profiles + user_records > 0 ? `records dropped and missing from the numbers: ${number(profiles + user_records)}` : '',
    ...answer.damage,
  ].filter((text) => text !== '');
  byId('warning', HTMLElement).textContent = warnings.join(' · ');
}

/** Nothing is known of the run's state while the server does not answer. */
export function forgetState() {
  byId('state', HTMLElement).textContent = '';
}

/** @param {import('#api').RunAnswer} run */
export function isLive(run) {
  return isFollowed && run.writers.some((writer) => writer.state === 'live');
}

/** @param {string} text @param {boolean} isOver  Over what is shown: a note at its foot. */
export function say(text, isOver) {
  message.textContent = text;
  message.hidden = text === '';
  message.classList.toggle('over', isOver);
}
