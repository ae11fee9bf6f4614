// The welcome screen of an empty chat: a heading, an introduction, examples, and a toggle for a temporary chat.

import { make } from "../../shared/dom.js";

export class Welcome {
  temporary = false; // whether the next new chat is temporary

  /**
   * @param {HTMLElement} element
   * @param {object} callbacks
   * @param {(text: string) => unknown} callbacks.onExample
   * @param {() => unknown} callbacks.onSuggestion
   * @param {(temporary: boolean) => unknown} callbacks.onTemporary
   */
  constructor(element, { onExample, onSuggestion, onTemporary }) {
    /** @param {string} name @returns {HTMLElement} */
    const part = (name) => /** @type {HTMLElement} */ (element.querySelector(`.dm-${name}`));
    this.element = element;
    this.heading = part("welcome-heading");
    this.introduction = part("welcome-model");
    this.suggestion = part("suggestion");
    this.suggestionText = part("suggestion-text");
    this.suggestionButton = part("suggestion-button");
    this.examples = part("examples");
    this.choice = part("temporary-choice");
    this.toggle = part("temporary");
    this.hint = part("temporary-hint");
    this.hintText = "";
    this.onExample = onExample;
    this.suggestionButton.addEventListener("click", () => onSuggestion());
    this.toggle.addEventListener("click", () => {
      this.#makeTemporary(!this.temporary);
      onTemporary(this.temporary);
    });
  }

  /**
   * @param {{heading?: string, introduction?: string, suggestion?: string[], examples?: string[],
   *   temporary_hint?: string | null, read_only?: boolean}} texts
   */
  describe({ heading = "", introduction = "", suggestion = [], examples = [], temporary_hint: hint = null, read_only: readOnly = false }) {
    this.heading.textContent = heading;
    this.introduction.textContent = introduction;
    const [sentence = "", button = ""] = suggestion;
    this.suggestion.hidden = sentence === "";
    this.suggestionText.textContent = sentence;
    this.suggestionButton.hidden = button === "";
    this.suggestionButton.textContent = button;
    /** @param {string} text */
    const example = (text) => make("li", {}, make("button", { type: "button", class: "dm-card", onclick: () => this.onExample(text) }, text));
    this.examples.replaceChildren(...examples.map(example));
    this.examples.hidden = readOnly;
    this.choice.hidden = hint === null || readOnly;
    this.hintText = hint ?? "";
    this.#makeTemporary(this.temporary);
  }

  /**
   * Shows the screen with the toggle off. `exists`: the conversation is saved already, but its messages were deleted, so
   * it can't become temporary.
   */
  show({ exists = false } = {}) {
    this.element.hidden = false;
    this.toggle.hidden = exists;
    this.#makeTemporary(false);
  }

  hide() {
    this.element.hidden = true;
  }

  /** @param {boolean} temporary */
  #makeTemporary(temporary) {
    this.temporary = temporary;
    this.toggle.setAttribute("aria-pressed", String(temporary));
    this.hint.textContent = temporary ? this.hintText : "";
  }
}
