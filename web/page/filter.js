// Filters: `e2e_latency > 10 and worker ~ decode-2`.
//
//   filter     = all ("or" all)*
//   all        = one ("and" one)*
//   one        = "not" one | "(" filter ")" | field [comparison value]
//   comparison = "=" "!=" "<" "<=" ">" ">=" "~" "!~"      ~ is "contains", whatever the case of letters
//   value      = number [ns us ms s min k] | word | "text"
//
// Durations are seconds. A field alone asks whether it is there, and not 0. What is missing fulfils no comparison.

/** @typedef {(row: number) => boolean} Test */

/** A filter that cannot be read, and where. */
export class FilterError extends Error {
  /**
   * @param {string} message
   * @param {number} at
   */
  constructor(message, at) {
    super(message);
    this.at = at;
  }
}

/** @type {Record<string, number>} */
const UNITS = { ns: 1e-9, us: 1e-6, µs: 1e-6, ms: 1e-3, s: 1, min: 60, k: 1e3 };
const TOKEN = /\s*(?:(?<text>"(?:[^"\\]|\\.)*")|(?<sign>!=|<=|>=|!~|==|[=<>~()])|(?<word>[^\s()=<>~!"]+))/y;

/** @typedef {{ kind: 'text' | 'sign' | 'word' | 'end', text: string, at: number }} Token */

/**
 * @param {string} source
 * @param {Map<string, import('#table').Field>} fields
 * @returns {Test}
 */
export function compile(source, fields) {
  const tokens = tokenize(source);
  let next = 0;
  /** @returns {Token} */
  const peek = () => tokens[next] ?? { kind: 'end', text: '', at: source.length };
  /** @param {string} word */
  const takes = (word) => {
    const token = peek();
    const is = token.kind !== 'text' && token.text.toLowerCase() === word;
    if (is) next++;
    return is;
  };
  /** @returns {Test} */
  const any = () => {
    let test = all();
    while (takes('or')) test = either(test, all());
    return test;
  };
  /** @returns {Test} */
  const all = () => {
    let test = one();
    while (takes('and')) test = both(test, one());
    return test;
  };
  /** @returns {Test} */
  const one = () => {
    if (takes('not')) {
      const test = one();
      return (row) => !test(row);
    }
    if (takes('(')) {
      const test = any();
      if (!takes(')')) throw new FilterError('a closing parenthesis is missing', peek().at);
      return test;
    }
    const token = peek();
    if (token.kind === 'end') throw new FilterError('something is missing at the end', token.at);
    next++;
    const field = token.kind === 'word' ? fields.get(token.text) : undefined;
    if (field === undefined) throw new FilterError(unknown(token, fields), token.at);
    const sign = peek();
    if (sign.kind !== 'sign' || sign.text === '(' || sign.text === ')') {
      return field.unit === 'text' ? (row) => field.text(row) !== '' : (row) => field.number(row) !== 0 && !Number.isNaN(field.number(row));
    }
    next++;
    const value = peek();
    if (value.kind === 'end' || value.kind === 'sign') throw new FilterError(`a value is missing after ${sign.text}`, value.at);
    next++;
    return comparison(field, sign.text, value);
  };
  if (tokens.length === 0) return () => true;
  const test = any();
  const left = peek();
  if (left.kind !== 'end') throw new FilterError(`“and” or “or” is missing before ${left.text}`, left.at);
  return test;
}

/**
 * @param {string} source
 * @returns {Token[]}
 */
function tokenize(source) {
  /** @type {Token[]} */
  const tokens = [];
  const end = source.trimEnd().length;
  TOKEN.lastIndex = 0;
  while (TOKEN.lastIndex < end) {
    const from = TOKEN.lastIndex;
    const groups = TOKEN.exec(source)?.groups;
    if (groups === undefined) throw new FilterError(source.slice(from).includes('"') ? 'a quotation mark is missing' : 'this makes no sense', from);
    const { text, sign, word } = groups;
    const found = text ?? sign ?? word ?? '';
    tokens.push({
      kind: text !== undefined ? 'text' : sign !== undefined ? 'sign' : 'word',
      text: text === undefined ? found : found.slice(1, -1).replace(/\\(.)/g, '$1'),
      at: TOKEN.lastIndex - found.length,
    });
  }
  return tokens;
}

/**
 * @param {import('#table').Field} field
 * @param {string} sign
 * @param {Token} value
 * @returns {Test}
 */
function comparison(field, sign, value) {
  const { number, text } = field;
  const wanted = value.text.toLowerCase();
  if (sign === '~') return (row) => text(row).toLowerCase().includes(wanted);
  if (sign === '!~') return (row) => text(row) !== '' && !text(row).toLowerCase().includes(wanted);
  if (field.unit === 'text') {
    if (sign === '=' || sign === '==') return (row) => text(row) === value.text;
    if (sign === '!=') return (row) => text(row) !== '' && text(row) !== value.text;
    throw new FilterError(`${field.name} is a text: it can be compared by =, != and ~`, value.at);
  }
  const limit = numberOf(value);
  if (limit === undefined) throw new FilterError(`${field.name} is a number, and “${value.text}” is none`, value.at);
  switch (sign) {
    case '<':
      return (row) => number(row) < limit;
    case '<=':
      return (row) => number(row) <= limit;
    case '>':
      return (row) => number(row) > limit;
    case '>=':
      return (row) => number(row) >= limit;
    case '!=':
      return (row) => number(row) !== limit && !Number.isNaN(number(row));
    default:
      return (row) => number(row) === limit;
  }
}

/** @param {Token} token */
function numberOf({ text }) {
  const match = /^([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)([a-zµ]*)$/i.exec(text);
  const factor = match?.[2] === '' ? 1 : UNITS[match?.[2] ?? ''];
  return match === null || factor === undefined ? undefined : Number(match[1]) * factor;
}

/**
 * @param {Token} token
 * @param {Map<string, import('#table').Field>} fields
 */
function unknown(token, fields) {
  const near = [...fields.keys()].filter((name) => name.includes(token.text) || token.text.includes(name)).slice(0, 3);
  const hint = near.length > 0 ? `: perhaps ${near.join(' or ')}` : `; there are ${[...fields.keys()].slice(0, 6).join(', ')}, …`;
  return `there is no field “${token.text}”${hint}`;
}

/** @param {Test} a @param {Test} b @returns {Test} */
function both(a, b) {
  return (row) => a(row) && b(row);
}

/** @param {Test} a @param {Test} b @returns {Test} */
function either(a, b) {
  return (row) => a(row) || b(row);
}
