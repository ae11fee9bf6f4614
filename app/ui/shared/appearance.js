// The theme and the text size. This browser keeps them, because they suit a screen and not an account, and because the
// first frame and the sign-in page must have them already. appearance_now.js applies them.

import { showDialog } from "./dialog.js";
import { make, storage } from "./dom.js";

const THEMES = /** @type {const} */ ([
  ["system", "System"],
  ["light", "Light"],
  ["dark", "Dark"],
]);
const SIZES = /** @type {const} */ ([
  ["small", "Small"],
  ["normal", "Normal"],
  ["large", "Large"],
  ["larger", "Larger"],
]);

/** @param {"dm-theme" | "dm-text-size"} key @param {string} value */
function keep(key, value) {
  storage.write("localStorage", key, value === "system" || value === "normal" ? null : value);
  dispatchEvent(new Event("dm-appearance"));
}

export const currentTheme = () => storage.read("localStorage", "dm-theme") ?? "system";
export const currentSize = () => storage.read("localStorage", "dm-text-size") ?? "normal";

/** @param {string} theme */
export const chooseTheme = (theme) => keep("dm-theme", theme);
/** @param {string} size */
export const chooseSize = (size) => keep("dm-text-size", size);

/**
 * @param {string} legend
 * @param {string} name
 * @param {readonly (readonly [string, string])[]} choices
 * @param {string} current
 * @param {(value: string) => void} choose
 */
function choice(legend, name, choices, current, choose) {
  const options = choices.map(([value, label]) =>
    make(
      "label",
      { class: "dm-choice" },
      make("input", { type: "radio", name, value, checked: value === current, onchange: () => choose(value) }),
      label,
    ),
  );
  return make("fieldset", { class: "dm-choices" }, make("legend", {}, legend), ...options);
}

/** Opens the dialog in which the theme and the text size are chosen. What is chosen applies at once. */
export function openAppearance() {
  const done = make("button", { type: "submit", class: "dm-button dm-primary" }, "Done");
  const dialog = make(
    "dialog",
    { class: "dm-dialog dm-appearance", "aria-labelledby": "dm-appearance-title" },
    make(
      "form",
      { method: "dialog" },
      make("h2", { id: "dm-appearance-title" }, "Appearance"),
      choice("Theme", "dm-theme", THEMES, currentTheme(), chooseTheme),
      choice("Text size", "dm-text-size", SIZES, currentSize(), chooseSize),
      make("p", { class: "dm-hint" }, "This browser keeps both, for all of Deskmate's pages."),
      make("div", { class: "dm-buttons" }, done),
    ),
  );
  showDialog(dialog, dialog.querySelector("input:checked"));
}
