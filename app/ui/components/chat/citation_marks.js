// The numbers of sources in a reply's text, such as [1], as buttons.

import { make } from "../../shared/dom.js";

/** @import { Citation } from "./types.js" */

const NUMBER = /\[([1-9]\d{0,2})\]/;
const NO_CITATIONS_IN = "pre, code, a, button, .dm-math";

/**
 * The parts of a text: its words, and the numbers in brackets that are cited.
 * @param {string} text
 * @param {(number: number) => boolean} isCited
 * @returns {(string | number)[]}
 */
export function splitCitations(text, isCited) {
  /** @type {(string | number)[]} */
  const parts = [];
  let words = "";
  for (const [index, part] of text.split(NUMBER).entries()) {
    const isNumber = index % 2 === 1; // split() puts what the group matched between the other parts
    if (isNumber && isCited(Number(part))) {
      if (words !== "") parts.push(words);
      parts.push(Number(part));
      words = "";
    } else words += isNumber ? `[${part}]` : part;
  }
  if (words !== "") parts.push(words);
  return parts;
}

/**
 * Turns the numbers of citations below `root` into buttons, outside code and links. What is a button already stays.
 * @param {ParentNode & Node} root
 * @param {Citation[]} citations
 */
export function markCitations(root, citations) {
  if (citations.length === 0) return;
  const byNumber = new Map(citations.map((citation) => [citation.number, citation]));
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  /** @type {Text[]} */
  const texts = [];
  while (walker.nextNode()) {
    const text = /** @type {Text} */ (walker.currentNode);
    if (NUMBER.test(text.data) && !text.parentElement?.closest(NO_CITATIONS_IN)) texts.push(text);
  }
  for (const text of texts) {
    const parts = splitCitations(text.data, (number) => byNumber.has(number));
    if (parts.every((part) => typeof part === "string")) continue;
    text.replaceWith(
      ...parts.map((part) => {
        const citation = typeof part === "number" ? byNumber.get(part) : undefined;
        return citation ? makeMark(citation) : String(part);
      }),
    );
  }
}

/** @param {Citation} citation */
function makeMark({ number, title }) {
  const label = `Source ${number}: ${title}`;
  return make("button", { type: "button", class: "dm-cite", "aria-label": label, "data-number": number }, `[${number}]`);
}
