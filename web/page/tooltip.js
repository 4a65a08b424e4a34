// What is told at once of the span under the mouse; its attributes come when it is pinned, or has been pointed at for
// a moment.

import { getSample } from '#api';
import { at } from '#columns';
import { byId, element, swatch } from '#dom';
import { duration, tellAttribute } from '#format';
import { workerName } from '#table';

/** Beyond this attributes are counted. */
const MOST_ATTRIBUTES = 24;
/** Distance from the mouse. */
const AWAY_PX = 14;
/** A span that is pointed at for this long is asked for. */
const DWELL_MS = 120;

const tooltip = byId('tooltip', HTMLDivElement);
/** What the tooltip tells of now. @type {{ tile: import('#tile').Tile, span: number } | undefined} */
let shown;
/** @type {number | undefined} */
let dwell;

/**
 * @param {import('#table').Table} table
 * @param {import('#scene').Shape} shape
 * @param {{ x: number, y: number }} mouse  In the window.
 * @param {string} color
 */
export function showTooltip(table, shape, mouse, color) {
  if (shown?.tile !== shape.tile || shown.span !== shape.span) {
    tooltip.replaceChildren(...contents(table, shape, color));
    shown = { tile: shape.tile, span: shape.span };
    clearTimeout(dwell);
    dwell = setTimeout(() => void addAttributes(table, shape, mouse), DWELL_MS);
  }
  tooltip.hidden = false;
  place(mouse);
}

export function hideTooltip() {
  tooltip.hidden = true;
  shown = undefined;
  clearTimeout(dwell);
}

/** @param {{ x: number, y: number }} mouse */
function place(mouse) {
  const { offsetWidth: width, offsetHeight: height } = tooltip;
  const right = mouse.x + AWAY_PX;
  const below = mouse.y + AWAY_PX;
  const x = right + width > innerWidth ? Math.max(mouse.x - AWAY_PX - width, 0) : right;
  const y = below + height > innerHeight ? Math.max(Math.min(mouse.y - AWAY_PX - height, innerHeight - height), 0) : below;
  tooltip.style.transform = `translate(${x}px, ${y}px)`;
}

/**
 * @param {import('#table').Table} table
 * @param {import('#scene').Shape} shape
 * @param {string} color
 */
function contents(table, { tile, span }, color) {
  const { name, lane } = tile.nameOf(span);
  const [start, end, bound] = [at(tile.start, span), at(tile.end, span), at(tile.bound, span)];
  const length = tile.isOpen(span) ? `open for ${duration(end - start)}` : duration(end - start);
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
  const isShown = () => shown?.tile === tile && shown.span === span;
  let answer;
  try {
    answer = await getSample(table.step, at(tile.sample, span));
  } catch {
    // The rest of what is told stays; who wants more pins the span and is told why there is none.
    return;
  }
  if (!isShown()) return;
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
  place(mouse);
}
