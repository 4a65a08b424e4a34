// Elements made from code. Text only ever becomes a text node, so that nothing in a run can become markup.

/**
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} tag
 * @param {string} className  Empty for none.
 * @param {...(Node | string)} children
 * @returns {HTMLElementTagNameMap[K]}
 */
export function element(tag, className, ...children) {
  const made = document.createElement(tag);
  if (className !== '') made.className = className;
  made.append(...children);
  return made;
}

/**
 * The element that the page must have.
 * @template {HTMLElement} E
 * @param {string} id
 * @param {new () => E} type
 * @returns {E}
 */
export function byId(id, type) {
  const found = document.getElementById(id);
  if (!(found instanceof type)) throw new Error(`the page lacks #${id}`);
  return found;
}

/**
 * A little square of a colour.
 * @param {string} color
 */
export function swatch(color) {
  const made = element('i', 'swatch');
  made.style.backgroundColor = color;
  return made;
}
