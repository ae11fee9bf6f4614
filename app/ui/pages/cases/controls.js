// Buttons, alerts and dialogs of the page of cases.

import { errorMessage } from "../../shared/api.js";
import { showDialog } from "../../shared/dialog.js";
import { make, uniqueId } from "../../shared/dom.js";

/** An element that shows an error where it happened. @param {unknown} error */
export const problem = (error) => make("p", { class: "dm-alert", role: "alert" }, errorMessage(error));

/** @param {string} name @param {() => unknown} onclick @param {Record<string, unknown>} [attributes] */
export const button = (name, onclick, attributes = {}) => make("button", { type: "button", class: "dm-button dm-small", onclick, ...attributes }, name);

/** A labelled field. @param {string} name @param {HTMLElement} input */
export function field(name, input) {
  input.id ||= uniqueId("cs-field");
  input.classList.add("dm-input");
  return make("div", { class: "dm-field" }, make("label", { class: "dm-label", for: input.id }, name), input);
}

/**
 * A modal dialog. `work` runs a command: it closes the dialog, or shows why it was refused. The focus returns to where it
 * was.
 * @param {string} title
 * @param {(dialog: {close: () => void, work: (command: () => Promise<unknown>) => Promise<void>}) => {body: (Node | string)[], buttons?: Node[]}} fill
 */
export function openDialog(title, fill) {
  const titleId = uniqueId("cs-dialog");
  const trouble = make("div");
  let isRunning = false;
  const close = () => dialog.close();
  /** @param {() => Promise<unknown>} command */
  const work = async (command) => {
    if (isRunning) return; // a double click must not do something twice
    isRunning = true;
    trouble.replaceChildren();
    try {
      await command();
      close();
    } catch (error) {
      trouble.replaceChildren(problem(error));
    } finally {
      isRunning = false;
    }
  };
  const dialog = make("dialog", { class: "dm-dialog cs-dialog", "aria-labelledby": titleId });
  const { body, buttons = [] } = fill({ close, work });
  const cancel = make("button", { type: "button", class: "dm-button", onclick: close }, buttons.length ? "Cancel" : "Close");
  dialog.append(make("h2", { id: titleId }, title), ...body, trouble, make("div", { class: "dm-buttons" }, cancel, ...buttons));
  dialog.addEventListener("click", ({ target }) => target === dialog && dialog.close()); // the area around it
  showDialog(dialog, dialog.querySelector("[data-first]") ?? dialog.querySelector("input, select, button"));
  return dialog;
}
