// The text of a draft: which sources it cites, and the same text for a customer, who has no use for their numbers.

/** @import { Citation } from "../../components/chat/types.js" */

const FENCE = /^ *(`{3,})[^`]*$/;
// As app/domain/citations.py reads them: an escaped character, a span of code, or a number in brackets.
const PARTS = /\\.|(`+)(?:(?!`).*?(?<!`)\1(?!`))?|([ \t]*)\[([1-9][0-9]{0,2})\]/g;

/**
 * Replaces the numbers in brackets that are not in code.
 * @param {string} text
 * @param {(number: number, space: string) => string | null} replace  null: it stays
 */
function replaceNumbers(text, replace) {
  let fence = "";
  const lines = text.split("\n").map((line) => {
    const bare = line.trim();
    if (fence !== "") {
      if (/^`+$/.test(bare) && bare.length >= fence.length) fence = "";
      return line;
    }
    const opened = FENCE.exec(line);
    if (opened) {
      fence = /** @type {string} */ (opened[1]);
      return line;
    }
    return line.replace(PARTS, (whole, _ticks, space, number) => (number === undefined ? whole : (replace(Number(number), space) ?? whole)));
  });
  return lines.join("\n");
}

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
  const lines = citedIn(text, sources).map(({ number, title, heading }) => `[${number}] ${[title, heading].filter(Boolean).join(": ")}`);
  return [text.trim(), lines.join("\n")].filter(Boolean).join("\n\n");
}
