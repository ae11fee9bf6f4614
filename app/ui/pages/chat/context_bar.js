// A thin bar above the message box: what fills the model's context, counted as one types.

import { ApiError, api } from "../../shared/api.js";
import { debounce, make } from "../../shared/dom.js";
import { TitledPopover } from "../../shared/popover.js";
import { contextParts, contextSentence } from "./context_texts.js";

/** @import { ContextView, NextMessage } from "../../shared/api_types.js" */

const PAUSE_MS = 300; // in typing, before the text is counted

export class ContextBar {
  /** @type {() => void} */
  #later;
  #isStarted = false;
  #asked = 0; // sequence number: only the latest count is shown

  /**
   * @param {HTMLElement} before  the bar is placed before it
   * @param {{next: () => NextMessage, read: (next: NextMessage) => unknown}} actions  what would be sent; shows its prompt
   */
  constructor(before, actions) {
    this.actions = actions;
    this.track = make("span", { class: "dm-context-track", "aria-hidden": "true" });
    this.words = make("span", { class: "dm-context-words" }, "Context");
    this.button = make("button", { type: "button", class: "dm-context-bar" }, this.track, this.words);
    this.body = make("div");
    const read = make("button", { type: "button", class: "dm-button dm-small" }, "What the model reads");
    read.addEventListener("click", () => {
      this.popover.hide();
      actions.read(actions.next());
    });
    const buttons = make("div", { class: "dm-buttons" }, read);
    this.popover = new TitledPopover(this.button, "The next prompt", { name: "dm-context-popover", centred: true }, () => [this.body, buttons]);
    before.before(this.button, this.popover.element);
    this.#later = debounce(PAUSE_MS, () => this.#count());
  }

  /** Counts from now on. Viewers send nothing, so there is nothing to count for them. */
  start() {
    this.#isStarted = true;
    this.changed();
  }

  /** What would be sent has changed. */
  changed() {
    if (this.#isStarted) this.#later();
  }

  async #count() {
    const asked = ++this.#asked;
    try {
      const view = await api.countContext(this.actions.next());
      if (asked === this.#asked) this.#show(view);
    } catch (error) {
      if (asked !== this.#asked) return;
      // Sending says what is wrong; a count from before would be untrue.
      if (!(error instanceof ApiError)) throw error;
      this.track.replaceChildren();
      this.words.textContent = "Context: not counted now";
      this.body.replaceChildren(make("p", {}, error.message));
    }
  }

  /** @param {ContextView} view */
  #show(view) {
    const parts = contextParts(view);
    const segments = parts.filter(({ tokens, kind }) => tokens > 0 && kind !== "free");
    this.track.replaceChildren(
      ...segments.map(({ kind, tokens }) => {
        const segment = make("span", { class: "dm-context-part", "data-kind": kind });
        segment.style.width = `${Math.min(100, (100 * tokens) / view.context_length)}%`;
        return segment;
      }),
    );
    this.words.textContent = contextSentence(view);
    this.button.classList.toggle("dm-warns", view.problem !== null);
    const rows = parts.map(({ kind, name, tokens, note }) =>
      make(
        "tr",
        {},
        make("th", { scope: "row" }, make("span", { class: "dm-context-key", "data-kind": kind, "aria-hidden": "true" }), name, note === "" ? null : make("span", { class: "dm-context-note dm-popover-note" }, note)),
        make("td", { class: "dm-popover-number" }, tokens.toLocaleString("en")),
      ),
    );
    const head = make("thead", { class: "dm-hidden" }, make("tr", {}, make("th", { scope: "col" }, "Part"), make("th", { scope: "col" }, "Tokens")));
    this.body.replaceChildren(make("table", { class: "dm-popover-table" }, head, make("tbody", {}, ...rows)), ...(view.problem === null ? [] : [make("p", { class: "dm-context-problem" }, view.problem)]));
    this.popover.place();
  }
}
