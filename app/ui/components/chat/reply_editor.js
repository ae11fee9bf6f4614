// The action "Edit" of a reply: changes its text, from whose end the model then goes on, as another version.

import { make } from "../../shared/dom.js";
import { editDraft, editForm } from "./edit_form.js";
import { actionButton, focusAction } from "./message_actions.js";

export class ReplyEditor {
  /**
   * Place `element` where the text stands, and `button` below it.
   * @param {() => string} source  the reply's text
   * @param {(text: string) => unknown} rewrite  false, or a promise of false, if it was refused
   * @param {string | null} draftKey  where an unsent edit is kept
   */
  constructor(source, rewrite, draftKey) {
    this.source = source;
    this.rewrite = rewrite;
    this.draft = editDraft(draftKey);
    this.button = actionButton("Edit", "Edit this reply and go on from its end", () => this.#open(), "rename");
    this.element = make("div", { hidden: true });
  }

  /** Opens an edit that was not sent, if there is one. Call it when the reply is complete. */
  restore() {
    const draft = this.draft.read();
    if (draft !== null) this.#open(draft);
  }

  /** The rendered text, which the editor stands in place of. */
  get #text() {
    return /** @type {HTMLElement} */ (this.element.previousElementSibling);
  }

  /** @param {string | null} restored */
  #open(restored = null) {
    if (!this.element.hidden) return;
    const form = editForm({
      label: "Edited reply",
      text: restored ?? this.source(),
      hint: "The model goes on from the end of this text. The reply as it was stays as a version.",
      action: "Go on from here",
      submitsOn: ({ ctrlKey, metaKey }) => ctrlKey || metaKey,
      submit: (text) => this.rewrite(text),
      typed: (text) => this.draft.write(text),
      close: () => this.#close(),
    });
    this.element.replaceChildren(form.element);
    this.#show(true);
    if (restored === null) form.start();
    else requestAnimationFrame(() => form.start({ takesFocus: false })); // the reply may not be on the page yet
  }

  #close() {
    this.draft.write(null);
    this.#show(false);
    this.element.replaceChildren();
    focusAction(this.button);
  }

  /** @param {boolean} isEditing */
  #show(isEditing) {
    this.element.hidden = !isEditing;
    this.#text.hidden = isEditing;
    this.button.disabled = isEditing;
  }
}
