// Colours code off the main thread. Each language's grammar is loaded when it is first used.

import hljs from "../../shared/vendor/highlight/core.min.js";
import { grammarOf, readPieces } from "./code_tokens.js";

/** @typedef {{id: number, text: string, language: string}} Task */

addEventListener("message", async ({ data }) => {
  const { id, text, language } = /** @type {Task} */ (data);
  try {
    postMessage({ id, pieces: readPieces(await highlight(text, language)) });
  } catch {
    postMessage({ id, pieces: null });
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
