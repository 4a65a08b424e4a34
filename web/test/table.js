// Answers of the server, made by hand.

/**
 * Name, lane, row of the parent, start, end, attributes.
 * @typedef {[string, string, number | null, number, number | null, Record<string, string | number>?]} SpanRow
 */

/** @param {{ group: string | null, name: string, spans: SpanRow[] }[]} samples */
export function table(samples) {
  /** @type {string[]} */
  const strings = [];
  /** @param {string} text */
  const index = (text) => {
    if (!strings.includes(text)) strings.push(text);
    return strings.indexOf(text);
  };
  const spans = samples.flatMap((sample) => sample.spans);
  const attrs = spans.map((span) => Object.entries(span[5] ?? {}));
  /** @param {number[]} lengths */
  const offsets = (lengths) => lengths.reduce((sums, length) => [...sums, (sums.at(-1) ?? 0) + length], [0]);
  const none = samples.map(() => null);
  return {
    step: 1,
    origin_unix_ns: '1700000000000000000',
    extent_ns: spans.length === 0 ? null : [0, 100],
    samples: {
      group: samples.map(({ group }) => (group === null ? null : index(group))),
      name: samples.map(({ name }) => index(name)),
      evaluation: samples.map(() => false),
      reward: none,
      response_tokens: none,
      first_span: offsets(samples.map((sample) => sample.spans.length)),
    },
    spans: {
      name: spans.map((span) => index(span[0])),
      lane: spans.map((span) => index(span[1])),
      parent: spans.map((span) => span[2]),
      start_ns: spans.map((span) => span[3]),
      end_ns: spans.map((span) => span[4]),
      bound_ns: spans.map(() => 0),
      first_attr: offsets(attrs.map((of) => of.length)),
    },
    attrs: {
      name: attrs.flat().map(([name]) => index(name)),
      text: attrs.flat().map(([, value]) => (typeof value === 'string' ? index(value) : null)),
      value: attrs.flat().map(([, value]) => (typeof value === 'string' ? null : value)),
    },
    strings,
  };
}
