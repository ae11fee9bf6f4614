// The frame's texts. Their English is their key; texts/LANGUAGE.js has the others, written from app/cases/locale.

import { languages } from "./texts/languages.js";

/** @type {Record<string, string>} */
let catalogue = {};
let chosen = "en";

/** The language of the texts. */
export const language = () => chosen;

/** The language that suits a wanted one, such as "de" for "de-AT". @param {string} wanted @param {string[]} offered */
export function bestLanguage(wanted, offered = languages) {
  const names = wanted.replaceAll("_", "-").toLowerCase();
  const exact = offered.find((each) => each.toLowerCase() === names);
  return exact ?? offered.find((each) => each.toLowerCase() === names.split("-")[0]) ?? "en";
}

/** @param {string} wanted */
export async function loadTexts(wanted) {
  chosen = bestLanguage(wanted);
  catalogue = chosen === "en" ? {} : (await import(`./texts/${chosen}.js`)).default;
}

/**
 * A text in the visitor's language, with the values in place of their {names}.
 * @param {string} text  in English; a literal, by which `make docs` finds it
 * @param {Record<string, string>} values
 */
export function t(text, values = {}) {
  return (catalogue[text] ?? text).replace(/\{(\w+)\}/g, (name, key) => values[key] ?? name);
}
