// A short notification above the message box, with an optional action button.

import { make } from "../../shared/dom.js";

const SHOWN_MS = 20_000;

export class Toast {
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #timer;

  /** @param {HTMLElement} parent  notifications are shown at its top */
  constructor(parent) {
    this.element = make("div", { id: "dm-toast", class: "dm-toast", role: "status" });
    parent.prepend(this.element);
  }

  /**
   * An empty text hides the toast.
   * @param {string} text
   * @param {string | null} name  of the optional button
   * @param {() => unknown} action
   */
  show(text, name = null, action = () => undefined) {
    this.hide();
    if (text === "") return;
    const press = () => {
      this.hide();
      action();
    };
    this.element.append(make("span", {}, text));
    if (name) this.element.append(make("button", { type: "button", class: "dm-action", onclick: press }, name));
    this.#timer = setTimeout(() => this.hide(), SHOWN_MS);
  }

  hide() {
    clearTimeout(this.#timer);
    this.element.replaceChildren();
  }
}
