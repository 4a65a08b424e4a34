// The samples of a step in memory: the server's columns, checked once, so that nothing that draws needs to doubt them.

/**
 * @typedef {string | number | boolean | null} AttrValue
 *
 * @typedef {Object} Samples
 * @property {number} count
 * @property {string[]} label         `group/sample`, or the sample alone.
 * @property {(string | undefined)[]} group
 * @property {boolean[]} evaluation
 * @property {(number | null)[]} reward
 * @property {(number | null)[]} tokens
 * @property {Int32Array} firstSpan   One entry more than there are samples.
 *
 * @typedef {Object} Spans
 * @property {number} count
 * @property {string[]} name
 * @property {string[]} lane
 * @property {Int32Array} parent      Row of the parent, or -1.
 * @property {Float64Array} start     Nanoseconds from the origin, as are all times.
 * @property {Float64Array} end       An open span ends with the step so far.
 * @property {boolean[]} open
 * @property {Float64Array} bound     It may lie this much earlier or later.
 * @property {Map<number, string>} outcome  How those ended that did not complete.
 *
 * @typedef {Object} StepModel
 * @property {number} step
 * @property {bigint} originUnixNs
 * @property {import('#viewport').Range | undefined} extent  Nothing when nothing has happened.
 * @property {Samples} samples
 * @property {Spans} spans
 * @property {(span: number) => [string, AttrValue][]} attrs
 */

/** A child that claims a parent of another sample, or one that follows it, has none: so no walk up goes in circles. */
const NO_PARENT = -1;

/**
 * Takes the answer of `/api/steps/N/samples`.
 * @param {unknown} answer
 * @returns {StepModel}
 */
export function readSamples(answer) {
  const table = record(answer, 'answer');
  const strings = array(table.strings, 'strings').map((text) => (typeof text === 'string' ? text : String(text)));
  /** @param {unknown} index */
  const text = (index) => strings[typeof index === 'number' ? index : -1] ?? '';

  const samples = readSamplesColumns(record(table.samples, 'samples'), text);
  const spanColumns = record(table.spans, 'spans');
  const count = samples.firstSpan[samples.count] ?? 0;
  const extent = table.extent_ns === null ? undefined : readExtent(table.extent_ns);
  const spans = readSpans(spanColumns, count, extent?.to ?? 0, text);
  dropForeignParents(samples, spans);

  const firstAttr = offsets(spanColumns.first_attr, count, 'first_attr');
  const attrColumns = record(table.attrs, 'attrs');
  const attrCount = firstAttr[count] ?? 0;
  const names = column(attrColumns.name, attrCount, 'attrs.name');
  const texts = column(attrColumns.text, attrCount, 'attrs.text');
  const values = column(attrColumns.value, attrCount, 'attrs.value');

  /** @param {number} span */
  const attrs = (span) => {
    /** @type {[string, AttrValue][]} */
    const found = [];
    for (let at = firstAttr[span] ?? 0; at < (firstAttr[span + 1] ?? 0); at++) {
      const value = texts[at] === null ? scalar(values[at]) : text(texts[at]);
      found.push([text(names[at]), value]);
    }
    return found;
  };
  for (let span = 0; span < count; span++) {
    const outcome = spans.lane[span] === 'user' ? undefined : attrs(span).find(([name]) => name === 'outcome')?.[1];
    if (typeof outcome === 'string' && outcome !== 'completed') spans.outcome.set(span, outcome);
  }
  return {
    step: Number(table.step),
    originUnixNs: BigInt(String(table.origin_unix_ns)),
    extent,
    samples,
    spans,
    attrs,
  };
}

/**
 * @param {Record<string, unknown>} columns
 * @param {(index: unknown) => string} text
 * @returns {Samples}
 */
function readSamplesColumns(columns, text) {
  const names = array(columns.name, 'samples.name').map(text);
  const count = names.length;
  const group = column(columns.group, count, 'samples.group').map((index) => (index === null ? undefined : text(index)));
  return {
    count,
    label: names.map((name, at) => (group[at] === undefined ? name : `${group[at]}/${name}`)),
    group,
    evaluation: column(columns.evaluation, count, 'samples.evaluation').map((value) => value === true),
    reward: column(columns.reward, count, 'samples.reward').map(numberOrNull),
    tokens: column(columns.response_tokens, count, 'samples.response_tokens').map(numberOrNull),
    firstSpan: offsets(columns.first_span, count, 'samples.first_span'),
  };
}

/**
 * @param {Record<string, unknown>} columns
 * @param {number} count
 * @param {number} last  Where open spans end.
 * @param {(index: unknown) => string} text
 * @returns {Spans}
 */
function readSpans(columns, count, last, text) {
  const start = Float64Array.from(column(columns.start_ns, count, 'spans.start_ns'), Number);
  const ends = column(columns.end_ns, count, 'spans.end_ns');
  const end = Float64Array.from(ends, (value, at) => Math.max(value === null ? last : Number(value), start[at] ?? 0));
  return {
    count,
    name: column(columns.name, count, 'spans.name').map(text),
    lane: column(columns.lane, count, 'spans.lane').map(text),
    parent: Int32Array.from(column(columns.parent, count, 'spans.parent'), (value) => Number(value ?? NO_PARENT)),
    start,
    end,
    open: ends.map((value) => value === null),
    bound: Float64Array.from(column(columns.bound_ns, count, 'spans.bound_ns'), Number),
    outcome: new Map(),
  };
}

/**
 * @param {Samples} samples
 * @param {Spans} spans
 */
function dropForeignParents(samples, spans) {
  for (let sample = 0; sample < samples.count; sample++) {
    const first = samples.firstSpan[sample] ?? 0;
    for (let span = first; span < (samples.firstSpan[sample + 1] ?? 0); span++) {
      const parent = spans.parent[span] ?? NO_PARENT;
      if (parent < first || parent >= span) spans.parent[span] = NO_PARENT;
    }
  }
}

/** @param {unknown} value @returns {import('#viewport').Range} */
function readExtent(value) {
  const [from, to] = column(value, 2, 'extent_ns');
  return { from: Number(from), to: Number(to) };
}

/**
 * Offsets into another table: never falling, the last is its length.
 * @param {unknown} value
 * @param {number} count
 * @param {string} name
 */
function offsets(value, count, name) {
  const found = Int32Array.from(column(value, count + 1, name), Number);
  if (found.some((offset, at) => offset < (at === 0 ? 0 : (found[at - 1] ?? 0)))) throw malformed(name);
  return found;
}

/**
 * @param {unknown} value
 * @param {number} length
 * @param {string} name
 */
function column(value, length, name) {
  const found = array(value, name);
  if (found.length !== length) throw malformed(name);
  return found;
}

/** @param {unknown} value @param {string} name @returns {unknown[]} */
function array(value, name) {
  if (!Array.isArray(value)) throw malformed(name);
  return value;
}

/** @param {unknown} value @param {string} name */
function record(value, name) {
  if (typeof value !== 'object' || value === null) throw malformed(name);
  return /** @type {Record<string, unknown>} */ (value);
}

/** @param {unknown} value */
function numberOrNull(value) {
  return typeof value === 'number' ? value : null;
}

/** @param {unknown} value @returns {AttrValue} */
function scalar(value) {
  return typeof value === 'number' || typeof value === 'boolean' ? value : null;
}

/** @param {string} name */
function malformed(name) {
  return new Error(`the server's answer is malformed: ${name}`);
}
