// Asks with which settings replies are to be written side by side.

import { errorMessage } from "../../shared/api.js";
import { showDialog } from "../../shared/dialog.js";
import { make, uniqueId } from "../../shared/dom.js";
import { InputError } from "../../shared/input_error.js";
import { letterOf } from "../../components/chat/difference_texts.js";
import { AS_IN_CHAT, NO_PROMPT, OWN_PROMPT, promptChoice, sameReplies, settingsOf, unchanged } from "./compare_variants.js";

/** @import { Settings } from "../../components/settings/settings.js" */
/** @import { Values } from "../../components/settings/settings_rules.js" */
/** @import { Column } from "./compare_variants.js" */

const MIN_COLUMNS = 2;
const MAX_COLUMNS = 4;
const FIRST_CHANGE = "1.2"; // the temperature of the second column, so that there is something to compare

/** @type {Column[]} as the last dialog was left */
let remembered = [unchanged(), { ...unchanged(), temperature: FIRST_CHANGE }];

/**
 * Opens the dialog. Resolves once it is closed.
 * @param {Settings} settings  of the chat
 * @param {(variants: Values[]) => Promise<void>} start  rejects with what is to be mended
 */
export function chooseVariants(settings, start) {
  const columns = remembered.map((column) => ({ ...column }));
  const title = uniqueId("dm-compare-title");
  const list = make("div", { class: "dm-compare-columns" });
  const alert = make("p", { class: "dm-alert", role: "alert" });
  const add = make("button", { type: "button", class: "dm-button", onclick: () => change(() => columns.push(unchanged()), columns.length) }, "Add a column");
  const go = make("button", { type: "submit", class: "dm-button dm-primary" }, "Compare");
  const form = make(
    "form",
    {},
    make("h2", { id: title }, "Compare replies"),
    make("p", {}, "The same message, answered side by side. What you leave empty is as in this chat. Each reply counts as one message."),
    list,
    alert,
    make("div", { class: "dm-buttons" }, make("button", { type: "button", class: "dm-button", onclick: () => dialog.close() }, "Cancel"), add, go),
  );
  const dialog = make("dialog", { class: "dm-dialog dm-compare", "aria-labelledby": title }, form);

  /** @param {() => unknown} action @param {number} focused  the column to go to */
  function change(action, focused) {
    action();
    draw();
    list.children[Math.min(focused, columns.length - 1)]?.querySelector("select")?.focus();
  }

  function draw() {
    /** @param {number} index */
    const remove = (index) => (columns.length > MIN_COLUMNS ? () => change(() => columns.splice(index, 1), index) : null);
    list.replaceChildren(...columns.map((column, index) => fieldset(column, letterOf(index), settings, remove(index))));
    add.disabled = columns.length >= MAX_COLUMNS;
  }

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (go.disabled) return;
    go.disabled = true;
    alert.textContent = "";
    try {
      const variants = columns.map((column) => settingsOf(settings.value, column, settings.rules, settings.choices.presets));
      const same = sameReplies(variants);
      if (same) throw new InputError(`${same.join(" and ")} would be the same reply: change a setting or the seed of one.`);
      await start(variants);
      remembered = columns;
      dialog.close();
    } catch (error) {
      alert.textContent = errorMessage(error);
    } finally {
      go.disabled = false;
    }
  });
  draw();
  return showDialog(dialog);
}

/** @param {Column} column @param {string} letter @param {Settings} settings @param {(() => void) | null} remove */
function fieldset(column, letter, { value, choices }, remove) {
  const { presets, prompts, defaults } = choices;
  const own = make("textarea", { class: "dm-input", rows: "3", dir: "auto", "aria-label": `System prompt text of ${letter}`, hidden: column.prompt !== OWN_PROMPT });
  own.value = column.text;
  own.addEventListener("input", () => (column.text = own.value));
  /** @param {keyof Column} name @param {[string, string][]} options */
  const choice = (name, options) => {
    const select = make("select", { class: "dm-input" }, ...options.map(([text, each]) => make("option", { value: each, selected: column[name] === each }, text)));
    select.addEventListener("change", () => {
      column[name] = select.value;
      own.hidden = column.prompt !== OWN_PROMPT;
    });
    return select;
  };
  /** @param {"temperature" | "top_p" | "seed"} name @param {string} step @param {string} placeholder */
  const number = (name, step, placeholder) => {
    const input = make("input", { class: "dm-input", type: "number", step, min: "0", placeholder, inputmode: name === "seed" ? "numeric" : "decimal" });
    input.value = column[name];
    input.addEventListener("input", () => (column[name] = input.value));
    return input;
  };
  /** @param {string} text @param {HTMLElement} control */
  const field = (text, control) => {
    control.id = uniqueId("dm-compare-field");
    return make("div", { class: "dm-compare-field" }, make("label", { class: "dm-label", for: control.id }, text), control);
  };
  /** @param {string} name */
  const now = (name) => String(value[name] ?? defaults[name] ?? "");
  /** @type {[string, string][]} */
  const promptChoices = [["As in this chat", AS_IN_CHAT], ["None", NO_PROMPT], ...prompts.map(({ title, name }) => /** @type {[string, string]} */ ([title, promptChoice(name)])), ["Own text", OWN_PROMPT]];
  return make(
    "fieldset",
    { class: "dm-compare-column" },
    make("legend", {}, letter),
    field("Preset", choice("preset", [["As in this chat", AS_IN_CHAT], ...presets.map(({ title, name }) => /** @type {[string, string]} */ ([title, name]))])),
    make(
      "div",
      { class: "dm-compare-numbers" },
      field("Temperature", number("temperature", "any", now("temperature"))),
      field("Top-p", number("top_p", "any", now("top_p"))),
      field("Seed", number("seed", "1", value.seed === null ? "random" : now("seed"))),
    ),
    field("System prompt", choice("prompt", promptChoices)),
    own,
    remove && make("button", { type: "button", class: "dm-action", "aria-label": `Remove column ${letter}`, onclick: remove }, "Remove"),
  );
}
