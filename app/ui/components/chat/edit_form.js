// The form in which a message's text is edited, in place of the text.

import { make, storage } from "../../shared/dom.js";

/**
 * @typedef {object} Editing
 * @property {string} label  of the text box
 * @property {string} text
 * @property {string | null} hint
 * @property {string} action  name of the button that submits
 * @property {(event: KeyboardEvent) => boolean} submitsOn  whether Enter, pressed so, submits
 * @property {(text: string) => unknown} submit  false, or a promise of false, if it was refused
 * @property {(text: string) => unknown} typed
 * @property {() => void} close  cancelled, or submitted
 */

/** Call `start` once the form is on the page. @param {Editing} editing */
export function editForm({ label, text, hint, action, submitsOn, submit, typed, close }) {
  const box = make("textarea", { class: "dm-input dm-edit-box", dir: "auto", "aria-label": label });
  box.value = text;
  const go = make("button", { type: "submit", class: "dm-button dm-primary" }, action);
  const cancel = make("button", { type: "button", class: "dm-button", onclick: () => close() }, "Cancel");
  const element = make(
    "form",
    { class: "dm-card dm-edit" },
    box,
    hint === null ? null : make("p", { class: "dm-hint" }, hint),
    make("div", { class: "dm-buttons" }, cancel, go),
  );
  const grow = () => {
    box.style.height = "auto";
    box.style.height = `${box.scrollHeight + 2}px`;
  };
  const send = async () => {
    if (go.disabled) return;
    go.disabled = true;
    if ((await submit(box.value)) === false) go.disabled = false;
    else close();
  };
  box.addEventListener("input", () => {
    grow();
    typed(box.value);
  });
  element.addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  element.addEventListener("keydown", (event) => {
    if (event.isComposing) return;
    if (event.key === "Escape") close();
    else if (event.key === "Enter" && event.target === box && submitsOn(event)) send();
    else return;
    event.preventDefault();
    event.stopPropagation(); // Esc must not also stop a reply
  });
  const start = ({ takesFocus = true } = {}) => {
    grow();
    if (!takesFocus) return;
    box.focus();
    box.setSelectionRange(box.value.length, box.value.length);
  };
  return { element, start };
}

/**
 * An unsent edit survives a rebuild of the list or a reload.
 * @param {string | null} key  null: it is not kept
 */
export const editDraft = (key) => ({
  read: () => (key === null ? null : storage.read("sessionStorage", key)),
  write: (/** @type {string | null} */ text) => key !== null && storage.write("sessionStorage", key, text),
});
