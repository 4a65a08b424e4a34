// Rectangles drawn into memory: a timeline is tens of thousands of them, and a canvas takes each as a call of its own.
// They stand on whole pixels; what is no rectangle is drawn on the canvas, over them.

const LITTLE = new Uint8Array(new Uint32Array([1]).buffer)[0] === 1;

/**
 * A colour `#rgb` or `#rrggbb` as a pixel.
 * @param {string} color
 */
export function pixelOf(color) {
  const digits = color.slice(1);
  const [red = 0, green = 0, blue = 0] = digits.length === 3 ? Array.from(digits, (digit) => parseInt(digit + digit, 16)) : [0, 2, 4].map((at) => parseInt(digits.slice(at, at + 2), 16));
  return (LITTLE ? (255 << 24) | (blue << 16) | (green << 8) | red : (red << 24) | (green << 16) | (blue << 8) | 255) >>> 0;
}

export class Pixels {
  /** @type {ImageData | undefined} */
  #image;
  #words = new Uint32Array();
  #width = 0;
  #height = 0;
  #ratio = 1;
  /** Nothing is drawn left of and above these. */
  #left = 0;
  #top = 0;

  /**
   * @param {number} width   As the page counts them, as are all coordinates.
   * @param {number} height
   * @param {number} ratio   Pixels of the device for each of those.
   */
  resize(width, height, ratio) {
    this.#ratio = ratio;
    this.#width = Math.max(Math.round(width * ratio), 1);
    this.#height = Math.max(Math.round(height * ratio), 1);
    this.#words = new Uint32Array(this.#width * this.#height);
    this.#image = undefined;
  }

  /** The pixels, row by row. */
  get words() {
    return this.#words;
  }

  /** @param {number} left @param {number} top */
  clip(left, top) {
    this.#left = Math.round(left * this.#ratio);
    this.#top = Math.round(top * this.#ratio);
  }

  /**
   * @param {number} x
   * @param {number} y
   * @param {number} width   Drawn as a pixel at least, as is the height.
   * @param {number} height
   * @param {number} pixel
   */
  fill(x, y, width, height, pixel) {
    const { left, top, right, foot } = this.#within(x, y, width, height);
    if (left >= right) return;
    const words = this.#words;
    for (let row = top; row < foot; row++) {
      const first = row * this.#width;
      if (right - left > 16) words.fill(pixel, first + left, first + right);
      else for (let at = first + left; at < first + right; at++) words[at] = pixel;
    }
  }

  /**
   * Lays a colour over what is there.
   * @param {number} x
   * @param {number} y
   * @param {number} width
   * @param {number} height
   * @param {number} pixel
   * @param {number} alpha  From 0 to 1.
   */
  veil(x, y, width, height, pixel, alpha) {
    const { left, top, right, foot } = this.#within(x, y, width, height);
    const words = this.#words;
    const share = Math.round(alpha * 256);
    // Two channels at a time, 16 bits apart.
    const [even, odd] = [pixel & 0xff00ff, (pixel >>> 8) & 0xff00ff];
    for (let row = top; row < foot; row++) {
      const end = row * this.#width + right;
      for (let at = row * this.#width + left; at < end; at++) {
        const under = words[at] ?? 0;
        const [a, b] = [under & 0xff00ff, (under >>> 8) & 0xff00ff];
        const low = (a + (Math.imul(even - a, share) >>> 8)) & 0xff00ff;
        const high = (b + (Math.imul(odd - b, share) >>> 8)) & 0xff00ff;
        words[at] = ((high << 8) | low) >>> 0;
      }
    }
  }

  /**
   * The pixels of a rectangle that may be drawn on.
   * @param {number} x
   * @param {number} y
   * @param {number} width
   * @param {number} height
   */
  #within(x, y, width, height) {
    const ratio = this.#ratio;
    const left = Math.round(x * ratio);
    const top = Math.round(y * ratio);
    return {
      left: Math.max(left, this.#left),
      top: Math.max(top, this.#top),
      right: Math.min(Math.max(Math.round((x + width) * ratio), left + 1), this.#width),
      foot: Math.min(Math.max(Math.round((y + height) * ratio), top + 1), this.#height),
    };
  }

  /** @param {CanvasRenderingContext2D} context */
  put(context) {
    this.#image ??= new ImageData(new Uint8ClampedArray(/** @type {ArrayBuffer} */ (this.#words.buffer)), this.#width, this.#height);
    context.putImageData(this.#image, 0, 0);
  }
}
