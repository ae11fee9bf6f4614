// Popovers: where they stand, and those with a title that a button opens.

import { make, uniqueId } from "./dom.js";

const GAP = 6; // pixels between a popover and what it is about, and the least to the window's edge

/**
 * Puts an open popover below what it is about, or above it, and on the other side where there is only room for it there.
 * @param {HTMLElement} popover  of the class dm-popover
 * @param {DOMRect} about
 * @param {{above?: boolean, centred?: boolean}} where  centred: over the middle, else from the left edge on
 */
export function placeBeside(popover, { top, bottom, left, width: wide }, { above = false, centred = false } = {}) {
  const { offsetWidth: width, offsetHeight: height, style } = popover;
  const [needed, roomBelow] = [height + 2 * GAP, innerHeight - bottom];
  const isAbove = above ? top >= needed || top > roomBelow : roomBelow < needed && top >= roomBelow;
  const wantedTop = isAbove ? top - GAP - height : bottom + GAP;
  const wantedLeft = centred ? left + (wide - width) / 2 : left;
  style.top = `${Math.max(GAP, Math.min(wantedTop, innerHeight - height - GAP))}px`;
  style.left = `${Math.max(GAP, Math.min(wantedLeft, innerWidth - width - GAP))}px`;
}

export class TitledPopover {
  /**
   * Append `element` to the page.
   * @param {HTMLButtonElement} button  opens it, above itself
   * @param {string} title
   * @param {{name: string, centred?: boolean}} look  name: a class of its own
   * @param {() => (Node | string)[]} content  asked for each time it opens
   */
  constructor(button, title, { name, centred = false }, content) {
    this.button = button;
    this.centred = centred;
    const [id, titleId] = [uniqueId(name), uniqueId(`${name}-title`)];
    button.setAttribute("popovertarget", id);
    button.setAttribute("aria-haspopup", "dialog");
    const heading = make("p", { class: "dm-popover-title", id: titleId }, title);
    this.element = make("div", { class: `dm-popover ${name}`, popover: "auto", role: "dialog", id, "aria-labelledby": titleId, tabindex: "-1" });
    this.element.addEventListener("beforetoggle", (event) => {
      if (/** @type {ToggleEvent} */ (event).newState === "open") this.element.replaceChildren(heading, ...content());
    });
    this.element.addEventListener("toggle", (event) => {
      if (/** @type {ToggleEvent} */ (event).newState !== "open") return;
      this.place();
      this.element.focus({ preventScroll: true });
    });
    this.element.addEventListener("keydown", (event) => event.key === "Escape" && event.stopPropagation()); // it would also stop a reply
  }

  hide() {
    this.element.hidePopover();
  }

  /** Call when what it shows has changed. */
  place() {
    if (!this.element.matches(":popover-open")) return;
    placeBeside(this.element, this.button.getBoundingClientRect(), { above: true, centred: this.centred });
  }
}
