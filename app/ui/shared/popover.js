// Popovers: where they stand, and those with a title that a button opens.

import { make, uniqueId } from "./dom.js";

const MIN_HEIGHT = 320; // pixels of an area that a popover keeps to; in a lower one it would be hard to read
const GAP = 6; // pixels between a popover and what it is about, and the least to the window's edge

/**
 * Puts an open popover below what it is about, or above it, and on the other side where there is only room for it there.
 * @param {HTMLElement} popover  of the class dm-popover
 * @param {DOMRect} about
 * @param {{above?: boolean, centred?: boolean, within?: {top: number, bottom: number}}} where  centred: over the middle, else
 *   from the left edge on; within: what it may cover of the window's height
 */
export function placeBeside(popover, { top, bottom, left, width: wide }, { above = false, centred = false, within } = {}) {
  const { style } = popover;
  style.maxHeight = within ? `${within.bottom - within.top - 2 * GAP}px` : "";
  const { offsetWidth: width, offsetHeight: height } = popover;
  const [highest, lowest] = within ? [within.top, within.bottom] : [0, innerHeight];
  const [needed, roomAbove, roomBelow] = [height + 2 * GAP, top - highest, lowest - bottom];
  const isAbove = above ? roomAbove >= needed || roomAbove > roomBelow : roomBelow < needed && roomAbove >= roomBelow;
  const wantedTop = isAbove ? top - GAP - height : bottom + GAP;
  const wantedLeft = centred ? left + (wide - width) / 2 : left;
  style.top = `${Math.max(highest + GAP, Math.min(wantedTop, lowest - height - GAP))}px`;
  style.left = `${Math.max(GAP, Math.min(wantedLeft, innerWidth - width - GAP))}px`;
}

export class TitledPopover {
  /**
   * Append `element` to the page.
   * @param {HTMLButtonElement} button  opens it, above itself
   * @param {string} title
   * @param {{name: string, centred?: boolean, within?: string}} look  name: a class of its own; within: a selector of
   *   what the button stands in, beyond whose height it does not reach
   * @param {() => (Node | string)[]} content  asked for each time it opens
   */
  constructor(button, title, { name, centred = false, within }, content) {
    this.button = button;
    this.centred = centred;
    this.within = within;
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
    const area = this.within === undefined ? undefined : this.button.closest(this.within)?.getBoundingClientRect();
    const [top, bottom] = [Math.max(0, area?.top ?? 0), Math.min(innerHeight, area?.bottom ?? 0)];
    const within = bottom - top >= MIN_HEIGHT ? { top, bottom } : undefined;
    placeBeside(this.element, this.button.getBoundingClientRect(), { above: true, centred: this.centred, within });
  }
}
