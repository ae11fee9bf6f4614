// Small helpers around the DOM.

// Makes an element: make("a", {href: "/", class: "x", onclick: f}, "text", child, ...).
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

// Gives an element these children. What stays is left alone: what is read again under the pointer must not swallow a click.
export function replaceChildren(parent, elements) {
  const stay = new Set(elements);
  for (const element of [...parent.children]) if (!stay.has(element)) element.remove();
  elements.forEach((element, index) => {
    const there = parent.children[index] ?? null;
    if (there !== element) parent.insertBefore(element, there);
  });
}

// Waits until Gradio has drawn what `selector` names.
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

// Tells a screen reader something once, without moving the focus.
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

// Storage can be switched off in a browser; the page then forgets, and works.
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
      // Full or forbidden: what could not be kept is a convenience only.
    }
  },
};
