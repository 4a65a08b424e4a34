// Texts on a canvas, cut where they do not fit. Measuring a text is dear, so widths are kept.

/** Widths that are kept. */
const MOST_WIDTHS = 8000;
/** A longer text is cut before it is measured. */
const LONG = 40;

/** By font and text. @type {Map<string, number>} */
const widths = new Map();

/**
 * @param {CanvasRenderingContext2D} context  With its font set.
 * @param {string} text
 */
export function widthOf(context, text) {
  const key = `${context.font}\n${text}`;
  const known = widths.get(key);
  if (known !== undefined) return known;
  if (widths.size >= MOST_WIDTHS) widths.clear();
  const { width } = context.measureText(text);
  widths.set(key, width);
  return width;
}

/**
 * As much of a text as fits into a width.
 * @param {CanvasRenderingContext2D} context
 * @param {string} text
 * @param {number} width
 */
export function fitted(context, text, width) {
  if (text.length < LONG && widthOf(context, text) <= width) return text;
  let keep = Math.min(text.length, Math.floor(width / 4));
  while (keep > 0 && widthOf(context, `${text.slice(0, keep)}…`) > width) keep--;
  return keep === 0 ? '' : `${text.slice(0, keep)}…`;
}

/**
 * A text inside a rectangle, or nothing where it does not fit.
 * @param {CanvasRenderingContext2D} context
 * @param {string} font
 * @param {string} ink
 * @param {string} text
 * @param {import('#scene').Rect} rect
 */
export function write(context, font, ink, text, rect) {
  context.font = font;
  const shown = fitted(context, text, rect.width - 8);
  if (shown.length <= 2) return;
  context.fillStyle = ink;
  context.fillText(shown, rect.x + 4, rect.y + rect.height / 2 + 0.5);
}
