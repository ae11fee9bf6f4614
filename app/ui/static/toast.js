// A short message above the box to write in, with one thing to do about it.

import { byId, make } from "./dom.js";

const SHOWN_MS = 20_000;

export class Toast {
  #timer = null;

  constructor() {
    this.element = byId("dm-toast");
  }

  show(text, name, action) {
    const button = make("button", { type: "button", class: "dm-action" }, name);
    button.addEventListener("click", () => {
      this.hide();
      action();
    });
    this.element.replaceChildren(make("span", {}, text), button);
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.hide(), SHOWN_MS);
  }

  hide() {
    clearTimeout(this.#timer);
    this.element.replaceChildren();
  }
}
