// A reply as Markdown whose citations are footnotes, as the export writes them (app/transfer/markdown.py).

import { headingBelowTitle } from "./citations.js";

/** @import { Citation } from "./types.js" */

// As in app/domain/citations.py: escaped characters and code hold no citations.
const FENCE = /^( *)(`{3,})[^`]*$/;
const PARTS = /\\.|(`+)(?:(?!`).*?(?<!`)\1(?!`))?|\[([1-9]\d{0,2})\]/g;
const MARKUP = /[\\`*_[\]<>&#~|$!]/g;

/**
 * The text with its citations as references to footnotes, and these below it.
 * @param {string} text
 * @param {Citation[]} citations
 */
export function withFootnotes(text, citations) {
  if (citations.length === 0) return text;
  const cited = new Set(citations.map(({ number }) => number));
  const notes = citations.map((citation) => `[^${citation.number}]: ${place(citation)}: ${literal(citation.text)}`);
  return `${replaceOutsideCode(text, (number) => (cited.has(number) ? `[^${number}]` : null))}\n\n${notes.join("\n\n")}\n`;
}

/** @param {Citation} citation */
function place(citation) {
  const heading = headingBelowTitle(citation);
  const where = heading === "" ? citation.title : `${citation.title} > ${heading}`;
  return citation.version === undefined ? literal(where) : `${literal(where)}, version ${citation.version}`;
}

/** The text as Markdown that shows it as it is, on one line. @param {string} text */
const literal = (text) => text.replace(MARKUP, "\\$&").trim().replace(/\s+/g, " ");

/** @param {string} text @param {(number: number) => string | null} replace */
function replaceOutsideCode(text, replace) {
  /** @type {string | null} */
  let fence = null;
  const lines = text.split("\n").map((line) => {
    const bare = line.trim();
    const opened = FENCE.exec(line);
    if (fence !== null) {
      if (/^`+$/.test(bare) && bare.length >= fence.length) fence = null;
    } else if (opened) fence = opened[2] ?? null;
    else return line.replace(PARTS, (part, _ticks, number) => (number && replace(Number(number))) || part);
    return line;
  });
  return lines.join("\n");
}
