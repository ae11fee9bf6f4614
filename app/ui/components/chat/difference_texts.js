// What replies were written with, in words: headings of compared replies, and what is said beside a version's arrows.

import { labelOfSetting } from "../../shared/labels.js";

/** @import { VersionView } from "../../shared/api_types.js" */
/** @typedef {import("./types.js").Message} Message */

const MAX_CHARACTERS = 60; // of a text that is a part of a heading
const UNSAID = new Set(["preset", "seed", "system_prompt_variables"]); // a preset is its values, the seed stands below

/** What a compared reply is called. @param {number} index */
export const letterOf = (index) => String.fromCharCode(65 + index);

/** @param {unknown} value */
function valueText(value) {
  if (value === null || value === undefined || value === "") return "default";
  if (value === true) return "on";
  if (value === false) return "off";
  if (Array.isArray(value)) return value.length === 0 ? "none" : value.join(", ");
  if (typeof value === "number") return String(value);
  const text = String(value).replace(/\s+/g, " ").trim();
  return `“${text.length > MAX_CHARACTERS ? `${text.slice(0, MAX_CHARACTERS - 1)}…` : text}”`;
}

/** @param {string} name @param {unknown} value */
function settingText(name, value) {
  if (name.startsWith("system_prompt") && !value) return "";
  return `${labelOfSetting(name)} ${valueText(value)}`;
}

/**
 * A heading for each of several replies: the settings in which they are not all alike.
 * @param {VersionView[]} versions
 */
export function headingsOf(versions) {
  /** @type {Record<string, unknown>[]} */
  const all = versions.map(({ settings, message }) => ({ ...settings, model: message.model }));
  const names = Object.keys(all[0] ?? {}).filter(
    (name) => !UNSAID.has(name) && all.some((each) => JSON.stringify(each[name] ?? null) !== JSON.stringify(all[0][name] ?? null)),
  );
  return all.map((each) => {
    const texts = names.map((name) => settingText(name, each[name])).filter((text) => text !== "");
    if (texts.length > 0) return texts.join(" · ");
    return names.length > 0 ? "No system prompt" : "Same settings, another seed";
  });
}

/** What is said beside the arrows between versions; empty if there is only one. @param {Message} message */
export function versionNote({ siblings = [], differences = [], edited, id }) {
  const parts = edited ? ["Edited by you"] : [];
  if (siblings.length > 1) {
    const isFirst = siblings[0] === id;
    const neighbour = `version ${isFirst ? 2 : siblings.indexOf(id)}`;
    const said = differences.map(({ name, value, other }) => `${labelOfSetting(name)} ${valueText(value)}, not ${valueText(other)}`);
    parts.push(said.length > 0 ? `${said.join("; ")} as in ${neighbour}` : `Same settings as ${neighbour}`);
  }
  return parts.join(" · ");
}
