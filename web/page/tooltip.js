// What is told of the span under the mouse.

import { colorValue, spanColor } from '#colors';
import { byId, element, swatch } from '#dom';
import { duration, inNamedUnit } from '#format';

/** Beyond this an attribute's text is cut; the whole is in the run. */
const MOST_CHARACTERS = 160;
/** Beyond this attributes are counted. */
const MOST_ATTRIBUTES = 26;
/** Distance from the mouse. */
const AWAY_PX = 14;

const tooltip = byId('tooltip', HTMLDivElement);
/** What the tooltip tells of now. @type {{ model: import('#model').StepModel, span: number } | undefined} */
let shown;

/**
 * @param {import('#model').StepModel} model
 * @param {import('#scene').Shape} shape
 * @param {{ x: number, y: number }} at  In the window.
 * @param {boolean} dark
 */
export function showTooltip(model, shape, at, dark) {
  if (shown?.model !== model || shown.span !== shape.span) {
    tooltip.replaceChildren(...contents(model, shape, dark));
    shown = { model, span: shape.span };
  }
  tooltip.hidden = false;
  const { offsetWidth: width, offsetHeight: height } = tooltip;
  const right = at.x + AWAY_PX;
  const below = at.y + AWAY_PX;
  const x = right + width > innerWidth ? Math.max(at.x - AWAY_PX - width, 0) : right;
  const y = below + height > innerHeight ? Math.max(Math.min(at.y - AWAY_PX - height, innerHeight - height), 0) : below;
  tooltip.style.transform = `translate(${x}px, ${y}px)`;
}

export function hideTooltip() {
  tooltip.hidden = true;
}

/**
 * @param {import('#model').StepModel} model
 * @param {import('#scene').Shape} shape
 * @param {boolean} dark
 */
function contents(model, { span, row }, dark) {
  const { spans, samples } = model;
  const [name, lane] = [spans.name[span] ?? '', spans.lane[span] ?? ''];
  const [start, end] = [spans.start[span] ?? 0, spans.end[span] ?? 0];
  const bound = spans.bound[span] ?? 0;
  const length = spans.open[span] ? `open for ${duration(end - start)}` : duration(end - start);
  const where = lane === 'prefill' || lane === 'decode' ? ` · ${lane}` : '';
  const placed = bound > 0 ? ` · placed to ±${duration(bound)}` : '';
  return [
    element('header', '', swatch(colorValue(spanColor(lane, name), dark)), element('b', '', name), element('span', '', length)),
    element('p', '', `${samples.label[row.sample]}${where} · starts at ${duration(start)}${placed}`),
    attributes(model, span),
  ];
}

/**
 * A stage has few attributes of its own, so those of its leg are shown too.
 * @param {import('#model').StepModel} model
 * @param {number} span
 */
function attributes(model, span) {
  let of = span;
  while (model.attrs(of).length === 0 && (model.spans.parent[of] ?? -1) >= 0) of = model.spans.parent[of] ?? -1;
  const found = model.attrs(of).filter(([, value]) => value !== '');
  const list = element('dl', '');
  if (of !== span) list.append(element('dt', 'from', `of its ${model.spans.name[of]}`), element('dd', ''));
  for (const [name, value] of found.slice(0, MOST_ATTRIBUTES)) {
    list.append(element('dt', '', cut(name)), element('dd', '', tell(name, value)));
  }
  if (found.length > MOST_ATTRIBUTES) {
    list.append(element('dt', 'from', `and ${found.length - MOST_ATTRIBUTES} more`), element('dd', ''));
  }
  return list;
}

/**
 * @param {string} name
 * @param {import('#model').AttrValue} value
 */
function tell(name, value) {
  if (value === null) return 'not a number';
  if (typeof value === 'string') return cut(value);
  if (typeof value === 'boolean') return String(value);
  return inNamedUnit(name, value);
}

/** @param {string} text */
function cut(text) {
  return text.length > MOST_CHARACTERS ? `${text.slice(0, MOST_CHARACTERS)}…` : text;
}
