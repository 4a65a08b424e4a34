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
 * @param {string} text
 * @param {() => void} act
 * @param {{ title?: string, className?: string }} [more]  A title says in words what a sign stands for.
 */
export function button(text, act, { title = '', className = '' } = {}) {
  const made = element('button', className, text);
  made.type = 'button';
  if (title !== '') {
    made.title = title;
    // What is read aloud must hold what is seen, where that is a word.
    if (!/\w/.test(text) || title.toLowerCase().includes(text.toLowerCase())) made.setAttribute('aria-label', title);
  }
  made.addEventListener('click', act);
  return made;
}

/** @param {string} value @param {string} label */
export function option(value, label) {
  return Object.assign(element('option', '', label), { value });
}

/** The heading of a column. @param {string} text */
export function headCell(text) {
  const cell = element('th', '', text);
  cell.scope = 'col';
  return cell;
}

/** What an error says. @param {unknown} error */
export function wordsOf(error) {
  return error instanceof Error ? error.message : String(error);
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
