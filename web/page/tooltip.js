// What is told at once of what is under the mouse; a span's attributes come when it is pinned, or has been pointed at for
// a moment.

import { getSample } from '#api';
import { at } from '#columns';
import { byId, element, swatch } from '#dom';
import { counted, duration, number, tellAttribute } from '#format';
import { isInstant } from '#scene';
import { workerName } from '#table';

/** Beyond this attributes are counted. */
const MOST_ATTRIBUTES = 24;
/** Distance from the mouse. */
const AWAY_PX = 14;
/** A span that is pointed at for this long is asked for. */
const DWELL_MS = 120;

const tooltip = byId('tooltip', HTMLDivElement);
/** What the tooltip tells of now: a tile or the passes, and the place in it. @type {{ of: object, index: number } | undefined} */
let shown;
/** Its size, measured when it changes. */
let size = { width: 0, height: 0 };
/** @type {number | undefined} */
let dwell;

/**
 * @param {import('#table').Table} table
 * @param {import('#scene').Shape} shape
 * @param {{ x: number, y: number }} mouse  In the window.
 * @param {string} color
 */
export function showSpan(table, shape, mouse, color) {
  if (!isShown(shape.tile, shape.span)) {
    tell(shape.tile, shape.span, contents(table, shape, color));
    dwell = setTimeout(() => void addAttributes(table, shape, mouse), DWELL_MS);
  }
  place(mouse);
}

/**
 * A forward pass: what was computed, what waited, and how much is known of it.
 * @param {import('#passes').Passes} passes
 * @param {number} pass
 * @param {{ x: number, y: number }} mouse
 */
export function showPass(passes, pass, mouse) {
  if (!isShown(passes, pass)) {
    const { end, wall, bound, prefillRequests, prefillTokens, decodeRequests, kv, queued, lostBefore } = passes.columns;
    const lost = at(lostBefore, pass);
    const lines = [
      at(decodeRequests, pass) > 0 ? `${counted(at(decodeRequests, pass), 'request')} at the next token` : '',
      at(prefillRequests, pass) > 0 ? `${counted(at(prefillRequests, pass), 'prompt')}, ${counted(at(prefillTokens, pass), 'token')}` : '',
      `${number(at(kv, pass))} tokens in the KV cache of the batch`,
      at(queued, pass) > 0 ? `${counted(at(queued, pass), 'request')} waiting` : '',
      `heard of at ${duration(at(end, pass))}; ended up to ${duration(at(bound, pass))} before`,
      lost > 0 ? `${counted(lost, 'message')} lost before it` : '',
    ];
    const head = element('header', '', element('b', '', 'forward pass'), element('span', '', duration(at(wall, pass))));
    tell(passes, pass, [head, ...lines.filter((line) => line !== '').map((line) => element('p', '', line))]);
  }
  place(mouse);
}

export function hideTooltip() {
  if (shown === undefined) return;
  tooltip.hidden = true;
  shown = undefined;
  clearTimeout(dwell);
}

/** @param {object} of @param {number} index */
function isShown(of, index) {
  return shown?.of === of && shown.index === index;
}

/** @param {object} of @param {number} index @param {Node[]} contents */
function tell(of, index, contents) {
  clearTimeout(dwell);
  tooltip.replaceChildren(...contents);
  tooltip.hidden = false;
  shown = { of, index };
  measure();
}

function measure() {
  size = { width: tooltip.offsetWidth, height: tooltip.offsetHeight };
}

/** @param {{ x: number, y: number }} mouse */
function place(mouse) {
  const right = mouse.x + AWAY_PX;
  const below = mouse.y + AWAY_PX;
  const x = right + size.width > innerWidth ? Math.max(mouse.x - AWAY_PX - size.width, 0) : right;
  const y = below + size.height > innerHeight ? Math.max(Math.min(mouse.y - AWAY_PX - size.height, innerHeight - size.height), 0) : below;
  tooltip.style.transform = `translate(${x}px, ${y}px)`;
}

/**
 * @param {import('#table').Table} table
 * @param {import('#scene').Shape} shape
 * @param {string} color
 */
function contents(table, shape, color) {
  const { tile, span } = shape;
  const { name, lane } = tile.nameOf(span);
  const [start, end, bound] = [at(tile.start, span), at(tile.end, span), at(tile.bound, span)];
  const length = tile.isOpen(span) ? `open for ${duration(end - start)}` : isInstant(shape) ? 'an instant' : duration(end - start);
  const worker = workerName(table.workers[at(tile.worker, span)]);
  const about = [
    table.label(at(tile.sample, span)),
    lane === 'prefill' || lane === 'decode' ? lane : '',
    lane === 'user' ? '' : worker,
    at(tile.attempt, span) > 0 ? `try ${at(tile.attempt, span) + 1}` : '',
    tile.outcome(span) ?? '',
  ];
  const when = [`starts at ${duration(start)}`, bound > 0 ? `placed to ±${duration(bound)}` : ''];
  return [
    element('header', '', swatch(color), element('b', '', name), element('span', '', length)),
    element('p', '', about.filter((text) => text !== '').join(' · ')),
    element('p', '', when.filter((text) => text !== '').join(' · ')),
    element('dl', ''),
  ];
}

/**
 * A stage has few attributes of its own, so those of its leg are shown too.
 * @param {import('#table').Table} table
 * @param {import('#scene').Shape} shape
 * @param {{ x: number, y: number }} mouse
 */
async function addAttributes(table, { tile, span }, mouse) {
  let answer;
  try {
    answer = await getSample(table.step, at(tile.sample, span));
  } catch {
    // The rest of what is told stays; who wants more pins the span and is told why there is none.
    return;
  }
  if (!isShown(tile, span)) return;
  const part = answer.parts[at(tile.part, span) - 1] ?? [];
  let of = span;
  let details = part[at(tile.span, of)];
  while ((details?.attrs.length ?? 0) === 0 && at(tile.parent, of) >= 0) {
    of = at(tile.parent, of);
    details = part[at(tile.span, of)];
  }
  const list = tooltip.querySelector('dl');
  if (details === undefined || list === null) return;
  const found = details.attrs.filter(([, value]) => value !== '');
  if (of !== span) list.append(element('dt', 'from', `of its ${details.name}`), element('dd', ''));
  for (const [name, value] of found.slice(0, MOST_ATTRIBUTES)) {
    list.append(element('dt', '', name), element('dd', '', tellAttribute(name, value)));
  }
  if (found.length > MOST_ATTRIBUTES) {
    list.append(element('dt', 'from', `and ${found.length - MOST_ATTRIBUTES} more: click`), element('dd', ''));
  }
  measure();
  place(mouse);
}
