// Dumps that are made up, in which every time is known: what the checks of the page share that look for single pixels.

import { execFileSync } from 'node:child_process';
import { writeFileSync } from 'node:fs';

const { ROLLSCOPE } = process.env;
/** When samples begin and end, as long after the epoch. */
export const [BEGIN_S, END_S] = [1_700_000_000, 1_700_000_001];

/** A run of so many steps, of these samples each; gives its directory. */
export function imported(name, ...steps) {
  const lines = steps.map((samples, step) => JSON.stringify({ rollout_id: step, samples }));
  writeFileSync(`${name}.jsonl`, `${lines.join('\n')}\n`);
  execFileSync(ROLLSCOPE, ['import', `${name}.jsonl`, '--out', name]);
  return name;
}

/** So many samples, each of one call of a pair, all at the same time. */
export function samplesOf(count) {
  return Array.from({ length: count }, (_, place) => {
    const sample = { group_index: place, index: 0, rollscope: { group: String(place), sample: '0' }, reward: 0.5, response_length: 13, status: 'completed' };
    sample.trace = { version: 1, attempt: 0, group_id: place, sample_id: 0, trace_id: place.toString(16).padStart(32, '0'), events: [] };
    add(sample, ...span('sglang_generate', '9', BEGIN_S, END_S, { rollscope: { request: requestOf(place) } }));
    return sample;
  });
}

/** A request as a dump tells it; a decode worker has it from its begin to its end. */
function requestOf(place) {
  const rid = `asked ${place}`;
  const took_ns = 1e9 * (END_S - BEGIN_S);
  const leg = (role, dispatch_ns, end_ns, readings) => ({
    ...{ role, worker: `http://${role}`, instance: role, weight_version: 'default', worker_request_id: rid, status: 200, outcome: 'completed', error: null },
    ...{ dispatch_ns, first_byte_ns: end_ns, end_ns, clock_ns: [0, 1], finish: ['stop', null, null] },
    readings: Object.entries({ prompt_tokens: 9, completion_tokens: 13, ...readings }).map(([name, value]) => [name, value, null]),
  });
  const prefill = { pd_prefill_bootstrap_queue_duration: 0.1, pd_prefill_forward_duration: 0.2, pd_prefill_transfer_queue_duration: 0.1, queue_time: 0.1 };
  const decode = { pd_decode_prealloc_duration: 0.2, pd_decode_transfer_duration: 0.3, pd_decode_forward_duration: 0.4, queue_time: 0.1 };
  return {
    ...{ id: (place + 1).toString(16).padStart(32, '0'), rid, endpoint: '/generate', stream: false, batch: null, session: null, traceparent: null, own_sample: false, attempt: 0, retries: 0 },
    ...{ decision: 'only one', attrs: [], status: 200, outcome: 'completed', error: null, arrival_ns: 1e9 * BEGIN_S, first_byte_ns: took_ns, end_ns: took_ns },
    legs: [leg('prefill', 0, took_ns / 2, prefill), leg('decode', 0, took_ns, decode)],
  };
}

/** The request of a sample. */
export function asked({ trace }) {
  return trace.events.map(({ attrs }) => attrs?.rollscope?.request).find((request) => request !== undefined);
}

/** Adds events to a sample's trace. */
export function add({ trace }, ...events) {
  const { attempt, group_id, sample_id, trace_id } = trace;
  trace.events.push(...events.map((event) => ({ attempt, group_id, sample_id, trace_id, ...event })));
}

/** A span, which stays open without an end. */
export function span(name, id, from, to, attrs = {}) {
  const events = [{ type: 'span_start', name, span_id: id.repeat(32), ts: from }];
  return to === undefined ? events : [...events, { type: 'span_end', name, span_id: id.repeat(32), ts: to, attrs }];
}
