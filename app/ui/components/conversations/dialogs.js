// Modal dialogs about a conversation. Each function resolves to the user's answer.

import { make } from "../../shared/dom.js";

/**
 * Resolves to the dialog's return value: "yes" when confirmed, "no" or "" when cancelled.
 * @param {string} title
 * @param {Node} content
 * @param {string} yes  text of the button that confirms
 * @param {{danger?: boolean, focus?: HTMLElement | null}} options
 * @returns {Promise<string>}
 */
function ask(title, content, yes, { danger = false, focus = null } = {}) {
  const cancel = make("button", { type: "button", class: "dm-button" }, "Cancel");
  const dialog = make(
    "dialog",
    { class: "dm-dialog", "aria-labelledby": "dm-dialog-title" },
    make(
      "form",
      { method: "dialog" },
      make("h2", { id: "dm-dialog-title" }, title),
      content,
      make(
        "div",
        { class: "dm-buttons" },
        cancel,
        make("button", { type: "submit", value: "yes", class: `dm-button dm-primary${danger ? " dm-danger" : ""}` }, yes),
      ),
    ),
  );
  cancel.addEventListener("click", () => dialog.close("no"));
  dialog.addEventListener("keydown", (event) => event.stopPropagation()); // Esc must not also stop a reply
  document.body.append(dialog);
  dialog.showModal();
  (focus ?? cancel).focus();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue);
    });
  });
}

/** @param {string} title */
export async function confirmDeletion(title) {
  const text = make("p", {}, `“${title}” and all its messages will be deleted for good.`);
  return (await ask("Delete this conversation?", text, "Delete", { danger: true })) === "yes";
}

/**
 * Resolves to the new tags, or null when cancelled.
 * @param {string} title
 * @param {string[]} tags
 * @param {string[]} knownTags  to suggest
 */
export async function askTags(title, tags, knownTags) {
  const input = make("input", { class: "dm-input", "aria-label": "Tags", list: "dm-known-tags", maxlength: "1000" });
  input.value = tags.join(", ");
  const content = make(
    "div",
    {},
    make("p", {}, `Tags for “${title}”, separated by commas.`),
    input,
    make("datalist", { id: "dm-known-tags" }, ...knownTags.map((tag) => make("option", { value: tag }))),
  );
  if ((await ask("Tags", content, "Save", { focus: input })) !== "yes") return null;
  return input.value
    .split(",")
    .map((tag) => tag.trim())
    .filter((tag) => tag !== "");
}
