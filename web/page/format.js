// Numbers as people read them.

const US = 1e3;
const MS = 1e6;
const S = 1e9;
const MINUTE = 60 * S;

/** Seconds that are more than this, three years, count from 1970 and not from a beginning. */
const FIRST_DATE_S = 1e8;
/** Beyond the year 5000 they are neither. */
const LAST_DATE_S = 1e11;

/** Thin space: between a number and its unit, and where digits are grouped. */
const THIN = '\u2009';

/**
 * A duration with three significant digits: `850 ns`, `12.3 ms`, `1.23 s`, `12 min 5 s`.
 * @param {number} ns
 * @returns {string}
 */
export function duration(ns) {
  if (!Number.isFinite(ns)) return '?';
  if (ns < 0) return `−${duration(-ns)}`;
  const rounded = Number(ns.toPrecision(3));
  if (rounded === 0) return `0${THIN}s`;
  if (rounded < US) return `${significant(ns)}${THIN}ns`;
  if (rounded < MS) return `${significant(ns / US)}${THIN}µs`;
  if (rounded < S) return `${significant(ns / MS)}${THIN}ms`;
  if (rounded < 10 * MINUTE) return `${significant(ns / S)}${THIN}s`;
  const seconds = Math.round(ns / S);
  return `${grouped(Math.floor(seconds / 60))}${THIN}min ${seconds % 60}${THIN}s`;
}

/**
 * A point on the axis, from the origin, as exact as ticks `step` apart need; all in the unit of the `largest` shown.
 * @param {number} ns
 * @param {number} step
 * @param {number} largest
 */
export function axisTime(ns, step, largest) {
  /** @type {[number, string]} */
  const [unit, name] = largest >= S ? [S, 's'] : largest >= MS ? [MS, 'ms'] : [US, 'µs'];
  const decimals = Math.max(0, Math.ceil(-Math.log10(step / unit) - 1e-9));
  const text = Math.abs(ns / unit).toFixed(decimals);
  const sign = ns < 0 && Number(text) !== 0 ? '−' : '';
  return `${sign}${text}${THIN}${name}`;
}

/**
 * Distance of ticks, 1, 2 or 5 times a power of ten nanoseconds, so that about `count` fit.
 * @param {number} range
 * @param {number} count
 */
export function tickStep(range, count) {
  return roundUp(Math.max(range / Math.max(count, 1), 1));
}

/**
 * The next of 1, 2 or 5 times a power of ten.
 * @param {number} value  Above 0.
 */
export function roundUp(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return ([1, 2, 5, 10].find((factor) => factor * power >= value * (1 - 1e-9)) ?? 10) * power;
}

/**
 * Any number, with three significant digits where it is no whole number.
 * @param {number} value
 * @returns {string}
 */
export function number(value) {
  if (!Number.isFinite(value)) return '?';
  if (value < 0) return `−${number(-value)}`;
  if (Number.isInteger(value)) return grouped(value);
  return value >= 1000 ? grouped(Math.round(value)) : significant(value);
}

/**
 * @param {number} count
 * @param {string} noun
 */
export function counted(count, noun) {
  return `${number(count)} ${noun}${count === 1 ? '' : 's'}`;
}

/** @param {number} share  From 0 to 1. */
export function percent(share) {
  const value = share * 100;
  return `${value > 0 && value < 1 ? '<1' : Math.round(value)}${THIN}%`;
}

/**
 * A value of a series in its unit.
 * @param {number} value
 * @param {string} unit
 */
export function inUnit(value, unit) {
  return unit === 's' ? duration(value * S) : number(value);
}

/**
 * A number in the unit that its name ends in. What ends in `_s`, or as workers name durations, is seconds, so many of
 * them a date; but `_gb_s` and `_per_s` are rates.
 * @param {string} name
 * @param {number} value
 */
export function inNamedUnit(name, value) {
  if (/_(duration|time|latency)$|(?<!_gb|_per)_s$/.test(name) && value < FIRST_DATE_S) return duration(value * S);
  if (/_(ts|time)$/.test(name) && value < LAST_DATE_S) return new Date(value * 1000).toISOString();
  return number(value);
}

/** @param {number} value */
function significant(value) {
  const text = value.toPrecision(3);
  // `toPrecision` turns to exponents below a millionth and from 1000.
  return text.includes('e') ? String(Number(text)) : text;
}

/** @param {number} value  A whole number. */
function grouped(value) {
  const text = String(value);
  if (value < 10_000 || text.includes('e')) return text;
  return text.replace(/\B(?=(\d{3})+$)/g, THIN);
}

/** Beyond this an attribute's text is cut; the whole is in the run. */
const MOST_CHARACTERS = 160;

/**
 * An attribute in one line.
 * @param {string} name
 * @param {string | number | boolean | null} value
 */
export function tellAttribute(name, value) {
  if (value === null) return 'not a number';
  if (typeof value === 'number') return inNamedUnit(name, value);
  const text = String(value);
  return text.length > MOST_CHARACTERS ? `${text.slice(0, MOST_CHARACTERS)}…` : text;
}

/**
 * A field of a sample in its unit; a dash where it is missing.
 * @param {import('#table').Field} field
 * @param {number} row
 */
export function tellField(field, row) {
  if (field.unit === 'text') return field.text(row) || '–';
  const value = field.number(row);
  if (Number.isNaN(value)) return '–';
  if (field.unit === 's') return duration(value * S);
  return field.unit === 'flag' ? (value === 1 ? 'yes' : 'no') : number(value);
}

/**
 * A value of a field in its unit.
 * @param {import('#table').Field} field
 * @param {number} value
 */
export function tellValue(field, value) {
  return field.unit === 's' ? duration(value * S) : number(value);
}
