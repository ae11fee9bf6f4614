// A reply as Markdown whose citations are footnotes, as the export writes them (app/transfer/markdown.py).

import { replaceNumbers } from "./citation_text.js";
import { placeOf } from "./citations.js";

/** @import { Citation } from "./types.js" */

const MARKUP = /[\\`*_\]<>&#~|$!]/g; // no opening bracket: "\[" begins mathematics

/**
 * The text with its citations as references to footnotes, and these below it.
 * @param {string} text
 * @param {Citation[]} citations
 */
export function withFootnotes(text, citations) {
  if (citations.length === 0) return text;
  const cited = new Set(citations.map(({ number }) => number));
  const notes = citations.map((citation) => `[^${citation.number}]: ${place(citation)}: ${literal(citation.withheld || citation.text)}`);
  return `${replaceNumbers(text, (number, space) => (cited.has(number) ? `${space}[^${number}]` : null))}\n\n${notes.join("\n\n")}\n`;
}

/** @param {Citation} citation */
function place(citation) {
  const where = literal(placeOf(citation));
  return citation.version === undefined ? where : `${where}, version ${citation.version}`;
}

/** The text as Markdown that shows it as it is, on one line. @param {string} text */
const literal = (text) => text.replace(MARKUP, "\\$&").trim().replace(/\s+/g, " ");
