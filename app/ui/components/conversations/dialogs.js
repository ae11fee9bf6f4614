// Modal dialogs about a conversation. Each function resolves to the user's answer.

import { showDialog } from "../../shared/dialog.js";
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
  return showDialog(dialog, focus ?? cancel);
}

/** @param {string} text  what is deleted @param {string} question */
export async function confirmDeletion(text, question = "Delete this conversation?") {
  return (await ask(question, make("p", {}, text), "Delete", { danger: true })) === "yes";
}

/**
 * Resolves to the name of a folder; empty when cancelled.
 * @param {string} title
 * @param {string} before
 */
export async function askName(title, before) {
  const input = make("input", { class: "dm-input", "aria-label": "Name", maxlength: "60", required: true });
  input.value = before;
  input.select();
  return (await ask(title, input, "Save", { focus: input })) === "yes" ? input.value.trim() : "";
}

/**
 * Resolves to the folder to move conversations to: an id, null for none, or the name of a new one; undefined when
 * cancelled.
 * @param {string} what
 * @param {{id: string, name: string}[]} folders
 * @param {string | null} current
 * @returns {Promise<{id: string | null} | {name: string} | undefined>}
 */
export async function askFolder(what, folders, current) {
  const choices = [{ id: "none", name: "No folder" }, ...folders, { id: "new", name: "New folder …" }];
  const select = make("select", { class: "dm-input", "aria-label": "Folder" }, ...choices.map(({ id, name }) => make("option", { value: id }, name)));
  select.value = current ?? folders[0]?.id ?? "new";
  const input = make("input", { class: "dm-input", "aria-label": "Name of the new folder", placeholder: "Name of the new folder", maxlength: "60" });
  const follow = () => {
    input.hidden = select.value !== "new";
    input.required = !input.hidden;
  };
  select.addEventListener("change", () => {
    follow();
    if (!input.hidden) input.focus();
  });
  follow();
  const content = make("div", { class: "dm-move" }, make("p", {}, what), select, input);
  if ((await ask("Move to a folder", content, "Move", { focus: input.hidden ? select : input })) !== "yes") return undefined;
  if (select.value === "new") return { name: input.value.trim() };
  return { id: select.value === "none" ? null : select.value };
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
