// The colours that the step uses, named.

import { COLORS, colorValue, spanColor } from '#colors';
import { byId, element, swatch } from '#dom';

const legend = byId('legend', HTMLDivElement);

/** @type {Record<import('#colors').Section, string>} */
const HEADINGS = { request: '', prefill: 'Prefill', decode: 'Decode', user: '' };

/**
 * @param {import('#model').StepModel | undefined} model
 * @param {boolean} dark
 */
export function showLegend(model, dark) {
  const used = new Set(
    model?.spans.lane.map((lane, span) => (lane === 'sample' ? '' : spanColor(lane, model.spans.name[span] ?? ''))),
  );
  const groups = Object.entries(HEADINGS).map(([section, heading]) => {
    const entries = COLORS.filter((color) => color.section === section && used.has(color.id));
    if (entries.length === 0) return '';
    const items = entries.map(({ id, label }) => element('span', 'entry', swatch(colorValue(id, dark)), label));
    return element('span', 'group', heading === '' ? '' : element('b', '', heading), ...items);
  });
  legend.replaceChildren(...groups);
}
