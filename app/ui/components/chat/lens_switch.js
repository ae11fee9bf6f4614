// The action "Lens" of a reply: shows in place of its text how each token was chosen, and switches back.

import { announce, make } from "../../shared/dom.js";
import { LensView } from "./lens_view.js";
import { actionButton } from "./message_actions.js";

export class LensSwitch {
  /** @type {LensView | null} */
  #view = null;
  #isLoading = false;

  /**
   * Place `element` after the reply's text, and `button` below it.
   * @param {string} id  of the reply
   * @param {HTMLElement} text  hidden while the lens is shown
   * @param {import("./types.js").Actions} actions
   */
  constructor(id, text, actions) {
    this.id = id;
    this.text = text;
    this.actions = actions;
    this.button = actionButton("Lens", "Lens: show how likely each word was", () => this.#toggle(), "lens");
    this.button.classList.add("dm-lens-switch");
    this.button.setAttribute("aria-pressed", "false");
    this.element = make("div", { class: "dm-lens", hidden: true });
  }

  close() {
    if (this.element.hidden) return;
    this.#view?.close();
    this.#view = null;
    this.element.replaceChildren();
    this.#show(false);
  }

  async #toggle() {
    if (!this.element.hidden) return this.close();
    if (this.#isLoading) return;
    this.#isLoading = true;
    this.button.setAttribute("aria-busy", "true");
    try {
      const lens = await this.actions.lens(this.id);
      this.#view = new LensView(lens, {
        choice: (index) => this.actions.lensChoice(this.id, index),
        branch: async (index, tokenId) => this.actions.branchAt(this.id, index, tokenId),
      });
      this.element.replaceChildren(this.#view.element);
      this.#show(true);
      announce(`The lens shows ${lens.tokens.length} tokens.`);
    } catch (error) {
      this.actions.onError(error);
    } finally {
      this.#isLoading = false;
      this.button.removeAttribute("aria-busy");
    }
  }

  /** @param {boolean} shown */
  #show(shown) {
    this.element.hidden = !shown;
    this.text.hidden = shown;
    this.button.setAttribute("aria-pressed", String(shown));
  }
}
