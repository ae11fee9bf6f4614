// A message of the user, with an editor to change and resend it.

import { make, storage } from "../../shared/dom.js";
import { copyText } from "./markdown.js";
import { actionButton, versionSwitcher } from "./message_actions.js";

/** @param {import("./types.js").Message} message @param {import("./types.js").Actions} actions @returns {HTMLElement} */
export function userMessage(message, actions) {
  const text = make("div", { class: "dm-text", dir: "auto" });
  text.textContent = message.content;
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
    foot,
  );

  const draftKey = actions.draftKey(message.id);
  /** @param {string | null} draft */
  const keepDraft = (draft) => draftKey !== null && storage.write("sessionStorage", draftKey, draft);
  const draft = draftKey === null ? null : storage.read("sessionStorage", draftKey);
  if (draft !== null && actions.offers("edit")) open(draft); // an unsent edit survives a rebuild of the list or a reload

  /** @param {string | null} restoredDraft */
  function open(restoredDraft = null) {
    const box = make("textarea", { class: "dm-input dm-edit-box", dir: "auto", "aria-label": "Edited message" });
    box.value = restoredDraft ?? message.content;
    const send = make("button", { type: "submit", class: "dm-button dm-primary" }, "Send");
    const cancel = make("button", { type: "button", class: "dm-button", onclick: () => close() }, "Cancel");
    const form = make(
      "form",
      { class: "dm-card dm-edit" },
      box,
      actions.offers("version") ? make("p", { class: "dm-hint" }, "The original message and its replies are kept.") : null,
      make("div", { class: "dm-buttons" }, cancel, send),
    );
    const grow = () => {
      box.style.height = "auto";
      box.style.height = `${box.scrollHeight + 2}px`;
    };
    const submit = async () => {
      if (send.disabled) return;
      send.disabled = true;
      if ((await actions.edit(message.id, box.value)) === false) send.disabled = false;
      else close();
    };
    box.addEventListener("input", () => {
      grow();
      keepDraft(box.value);
    });
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      submit();
    });
    form.addEventListener("keydown", (event) => {
      if (event.isComposing) return;
      if (event.key === "Escape") close();
      else if (event.key === "Enter" && event.target === box && !event.shiftKey) submit();
      else return;
      event.preventDefault();
      event.stopPropagation(); // Esc must not also stop a reply
    });
    element.replaceChildren(form);
    element.classList.add("dm-editing");
    requestAnimationFrame(grow); // the box may not be in the DOM yet
    if (restoredDraft !== null) return;
    box.focus();
    box.setSelectionRange(box.value.length, box.value.length);
  }

  function close() {
    keepDraft(null);
    element.classList.remove("dm-editing");
    element.replaceChildren(text, foot);
    edit.focus();
  }

  return element;
}
