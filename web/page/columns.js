// Reads the server's columns: a head in JSON, then typed arrays that are looked at where they lie.

const MAGIC = 'RSC1';
const KINDS = /** @type {const} */ ({ f64: Float64Array, f32: Float32Array, i32: Int32Array, u32: Uint32Array, u8: Uint8Array });

/**
 * @typedef {keyof typeof KINDS} Kind
 * @typedef {Float64Array | Float32Array | Int32Array | Uint32Array | Uint8Array} Numbers
 *
 * @typedef {Object} Columns
 * @property {Record<string, any>} meta
 * @property {(name: string) => Numbers} column  Throws where there is none.
 */

/**
 * @param {ArrayBuffer} buffer
 * @returns {Columns}
 */
export function readColumns(buffer) {
  const bytes = new Uint8Array(buffer);
  if (bytes.length < 8 || new TextDecoder().decode(bytes.subarray(0, 4)) !== MAGIC) throw malformed('no columns');
  const length = new DataView(buffer).getUint32(4, true);
  const begin = 8 + length;
  if (begin > bytes.length || begin % 8 !== 0) throw malformed('the head is cut');
  const head = JSON.parse(new TextDecoder().decode(bytes.subarray(8, begin)));
  /** @type {Map<string, Numbers>} */
  const columns = new Map();
  for (const [name, [kind, first, entries]] of Object.entries(head.columns)) {
    const type = KINDS[/** @type {Kind} */ (kind)];
    if (type === undefined || begin + first + entries * type.BYTES_PER_ELEMENT > bytes.length) throw malformed(name);
    columns.set(name, new type(buffer, begin + first, entries));
  }
  return {
    meta: head.meta,
    column(name) {
      const found = columns.get(name);
      if (found === undefined) throw malformed(name);
      return found;
    },
  };
}

/**
 * An entry that is known to be there.
 * @param {ArrayLike<number>} values
 * @param {number} index
 */
export function at(values, index) {
  return values[index] ?? 0;
}

/**
 * The smallest of `from` … `to` for which `holds`, which never turns false again.
 * @param {number} from
 * @param {number} to
 * @param {(index: number) => boolean} holds
 */
export function lowest(from, to, holds) {
  let [low, high] = [from, to];
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (holds(middle)) high = middle;
    else low = middle + 1;
  }
  return low;
}

/** @param {string} what */
function malformed(what) {
  return new Error(`the server's answer is malformed: ${what}`);
}
