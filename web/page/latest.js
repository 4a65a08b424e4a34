// Of answers that are asked for one after the other only the last counts, in whatever order they come.

export class Latest {
  #asked = 0;

  /**
   * Begins to ask; what was asked for before does not count any more.
   * @returns {() => boolean}  Whether this is still the last.
   */
  begin() {
    const ask = ++this.#asked;
    return () => ask === this.#asked;
  }
}

/**
 * Shows something when what it depends on is another than when it was shown last.
 * @template {unknown[]} V
 * @param {(...values: V) => void} show
 * @returns {(...values: V) => void}
 */
export function whenChanged(show) {
  /** @type {V | undefined} */
  let last;
  return (...values) => {
    if (last !== undefined && values.every((value, index) => Object.is(value, last?.[index]))) return;
    last = values;
    show(...values);
  };
}
