// The text of a draft: which sources it cites, and the same text for a customer, who has no use for their numbers.

import { replaceNumbers } from "../../components/chat/citation_text.js";
import { placeOf } from "../../components/chat/citations.js";

/** @import { Citation } from "../../components/chat/types.js" */

/** What drafts of a chat rest on. @param {string[]} names  of the collections that its settings have */
export const draftSources = (names) =>
  names.length === 0
    ? "No sources are ticked in this chat’s settings: the draft rests on the message and the notes only."
    : `Sources: ${names.join(", ")}. The chat’s settings have them, the prompt and the sampling.`;

/**
 * Those of the sources that a text cites.
 * @param {string} text
 * @param {Citation[]} sources
 */
export function citedIn(text, sources) {
  /** @type {Set<number>} */
  const numbers = new Set();
  replaceNumbers(text, (number) => {
    numbers.add(number);
    return null;
  });
  return sources.filter(({ number }) => numbers.has(number));
}

/**
 * The text for a customer: without the numbers of its sources, and the space before them.
 * @param {string} text
 * @param {Citation[]} sources
 */
export function withoutCitations(text, sources) {
  const known = new Set(sources.map(({ number }) => number));
  return replaceNumbers(text, (number) => (known.has(number) ? "" : null)).trim();
}

/**
 * The text with a list of the sources that it cites, for a colleague.
 * @param {string} text
 * @param {Citation[]} sources
 */
export function withSourceList(text, sources) {
  const lines = citedIn(text, sources).map((source) => `[${source.number}] ${placeOf(source)}`);
  return [text.trim(), lines.join("\n")].filter(Boolean).join("\n\n");
}
