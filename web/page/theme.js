// Colours of the canvas that are not a span's: read from the style sheet, so that they stand in one place.

import { COLORS, colorValue } from '#colors';
import { pixelOf } from '#pixels';

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
 * @property {Map<string, import('#paint').Paint>} spans  Ink is what can be read on the fill.
 * @property {Record<'surface' | 'band' | 'line' | 'text' | 'muted' | 'accent' | 'bad' | 'warn', number>} pixels
 * @property {(fill: string) => string} inkOn
 */

const DARK = matchMedia('(prefers-color-scheme: dark)');
/** @type {(() => void)[]} */
const listeners = [];

DARK.addEventListener('change', tell);

/** Light or dark: as the system says, until the user says otherwise. */
function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen === undefined ? DARK.matches : chosen === 'dark';
}

/** Goes over to the other theme, for as long as the page is open. */
export function toggleTheme() {
  document.documentElement.dataset.theme = isDark() ? 'light' : 'dark';
  tell();
}

/** What was read last: asking for a style makes the browser lay out the page. @type {Theme | undefined} */
let read;

/** @returns {Theme} */
export function readTheme() {
  read ??= make();
  return read;
}

/** @returns {Theme} */
function make() {
  const style = getComputedStyle(document.documentElement);
  /** @param {string} name */
  const value = (name) => style.getPropertyValue(name).trim();
  const dark = isDark();
  const names = /** @type {const} */ (['surface', 'band', 'line', 'text', 'muted', 'accent', 'bad', 'warn']);
  const plain = /** @type {Record<typeof names[number], string>} */ (Object.fromEntries(names.map((name) => [name, value(`--${name}`)])));
  return {
    dark,
    ...plain,
    pixels: /** @type {Theme['pixels']} */ (Object.fromEntries(names.map((name) => [name, pixelOf(plain[name])]))),
    font: value('--font'),
    spans: new Map(
      COLORS.map(({ id }) => {
        const fill = colorValue(id, dark);
        return [id, { fill, ink: inkOn(fill), pixel: pixelOf(fill) }];
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
}

function tell() {
  read = undefined;
  for (const changed of listeners) changed();
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
