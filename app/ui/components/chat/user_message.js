// A message of the user, with an editor to change and resend it.

import { make } from "../../shared/dom.js";
import { fileCards } from "./attached_cards.js";
import { joinFiles, splitFiles } from "./attached_text.js";
import { editDraft, editForm } from "./edit_form.js";
import { copyText } from "./markdown.js";
import { actionButton, versionSwitcher } from "./message_actions.js";

/** @param {import("./types.js").Message} message @param {import("./types.js").Actions} actions @returns {HTMLElement} */
export function userMessage(message, actions) {
  const text = make("div", { class: "dm-text", dir: "auto" });
  const { text: written, files } = splitFiles(message.content);
  text.textContent = written;
  text.hidden = written === "";
  const cards = fileCards(files);
  /** @type {HTMLButtonElement} */
  const copy = actionButton("Copy", "Copy message", () => copyText(message.content, copy), "copy");
  const edit = actionButton("Edit", "Edit message", () => open(), "rename");
  const remove = actionButton("Delete", "Delete this message and everything after it", () => actions.remove(message.id), "delete");
  /** @param {string} name @param {HTMLElement | null} button */
  const offered = (name, button) => (actions.offers(name) ? button : null);
  const foot = make(
    "footer",
    { class: "dm-foot" },
    offered("version", versionSwitcher(message, actions.show)),
    make("span", { class: "dm-quiet" }, offered("edit", edit), offered("copy", copy), offered("delete", remove)),
  );
  const element = make(
    "article",
    { class: "dm-message dm-user", "aria-label": "You", "data-id": message.id },
    text,
    ...cards,
    foot,
  );

  const draft = editDraft(actions.draftKey(message.id));
  const unsent = draft.read();
  if (unsent !== null && actions.offers("edit")) open(unsent);

  /** @param {string | null} restored */
  function open(restored = null) {
    const form = editForm({
      label: "Edited message",
      text: restored ?? written,
      hint: actions.offers("version") ? "The original message and its replies are kept." : null,
      action: "Send",
      submitsOn: ({ shiftKey }) => !shiftKey,
      submit: (changed) => actions.edit(message.id, joinFiles(changed, files)),
      typed: draft.write,
      close,
    });
    element.replaceChildren(form.element);
    element.classList.add("dm-editing");
    if (restored === null) form.start();
    else requestAnimationFrame(() => form.start({ takesFocus: false })); // the message may not be on the page yet
  }

  function close() {
    draft.write(null);
    element.classList.remove("dm-editing");
    element.replaceChildren(text, ...cards, foot);
    edit.focus();
  }

  return element;
}
