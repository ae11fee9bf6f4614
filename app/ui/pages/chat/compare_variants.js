// The settings of replies to compare: what a column of the dialog changes in those of the chat.

import { letterOf } from "../../components/chat/difference_texts.js";
import { InputError } from "../../shared/input_error.js";
import { withLabels } from "../../shared/labels.js";

/** @import { SettingsRules, Values } from "../../components/settings/settings_rules.js" */
/** @import { PresetOptions } from "../../shared/page_options.js" */

export const AS_IN_CHAT = "";
export const NO_PROMPT = "none";
export const OWN_PROMPT = "own";
const NAMED = "prompt:";

/** The value of a system prompt's choice. @param {string} name */
export const promptChoice = (name) => `${NAMED}${name}`;

/**
 * What a column changes; an empty text leaves the chat's setting.
 * @typedef {{preset: string, temperature: string, top_p: string, seed: string, prompt: string, text: string}} Column
 */

/** @returns {Column} */
export const unchanged = () => ({ preset: AS_IN_CHAT, temperature: "", top_p: "", seed: "", prompt: AS_IN_CHAT, text: "" });

/**
 * The settings of a column. Throws an InputError if a number is none.
 * @param {Values} chat  the settings of the chat
 * @param {Column} column
 * @param {SettingsRules} rules
 * @param {PresetOptions[]} presets
 * @returns {Values}
 */
export function settingsOf(chat, column, rules, presets) {
  let values = column.preset === AS_IN_CHAT ? chat : rules.withPreset(chat, column.preset, presets);
  for (const name of /** @type {const} */ (["temperature", "top_p", "seed"])) {
    const text = column[name].trim();
    if (text === "") continue;
    const value = Number(text);
    if (!Number.isFinite(value) || (name === "seed" && !Number.isInteger(value))) {
      throw new InputError(withLabels(`${name} must be ${name === "seed" ? "a whole number" : "a number"} (got ${text})`));
    }
    values = { ...values, [name]: value, preset: name === "seed" ? values.preset : null };
  }
  if (column.prompt === NO_PROMPT) return rules.withNamedPrompt(values, null);
  if (column.prompt === OWN_PROMPT) return rules.withOwnText(values, column.text);
  if (column.prompt.startsWith(NAMED)) return rules.withNamedPrompt(values, column.prompt.slice(NAMED.length));
  return values;
}

/**
 * The letters of the first two columns that would write the same reply; null if each may differ.
 * @param {Values[]} variants
 */
export function sameReplies(variants) {
  const written = variants.map((each) => JSON.stringify({ ...each, preset: null }));
  for (const [index, text] of written.entries()) {
    const isRepeatable = variants[index].seed !== null || variants[index].temperature === 0;
    const before = written.indexOf(text);
    if (isRepeatable && before < index) return [before, index].map(letterOf);
  }
  return null;
}
