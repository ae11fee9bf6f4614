// Presets of the user's own: saves the sampling under a name, deletes it, and makes new chats begin with these settings.

import { announce, make } from "../../shared/dom.js";

/**
 * What the page does.
 * @typedef {object} Actions
 * @property {(name: string) => Promise<void>} save
 * @property {(name: string) => Promise<void>} remove
 * @property {(use: boolean) => Promise<void>} useForNewChats  false: they begin with the model's defaults again
 */

/**
 * @typedef {object} State
 * @property {string | null} name  of the own preset that fits the settings
 * @property {boolean} isCustom  no preset fits
 * @property {boolean} isStart  new chats begin with these settings
 * @property {boolean} hasStart  the user has chosen what they begin with
 * @property {boolean} canSave
 */

export class OwnPresets {
  /** @param {HTMLElement} place @param {Actions} actions */
  constructor(place, actions) {
    this.actions = actions;
    this.trouble = make("p", { class: "dm-alert", role: "alert", hidden: true });
    this.name = /** @type {HTMLInputElement} */ (make("input", { class: "dm-input", maxlength: 60, "aria-label": "Name of the preset", placeholder: "Name of the preset" }));
    this.form = make("form", { class: "dm-own-preset-form", hidden: true }, this.name, make("button", { type: "submit", class: "dm-button dm-primary" }, "Save"), this.#button("Cancel", () => this.#close()));
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#try(async () => {
        const name = this.name.value.trim();
        if (!name) throw new Error("Write a name for the preset.");
        await actions.save(name);
        this.#close();
        announce(`The preset ${name} was saved.`);
      });
    });
    this.form.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      event.stopPropagation(); // it would close the panel, too
      this.#close();
    });
    this.saveButton = this.#button("Save as preset", () => this.#open());
    this.removeButton = this.#button("Delete preset", () => this.#try(() => this.#remove()));
    this.startButton = this.#button("Use as my default", () => this.#try(() => this.#start(true)));
    this.endButton = this.#button("Stop using as my default", () => this.#try(() => this.#start(false)));
    // On a line of its own: a button of another width must not bring the one to delete under the pointer.
    this.removal = make("div", { class: "dm-buttons dm-own-preset-removal" }, this.removeButton);
    this.buttons = make("div", { class: "dm-buttons" }, this.saveButton, this.startButton, this.endButton, this.removal);
    place.replaceChildren(this.buttons, this.form, this.trouble);
    /** @type {State} */
    this.state = { name: null, isCustom: false, isStart: true, hasStart: false, canSave: false };
  }

  /** @param {State} state */
  show(state) {
    this.state = state;
    const { name, isCustom, isStart, hasStart, canSave } = state;
    this.saveButton.hidden = !(canSave && isCustom);
    this.removeButton.hidden = !(canSave && name !== null);
    this.startButton.hidden = !canSave || isStart;
    this.endButton.hidden = !(canSave && isStart && hasStart);
  }

  /** @param {string} text @param {() => void} onclick */
  #button(text, onclick) {
    return /** @type {HTMLButtonElement} */ (make("button", { type: "button", class: "dm-button dm-small", onclick }, text));
  }

  #open() {
    this.form.hidden = false;
    this.buttons.hidden = true;
    this.name.value = "";
    this.name.focus();
  }

  #close() {
    this.form.hidden = true;
    this.buttons.hidden = false;
    this.#complain("");
    if (!this.saveButton.hidden) this.saveButton.focus();
  }

  async #remove() {
    const { name } = this.state;
    if (name === null) return;
    await this.actions.remove(name);
    announce(`The preset ${name} was deleted. This chat keeps its settings.`);
  }

  /** @param {boolean} use */
  async #start(use) {
    await this.actions.useForNewChats(use);
    announce(use ? "New chats begin with these settings." : "New chats begin with the model’s defaults.");
  }

  /** @param {() => Promise<void>} action */
  async #try(action) {
    this.#complain("");
    try {
      await action();
    } catch (error) {
      this.#complain(error instanceof Error ? error.message : String(error));
    }
  }

  /** @param {string} text */
  #complain(text) {
    this.trouble.textContent = text;
    this.trouble.hidden = text === "";
  }
}
