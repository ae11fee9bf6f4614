// Colours code off the main thread. Each language's grammar is loaded when it is first used. The parts are sent as JSON: a
// page receives and compares strings in a fraction of the time that the arrays would take, and reads those that differ.

import hljs from "../../shared/vendor/highlight/core.min.js";
import { divide, grammarOf, PART_CHARACTERS, readPieces } from "./code_tokens.js";

/** @typedef {{id: number, text: string, language: string}} Task */

addEventListener("message", async ({ data }) => {
  const { id, text, language } = /** @type {Task} */ (data);
  try {
    const parts = divide(readPieces(await highlight(text, language)), PART_CHARACTERS);
    postMessage({ id, parts: parts.map((part) => JSON.stringify(part)) });
  } catch {
    postMessage({ id, parts: null });
  }
});

/** @param {string} text @param {string} language */
async function highlight(text, language) {
  const grammar = grammarOf(language) ?? "";
  if (!hljs.getLanguage(grammar)) {
    const module = await import(`../../shared/vendor/highlight/languages/${grammar}.min.js`);
    hljs.registerLanguage(grammar, module.default);
  }
  return hljs.highlight(text, { language: grammar, ignoreIllegals: true }).value;
}
