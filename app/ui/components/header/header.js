// The bar above the chat: title, state, menu, and buttons for the side panels.

import { Component } from "../../shared/component.js";
import { make } from "../../shared/dom.js";
import { openMenu } from "../../shared/menu.js";

/** @typedef {{name: string, iconName?: string, action: () => unknown}} Entry  an entry of the menu */

export class Header extends Component {
  /** @type {{label: string, entries: Entry[]}} */
  #menu = { label: "", entries: [] };

  /** @param {import("../../shared/component.js").Context} context */
  constructor(context) {
    super(context);
    this.title = this.find(".dm-title");
    this.status = this.find(".dm-status");
    this.temporaryMark = this.find(".dm-temporary-mark");
    this.progress = this.find(".dm-model-progress");
    this.modelsButton = this.find(".dm-models-button");
    this.findButton = this.find(".dm-find");
    this.menuButton = this.find(".dm-me");
    /** @type {Record<string, HTMLElement>} the buttons of the panels */
    this.toggles = {
      conversations: this.find(".dm-toggle-conversations"),
      settings: this.find(".dm-toggle-settings"),
    };
    for (const [panel, toggle] of Object.entries(this.toggles)) {
      toggle.addEventListener("click", () => this.emit("toggle", { panel }));
    }
    this.modelsButton.addEventListener("click", () => this.emit("models_open"));
    this.menuButton.addEventListener("click", () => openMenu(this.menuButton, this.#menu.label, this.#menu.entries));
    this.#showProps();
    this.watch(["value", "status", "failed", "temporary", "panels", "models", "menu", "menu_label"], () => this.#showProps());
  }

  #showProps() {
    const { value, status = "", failed, temporary, panels = [], models, menu = [], menu_label: label = "" } = this.props;
    this.modelsButton.hidden = !models;
    this.setTitle(value ?? "");
    this.showStatus(status, failed ? "not ready" : "ready");
    this.markTemporary(Boolean(temporary));
    for (const [panel, toggle] of Object.entries(this.toggles)) toggle.hidden = !panels.includes(panel);
    /** @param {string} name */
    const entry = (name) => ({ name, action: () => this.emit("menu_select", { name }) });
    this.setMenu(label, label, menu.map(entry));
  }

  /** @param {string} title */
  setTitle(title) {
    this.title.textContent = title;
  }

  get isTemporary() {
    return !this.temporaryMark.hidden;
  }

  /** @param {boolean} temporary */
  markTemporary(temporary) {
    this.temporaryMark.hidden = !temporary;
  }

  /** @param {string} text @param {string} state  begins with "not" if it is a problem */
  showStatus(text, state) {
    const end = ` · ${state}`; // where there is little room, the name before it is cut
    const parts = text.endsWith(end) ? [text.slice(0, -end.length), end] : [text];
    this.status.replaceChildren(...parts.filter(Boolean).map((part) => make("span", {}, part)));
    this.status.dataset.state = state;
  }

  /** How far something that takes long has come; empty for nothing. @param {string} text */
  showProgress(text) {
    if (this.progress.textContent !== text) this.progress.textContent = text;
  }

  /** Offers a button that finds anything. @param {string} label @param {() => unknown} open */
  setFind(label, open) {
    this.findButton.title = label;
    this.findButton.setAttribute("aria-label", label);
    this.findButton.addEventListener("click", () => open());
    this.findButton.hidden = false;
  }

  /**
   * Sets the menu; without entries there is none.
   * @param {string} label  of the menu
   * @param {string} buttonLabel  for screen readers
   * @param {Entry[]} entries
   * @param {string} [tooltip]
   */
  setMenu(label, buttonLabel, entries, tooltip = label) {
    this.#menu = { label, entries };
    this.menuButton.setAttribute("aria-label", buttonLabel);
    this.menuButton.title = tooltip;
    this.menuButton.hidden = entries.length === 0;
  }
}

/** @param {import("../../shared/component.js").Context} context */
export const mount = (context) => new Header(context);
