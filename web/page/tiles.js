// The tiles that are kept: what is in sight is asked for and stays, what has not been in sight for long is let go.

/** Spans that are kept, about, and more only of what is in sight: 45 bytes each. */
const MOST_SPANS = 1_200_000;
/** Tiles that are asked for at the same time. */
const AT_ONCE = 4;

/**
 * @typedef {'tiles' | 'workers'} TileKind
 *
 * @typedef {{ from: number, to: number, pixel: number }} Window  What is looked at: a range of time, and how much of it is a pixel.
 *
 * @typedef {{ tile: import('#tile').Tile, window: Window, isOld: boolean }} Held
 */

export class Tiles {
  /** By kind and index; the last that was looked at stands last. @type {Map<string, Held>} */
  #held = new Map();
  /** @type {Set<string>} */
  #asked = new Set();
  /** Not asked for again until there is another table. @type {Set<string>} */
  #failed = new Set();
  /** What was asked for since the last drawing began. @type {Set<string>} */
  #inSight = new Set();
  #spans = 0;
  /** Counts the tables, so that an answer of one that was given up is not kept. */
  #generation = 0;
  #load;
  #arrived;
  /** @type {import('#table').Table | undefined} */
  #table;

  /**
   * @param {(table: import('#table').Table, kind: TileKind, index: number, window: Window) => Promise<import('#tile').Tile>} load
   * @param {(error?: unknown) => void} arrived
   */
  constructor(load, arrived) {
    this.#load = load;
    this.#arrived = arrived;
  }

  /**
   * Goes over to another table. Of the same step: what is held stays in sight until the new has come.
   * @param {import('#table').Table | undefined} table
   */
  use(table) {
    if (table?.step === this.#table?.step) {
      for (const held of this.#held.values()) held.isOld = true;
    } else {
      this.#held.clear();
      this.#inSight.clear();
      this.#spans = 0;
    }
    this.#generation++;
    this.#asked.clear();
    this.#failed.clear();
    this.#table = table;
  }

  /** What is asked for from now on is what is in sight. */
  beginDrawing() {
    this.#inSight.clear();
  }

  /**
   * A tile, if it is here; else it is asked for.
   * @param {TileKind} kind
   * @param {number} index
   * @param {Window} view  What is looked at.
   */
  get(kind, index, view) {
    const key = `${kind}/${index}`;
    this.#inSight.add(key);
    const held = this.#held.get(key);
    if (held !== undefined) {
      this.#held.delete(key);
      this.#held.set(key, held);
    }
    if ((held === undefined || held.isOld || !shows(held, view)) && this.#table !== undefined) {
      void this.#ask({ key, kind, index }, view, this.#table);
    }
    return held?.tile;
  }

  /** Whether something has been asked for and has not come. */
  get isWaiting() {
    return this.#asked.size > 0;
  }

  /**
   * @param {{ key: string, kind: TileKind, index: number }} of
   * @param {Window} view
   * @param {import('#table').Table} table
   */
  async #ask({ key, kind, index }, view, table) {
    // What does not get its turn now is asked for by the next drawing.
    if (this.#asked.has(key) || this.#failed.has(key) || this.#asked.size >= AT_ONCE) return;
    this.#asked.add(key);
    const generation = this.#generation;
    // Some more at both sides, so that a step aside asks for nothing.
    const length = view.to - view.from;
    const window = { from: view.from - length, to: view.to + length, pixel: view.pixel };
    try {
      const tile = await this.#load(table, kind, index, window);
      if (generation === this.#generation) {
        this.#asked.delete(key);
        this.#keep(key, { tile, window, isOld: false });
        this.#arrived();
      }
    } catch (error) {
      if (generation === this.#generation) this.#failed.add(key);
      this.#arrived(error);
    } finally {
      if (generation === this.#generation) this.#asked.delete(key);
    }
  }

  /**
   * @param {string} key
   * @param {Held} made
   */
  #keep(key, made) {
    this.#spans += made.tile.count - (this.#held.get(key)?.tile.count ?? 0);
    this.#held.delete(key);
    this.#held.set(key, made);
    for (const [other, held] of this.#held) {
      if (this.#spans <= MOST_SPANS) break;
      // The next drawing would ask for it again, and let go of another for it, without end.
      if (other === key || this.#inSight.has(other)) continue;
      this.#held.delete(other);
      this.#spans -= held.tile.count;
    }
  }
}

/**
 * Whether a tile has all that can be seen.
 * @param {Held} held
 * @param {Window} view
 */
function shows({ tile, window }, view) {
  return tile.leftOut === 0 || (view.from >= window.from && view.to <= window.to && view.pixel >= window.pixel / 2);
}
