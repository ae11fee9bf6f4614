// A short message above the box to write in, perhaps with one thing to do about it.

import { byId, make } from "./dom.js";

const SHOWN_MS = 20_000;

export class Toast {
  #timer = null;

  constructor() {
    this.element = byId("dm-toast");
  }

  // Without a name there is nothing to do about it; without a text it goes away.
  show(text, name = null, action = null) {
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
