// DOM, timer and storage helpers.

/**
 * Creates an element: make("a", {href: "/", class: "x", onclick: f}, "text", child, ...).
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Record<string, any>} attributes
 * @param {(Node | string | null)[]} children
 * @returns {HTMLElementTagNameMap[Tag]}
 */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

/** @param {string} id @returns {any} */
export const byId = (id) => document.getElementById(id);

let ids = 0;

/** An id that no other element of the page has: a page may have several components of a kind. @param {string} name */
export const uniqueId = (name) => `${name}-${++ids}`;

/** @param {string} name */
export const icon = (name) => make("span", { class: `dm-icon dm-icon-${name}`, "aria-hidden": "true" });

/**
 * Replaces the children of an element. Children in both lists stay in place, so that a refresh under the pointer
 * doesn't swallow a click.
 * @param {Element} parent
 * @param {Element[]} elements
 */
export function replaceChildren(parent, elements) {
  const stay = new Set(elements);
  for (const element of [...parent.children]) if (!stay.has(element)) element.remove();
  let there = parent.firstElementChild;
  for (const element of elements) {
    if (there === element) there = there.nextElementSibling;
    else parent.insertBefore(element, there);
  }
}

/**
 * Resolves to the first element that matches `selector`, once Gradio has rendered it.
 * @param {string} selector
 * @returns {Promise<Element>}
 */
export function waitForElement(selector) {
  const found = document.querySelector(selector);
  if (found) return Promise.resolve(found);
  return new Promise((resolve) => {
    const observer = new MutationObserver(() => {
      const element = document.querySelector(selector);
      if (!element) return;
      observer.disconnect();
      resolve(element);
    });
    observer.observe(document.documentElement, { childList: true, subtree: true });
  });
}

/** @type {HTMLElement | null} the element whose changes screen readers read out */
let announcer = null;

// Screen readers must know the element before its text changes, so call this before `announce`.
export function prepareAnnouncements() {
  if (announcer) return announcer;
  announcer = make("div", { id: "dm-announcer", class: "dm-hidden", "aria-live": "polite" });
  document.body.append(announcer);
  return announcer;
}

/** Announces a text to screen readers once, without moving the focus. @param {string} text */
export function announce(text) {
  prepareAnnouncements().textContent = text;
}

/**
 * @template {unknown[]} Values
 * @param {number} milliseconds
 * @param {(...values: Values) => unknown} action
 */
export function debounce(milliseconds, action) {
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;
  /** @param {Values} values */
  const later = (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => action(...values), milliseconds);
  };
  later.cancel = () => clearTimeout(timer);
  return later;
}

// Web storage that fails silently: a browser can disable it, and the page must still work.
export const storage = {
  /** @param {"localStorage" | "sessionStorage"} area @param {string} key */
  read(area, key) {
    try {
      return window[area].getItem(key);
    } catch {
      return null;
    }
  },
  /** @param {"localStorage" | "sessionStorage"} area @param {string} key @param {string | null} value */
  write(area, key, value) {
    try {
      if (value === null || value === "") window[area].removeItem(key);
      else window[area].setItem(key, value);
    } catch {
      // Full or disabled. Only conveniences are stored, so losing one is acceptable.
    }
  },
};
