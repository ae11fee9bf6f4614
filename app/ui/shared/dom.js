// DOM, timer and storage helpers.

// Creates an element: make("a", {href: "/", class: "x", onclick: f}, "text", child, ...).
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

export const byId = (id) => document.getElementById(id);

export const icon = (name) => make("span", { class: `dm-icon dm-icon-${name}`, "aria-hidden": "true" });

// Replaces the children of an element. Children in both lists stay in place, so that a refresh under the pointer
// doesn't swallow a click.
export function replaceChildren(parent, elements) {
  const stay = new Set(elements);
  for (const element of [...parent.children]) if (!stay.has(element)) element.remove();
  elements.forEach((element, index) => {
    const there = parent.children[index] ?? null;
    if (there !== element) parent.insertBefore(element, there);
  });
}

// Resolves to the first element that matches `selector`, once Gradio has rendered it.
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

// Announces a text to screen readers once, without moving the focus.
export function announce(text) {
  byId("dm-announcer").textContent = text;
}

export function debounce(milliseconds, action) {
  let timer = null;
  const later = (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => action(...values), milliseconds);
  };
  later.cancel = () => clearTimeout(timer);
  return later;
}

// Web storage that fails silently: a browser can disable it, and the page must still work.
export const storage = {
  read(area, key) {
    try {
      return window[area].getItem(key);
    } catch {
      return null;
    }
  },
  write(area, key, value) {
    try {
      if (value === null || value === "") window[area].removeItem(key);
      else window[area].setItem(key, value);
    } catch {
      // Full or disabled. Only conveniences are stored, so losing one is acceptable.
    }
  },
};
