// The passage behind a number in a reply's text: shown while the pointer or the focus is on the number, or by a tap.

import { make, uniqueId } from "../../shared/dom.js";
import { placeBeside } from "../../shared/popover.js";
import { headingBelowTitle } from "./citations.js";

/** @import { Citation } from "./types.js" */

const SHOW_MS = 150; // not for a pointer that only passes
const HIDE_MS = 250; // enough to move the pointer from the number onto the preview

export class SourcePreview {
  /** @type {HTMLElement | null} the number whose passage is shown */
  #mark = null;
  /** @type {HTMLElement | null} */
  #preview = null;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #timer;
  #id = uniqueId("dm-source-preview");
  #isTouched = false;

  /**
   * @param {HTMLElement} root  the text whose numbers have previews
   * @param {(number: number) => Citation | undefined} find
   * @param {((citation: Citation) => unknown) | null} open  shows the document; null: that is not offered
   */
  constructor(root, find, open) {
    this.find = find;
    this.open = open;
    root.addEventListener("pointerover", (event) => {
      const mark = markAt(event.target);
      if (mark && event.pointerType !== "touch") this.#later(() => this.show(mark), SHOW_MS);
    });
    root.addEventListener("pointerout", (event) => {
      if (markAt(event.target) && event.pointerType !== "touch") this.#later(() => this.hide(), HIDE_MS);
    });
    root.addEventListener("focusin", ({ target }) => {
      const mark = markAt(target);
      if (mark?.matches(":focus-visible")) this.show(mark);
    });
    root.addEventListener("focusout", (event) => {
      const isInside = event.relatedTarget instanceof Node && this.#preview?.contains(event.relatedTarget);
      if (!isInside) this.hide();
    });
    root.addEventListener("pointerdown", ({ pointerType }) => {
      this.#isTouched = pointerType === "touch"; // not every browser says so of the click that follows
    });
    root.addEventListener("click", (event) => {
      const mark = markAt(event.target);
      if (!mark) return;
      const isTap = this.#isTouched && event.detail > 0; // 0: by the keyboard
      if (this.open && !isTap) this.#openDocument(mark);
      else if (this.#mark === mark) this.hide();
      else this.show(mark);
    });
  }

  /** Shows the passage of a number. @param {HTMLElement} mark */
  show(mark) {
    clearTimeout(this.#timer);
    const citation = this.find(Number(mark.dataset.number));
    if (!citation || !mark.isConnected || this.#mark === mark) return;
    this.hide();
    this.#mark = mark;
    this.#preview = this.#make(citation, mark);
    mark.setAttribute("aria-describedby", this.#id);
    document.body.append(this.#preview);
    this.#preview.showPopover?.(); // above dialogs and panels, where the browser has popovers
    this.#place();
    document.addEventListener("scroll", this.#place, { capture: true, passive: true });
    document.addEventListener("pointerdown", this.#leave);
    document.addEventListener("keydown", this.#escape, { capture: true });
  }

  hide() {
    clearTimeout(this.#timer);
    document.removeEventListener("scroll", this.#place, { capture: true });
    document.removeEventListener("pointerdown", this.#leave);
    document.removeEventListener("keydown", this.#escape, { capture: true });
    this.#mark?.removeAttribute("aria-describedby");
    this.#preview?.remove();
    this.#mark = this.#preview = null;
  }

  /** @param {() => void} action @param {number} milliseconds */
  #later(action, milliseconds) {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(action, milliseconds);
  }

  /** @param {HTMLElement} mark */
  #openDocument(mark) {
    const citation = this.find(Number(mark.dataset.number));
    this.hide();
    if (citation) this.open?.(citation);
  }

  /** @param {Citation} citation @param {HTMLElement} mark */
  #make(citation, mark) {
    const heading = headingBelowTitle(citation);
    return make(
      "div",
      {
        id: this.#id,
        class: "dm-component dm-popover dm-source-preview",
        popover: "manual",
        onpointerenter: () => clearTimeout(this.#timer),
        onpointerleave: () => this.#later(() => this.hide(), HIDE_MS),
      },
      make("p", { class: "dm-source-title", dir: "auto" }, `[${citation.number}] ${citation.title}`),
      heading === "" ? null : make("p", { class: "dm-source-heading", dir: "auto" }, heading),
      make("p", { class: "dm-source-passage", dir: "auto" }, citation.withheld || citation.text),
      this.open
        ? make("button", { type: "button", class: "dm-action dm-open-source", onclick: () => this.#openDocument(mark) }, "Open document")
        : null,
    );
  }

  /** Puts the preview below its number, or above it where there is more room. */
  #place = () => {
    if (!this.#mark || !this.#preview) return;
    if (this.#mark.isConnected) placeBeside(this.#preview, this.#mark.getBoundingClientRect());
    else this.hide();
  };

  /** Escape closes the preview, wherever the focus is, and nothing else. @param {KeyboardEvent} event */
  #escape = (event) => {
    if (event.key !== "Escape") return;
    event.preventDefault(); // it would also stop a reply
    event.stopPropagation();
    this.hide();
  };

  /** A tap elsewhere closes the preview. @param {PointerEvent} event */
  #leave = ({ target }) => {
    if (target instanceof Node && !this.#preview?.contains(target) && markAt(target) !== this.#mark) this.hide();
  };
}

/** @param {EventTarget | null} target @returns {HTMLElement | null} */
const markAt = (target) => (target instanceof Element ? target.closest(".dm-cite") : null);
