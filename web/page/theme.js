// Colours of the canvas that are not a span's: read from the style sheet, so that they stand in one place.

import { COLORS, colorValue } from '#colors';

/**
 * @typedef {Object} Theme
 * @property {boolean} dark
 * @property {string} surface
 * @property {string} band      Behind every other group.
 * @property {string} line
 * @property {string} text
 * @property {string} muted
 * @property {string} accent
 * @property {string} bad       What did not complete.
 * @property {string} warn      What cannot be true, and the tail.
 * @property {string} font
 * @property {Map<string, { fill: string, ink: string }>} spans  Ink is what can be read on the fill.
 * @property {(fill: string) => string} inkOn
 */

const DARK = matchMedia('(prefers-color-scheme: dark)');
/** @type {(() => void)[]} */
const listeners = [];

/** Light or dark: as the system says, until the user says otherwise. */
function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen === undefined ? DARK.matches : chosen === 'dark';
}

/** Goes over to the other theme, for as long as the page is open. */
export function toggleTheme() {
  document.documentElement.dataset.theme = isDark() ? 'light' : 'dark';
  for (const changed of listeners) changed();
}

/** @returns {Theme} */
export function readTheme() {
  const style = getComputedStyle(document.documentElement);
  /** @param {string} name */
  const value = (name) => style.getPropertyValue(name).trim();
  const dark = isDark();
  return {
    dark,
    surface: value('--surface'),
    band: value('--band'),
    line: value('--line'),
    text: value('--text'),
    muted: value('--muted'),
    accent: value('--accent'),
    bad: value('--bad'),
    warn: value('--warn'),
    font: value('--font'),
    spans: new Map(
      COLORS.map(({ id }) => {
        const fill = colorValue(id, dark);
        return [id, { fill, ink: inkOn(fill) }];
      }),
    ),
    inkOn,
  };
}

/** @param {string} fill */
function inkOn(fill) {
  return luminance(fill) > 0.3 ? '#10151d' : '#ffffff';
}

/** @param {() => void} changed */
export function onThemeChange(changed) {
  listeners.push(changed);
  DARK.addEventListener('change', changed);
}

/**
 * Relative luminance of `#rrggbb` (WCAG 2.2).
 * @param {string} color
 */
function luminance(color) {
  const [red = 0, green = 0, blue = 0] = [1, 3, 5].map((at) => {
    const value = parseInt(color.slice(at, at + 2), 16) / 255;
    return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}
