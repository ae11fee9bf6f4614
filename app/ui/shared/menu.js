// A popup menu anchored to a button.

import { icon, make } from "./dom.js";

/**
 * Arrow keys move; Esc and a click elsewhere close it (the browser's popover does that), and the focus returns to the
 * button. Redraws must keep a button that has aria-expanded="true" until `closed` is called.
 * @param {HTMLElement} button
 * @param {string} label
 * @param {{name: string, label?: string, iconName?: string, action: () => unknown, danger?: boolean}[]} entries  label: the name
 *   for screen readers, which contains `name`; without it, `name`
 */
export function openMenu(button, label, entries, closed = () => {}) {
  /** @param {(typeof entries)[number]} entry */
  const item = ({ name, label: full, iconName, action, danger }) =>
    make(
      "button",
      {
        type: "button",
        role: "menuitem",
        class: danger ? "dm-menu-item dm-danger" : "dm-menu-item",
        "aria-label": full,
        tabindex: "-1",
        onclick: () => {
          menu.hidePopover();
          action();
        },
      },
      iconName ? icon(iconName) : null,
      name,
    );
  const menu = make("div", { class: "dm-menu", role: "menu", "aria-label": label, popover: "auto" }, ...entries.map(item));
  document.body.append(menu);
  // "beforetoggle" is synchronous. By the time "toggle" fires, the button may have opened its next menu.
  menu.addEventListener("beforetoggle", (event) => {
    if (event.newState === "closed") button.setAttribute("aria-expanded", "false");
  });
  menu.addEventListener("toggle", (event) => {
    if (event.newState !== "closed") return;
    if (menu.contains(document.activeElement) || document.activeElement === document.body) button.focus();
    menu.remove();
    closed();
  });
  menu.addEventListener("keydown", (event) => {
    event.stopPropagation(); // Esc closes the menu and must not also stop a reply
    const items = /** @type {HTMLElement[]} */ ([...menu.children]);
    const at = items.findIndex((each) => each === document.activeElement);
    /** @type {Record<string, number>} */
    const targets = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: items.length - 1 };
    const to = targets[event.key];
    if (event.key === "Tab") menu.hidePopover();
    if (to === undefined) return;
    items.at(to % items.length)?.focus();
    event.preventDefault();
  });
  menu.showPopover();
  place(menu, button.getBoundingClientRect());
  button.setAttribute("aria-expanded", "true");
  /** @type {HTMLElement | null} */ (menu.firstElementChild)?.focus();
}

// Places the menu below the button, or above it where it doesn't fit.
/** @param {HTMLElement} menu @param {DOMRect} at */
function place(menu, at) {
  const { width, height } = menu.getBoundingClientRect();
  const below = at.bottom + 4;
  const top = below + height <= innerHeight - 8 ? below : Math.max(8, at.top - height - 4);
  const left = Math.min(Math.max(8, at.right - width), innerWidth - width - 8);
  Object.assign(menu.style, { top: `${top}px`, left: `${left}px` });
}
