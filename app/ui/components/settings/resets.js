// A button at each control that is not at its default, which sets it back.

import { make } from "../../shared/dom.js";

export class Resets {
  /** @type {Map<string, {control: HTMLElement, button: HTMLButtonElement}>} by the setting's name */
  #buttons = new Map();

  /**
   * @param {HTMLElement} root  has the controls
   * @param {{name: string, label: string}[]} settings
   * @param {(name: string) => void} reset
   */
  constructor(root, settings, reset) {
    for (const { name, label } of settings) {
      /** @type {HTMLElement | null} */
      const control = root.querySelector(`.dm-control-${name}`);
      if (!control) continue;
      const onclick = () => {
        reset(name);
        /** @type {HTMLElement | null} */ (control.querySelector("input, textarea"))?.focus(); // this button goes
      };
      const button = /** @type {HTMLButtonElement} */ (make("button", { type: "button", class: "dm-reset-one dm-icon-button dm-small", "aria-label": "Back to the default", "aria-description": label, title: "Back to the default", onclick, hidden: true }, make("span", { class: "dm-icon dm-icon-undo" })));
      control.append(button);
      this.#buttons.set(name, { control, button });
    }
  }

  /** @param {(name: string) => boolean} isChanged */
  show(isChanged) {
    for (const [name, { control, button }] of this.#buttons) {
      const changed = isChanged(name);
      control.classList.toggle("dm-changed", changed);
      button.hidden = !changed;
    }
  }
}
