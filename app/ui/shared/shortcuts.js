// A page's keys: one table binds them and lists them in the dialog of shortcuts.

import { showDialog } from "./dialog.js";
import { make, storage } from "./dom.js";

/**
 * A key and what it does. `Mod` is Ctrl, or Cmd on a Mac. A key without Mod waits while a text is typed, and can be
 * turned off with all others of its kind (WCAG 2.1.4), unless it is Escape.
 * @typedef {object} Shortcut
 * @property {string} key  as KeyboardEvent.key has it, in lower case; "mod+k" with a modifier
 * @property {string} name
 * @property {() => unknown} run  false: there was nothing to do, and the key does what it always does
 * @property {(event: KeyboardEvent) => boolean} [when]  whether it applies; otherwise the key does what it always does
 * @property {boolean} [repeats]  it does so again while the key is held
 */

const OFF_KEY = "dm-shortcuts";
const IS_MAC = /mac|iphone|ipad/i.test(globalThis.navigator?.platform ?? "");
const FIELDS = "textarea, select, [contenteditable], [role='textbox'], [role='combobox'], [role='slider'], input:not([type='checkbox'], [type='radio'], [type='button'])";

export const areOn = () => storage.read("localStorage", OFF_KEY) !== "off";

/** @param {Shortcut} shortcut */
const isSingle = ({ key }) => !key.startsWith("mod+") && key !== "escape";

/** The pressed key as the table names it. @param {KeyboardEvent} event */
function keyOf(event) {
  const letter = /^Key([A-Z])$/.exec(event.code)?.[1];
  const isForeign = event.key.length === 1 && event.key.charCodeAt(0) > 127; // such as of a Cyrillic layout
  const key = (isForeign && letter ? letter : event.key).toLowerCase();
  return (IS_MAC ? event.metaKey : event.ctrlKey) ? `mod+${key}` : key;
}

/**
 * The shortcut that this event is, or none.
 * @param {Shortcut[]} shortcuts
 * @param {KeyboardEvent} event
 * @param {{on: boolean}} options  whether those of a single key are on
 */
export function shortcutFor(shortcuts, event, { on }) {
  // An AltGr key is Ctrl and Alt at once. An IME's keys are its own.
  if (event.isComposing || event.keyCode === 229 || event.defaultPrevented || event.altKey) return undefined;
  if (IS_MAC ? event.ctrlKey : event.metaKey) return undefined;
  const key = keyOf(event);
  if (event.shiftKey && /^(mod\+)?[a-z]$/.test(key)) return undefined; // the browser's: Ctrl+Shift+K is Firefox's console
  const { target } = event;
  const element = target instanceof Element ? target : null;
  if (element?.closest("dialog, [popover]") || document.querySelector("dialog[open]")) return undefined;
  if (key === "escape" && document.querySelector(":popover-open")) return undefined; // it closes that
  const shortcut = shortcuts.find((each) => each.key === key && (each.when?.(event) ?? true));
  if (shortcut === undefined || (event.repeat && !shortcut.repeats)) return undefined;
  if (isSingle(shortcut) && (!on || element?.closest(FIELDS))) return undefined;
  return shortcut;
}

/** Binds the keys of the table. @param {Shortcut[]} shortcuts */
export function bindShortcuts(shortcuts) {
  document.addEventListener("keydown", (event) => {
    const shortcut = shortcutFor(shortcuts, event, { on: areOn() });
    if (shortcut === undefined) return;
    const isDone = shortcut.run() !== false;
    if (isDone && shortcut.key !== "escape") event.preventDefault();
  });
}

/** The keys of a shortcut as they are printed on the keyboard. @param {string} key */
export function printed(key) {
  const name = key.replace("mod+", "");
  const cap = name === "escape" ? "Esc" : `${name.slice(0, 1).toUpperCase()}${name.slice(1)}`;
  if (!key.startsWith("mod+")) return cap;
  return IS_MAC ? `⌘${cap}` : `Ctrl+${cap}`;
}

/**
 * Opens the dialog that lists the shortcuts.
 * @param {Pick<Shortcut, "key" | "name">[]} shortcuts  also those that the page binds elsewhere
 */
export function listShortcuts(shortcuts) {
  const rows = shortcuts.map((shortcut) =>
    make("div", { class: "dm-shortcut" }, make("dt", {}, shortcut.name), make("dd", {}, make("kbd", {}, printed(shortcut.key)))),
  );
  const box = /** @type {HTMLInputElement} */ (make("input", { type: "checkbox", checked: areOn() }));
  box.addEventListener("change", () => storage.write("localStorage", OFF_KEY, box.checked ? null : "off"));
  const done = make("button", { type: "submit", class: "dm-button dm-primary" }, "Done");
  const dialog = make(
    "dialog",
    { class: "dm-dialog dm-shortcuts", "aria-labelledby": "dm-shortcuts-title" },
    make(
      "form",
      { method: "dialog" },
      make("h2", { id: "dm-shortcuts-title" }, "Keyboard shortcuts"),
      make("dl", {}, ...rows),
      make("label", { class: "dm-choice" }, box, "Shortcuts of a single key"),
      make("p", { class: "dm-hint" }, "They wait while you type in a field. Turn them off if you dictate, or press keys by accident."),
      make("div", { class: "dm-buttons" }, done),
    ),
  );
  showDialog(dialog, done);
}
