// Answers of the server and fields of samples, made by hand.

const SIZES = { f64: 8, f32: 4, i32: 4, u32: 4, u8: 1 };
const SETTERS = { f64: 'setFloat64', f32: 'setFloat32', i32: 'setInt32', u32: 'setUint32', u8: 'setUint8' };

/**
 * Columns as the server writes them.
 * @param {object} meta
 * @param {Record<string, [keyof typeof SIZES, number[]]>} columns
 */
export function columns(meta, columns) {
  let length = 0;
  const heads = Object.entries(columns).map(([name, [kind, values]]) => {
    const first = length;
    length += Math.ceil((values.length * SIZES[kind]) / 8) * 8;
    return [name, [kind, first, values.length]];
  });
  let head = JSON.stringify({ meta, columns: Object.fromEntries(heads) });
  head = head.padEnd(Math.ceil(head.length / 8) * 8);
  const buffer = new ArrayBuffer(8 + head.length + length);
  new Uint8Array(buffer).set(new TextEncoder().encode('RSC1'));
  const view = new DataView(buffer);
  view.setUint32(4, head.length, true);
  new Uint8Array(buffer).set(new TextEncoder().encode(head), 8);
  for (const [name, [kind, first]] of heads) {
    columns[name][1].forEach((value, index) => {
      view[SETTERS[kind]](8 + head.length + first + index * SIZES[kind], value, true);
    });
  }
  return buffer;
}

const STAGES = ['prefill_bootstrap_queue', 'prefill_bootstrap', 'prefill_alloc_wait', 'prefill_forward', 'prefill_transfer_queue'];
const DECODE = ['decode_prealloc', 'decode_bootstrap', 'decode_alloc_wait', 'decode_transfer', 'decode_forward'];

/**
 * The table of samples of a pair of workers.
 * @param {{ name: string, group?: string, start: number, end: number, reward?: number, worker?: number, tokens?: number, flags?: number, users?: number }[]} samples
 */
export function table(samples) {
  const strings = [...new Set(samples.flatMap(({ name, group }) => [name, group ?? name]))];
  /** @param {(sample: any) => number} of @returns {['f64', number[]]} */
  const f64 = (of) => ['f64', samples.map(of)];
  /** @param {(sample: any) => number} of @returns {['u32', number[]]} */
  const u32 = (of) => ['u32', samples.map(of)];
  /** @param {(sample: any) => number} of @returns {['i32', number[]]} */
  const i32 = (of) => ['i32', samples.map(of)];
  const ends = samples.map(({ end }) => end);
  const meta = {
    step: 1,
    origin_unix_ns: '1700000000000000000',
    extent_ns: samples.length === 0 ? null : [Math.min(...samples.map(({ start }) => start)), Math.max(...ends)],
    tile_rows: 2,
    strings,
    workers: [
      { url: 'http://prefill-0:30000', role: 'prefill', rank: null, legs: 2, tracks: 2 },
      { url: 'http://decode-2:30000/', role: 'decode', rank: 1, legs: 2, tracks: 3 },
    ],
    versions: [{ name: 'v1', first_ns: 0 }],
  };
  return columns(meta, {
    name: u32(({ name }) => strings.indexOf(name)),
    group: i32(({ group }) => (group === undefined ? -1 : strings.indexOf(group))),
    start_ns: f64(({ start }) => start),
    end_ns: f64(({ end }) => end),
    reward: f64(({ reward }) => reward ?? NaN),
    tokens: f64(({ tokens }) => tokens ?? NaN),
    prompt_tokens: f64(() => NaN),
    requests: u32(() => 1),
    attempts: u32(() => 1),
    flags: ['u8', samples.map(({ flags }) => flags ?? 0)],
    worker: i32(({ worker }) => worker ?? -1),
    prefill_worker: i32(() => 0),
    version: i32(() => 0),
    e2e_latency: f64(({ start, end }) => (end - start) / 1e9),
    queue_time: f64(() => NaN),
    user_time: f64(() => NaN),
    ...Object.fromEntries([...STAGES, ...DECODE].map((name) => [name, f64(() => NaN)])),
    tracks_request: u32(() => 1),
    tracks_regular: u32(() => 0),
    tracks_prefill: u32(() => 1),
    tracks_decode: u32(() => 1),
    tracks_user: u32(({ users }) => users ?? 0),
  });
}

/**
 * A tile of one row with one run of stages, or of the user's spans.
 * @param {[number, number, number?][]} stages  Begin; end, NaN where it is open; outcome, 0 unless it is told.
 * @param {'stage' | 'user'} kind
 */
export function tile(stages, kind = 'stage') {
  const zeros = stages.map(() => 0);
  return columns(
    { names: ['decode/forward', 'regular/decode'] },
    {
      run_row: ['u32', [0]],
      run_kind: ['u8', [kind === 'user' ? 5 : 3]],
      run_lane: ['u8', [kind === 'user' ? 4 : 3]],
      run_track: ['u32', [0]],
      run_first: ['u32', [0, stages.length]],
      start_ns: ['f64', stages.map(([start]) => start)],
      end_ns: ['f64', stages.map(([, end]) => end)],
      bound_ns: ['f32', zeros],
      parent: ['i32', stages.map(() => -1)],
      name: ['u32', zeros],
      sample: ['u32', zeros],
      part: ['u32', zeros],
      span: ['u32', zeros],
      outcome: ['u8', stages.map(([, , outcome]) => outcome ?? 0)],
      flags: ['u8', stages.map(([, end]) => (Number.isNaN(end) ? 1 : 0))],
      attempt: ['u8', zeros],
      worker: ['i32', zeros],
      transfer_from: ['u32', []],
      transfer_to: ['u32', []],
    },
  );
}
