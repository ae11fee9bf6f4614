// What Markdown makes of each character of a reply, for the lens: it shows the text as the model wrote it, so the marks
// stay, but they step back and what they mean is seen. Needs no page.

import { lex } from "./markdown_blocks.js";

/** @typedef {import("../../shared/vendor/marked.esm.js").Token} Token */

export const MARK = 1; // a character that Markdown takes away, such as an asterisk
const STYLES = { strong: 2, em: 4, code: 8, heading: 16, del: 32 };

/** @type {[bit: number, name: string][]} */
const NAMES = [[MARK, "mark"], ...Object.entries(STYLES).map(([name, bit]) => /** @type {[number, string]} */ ([bit, name]))];

/** @type {Record<string, number>} */
const OF_TYPE = { strong: STYLES.strong, em: STYLES.em, codespan: STYLES.code, code: STYLES.code, heading: STYLES.heading, del: STYLES.del, math: STYLES.code, mathBlock: STYLES.code };
const PLAIN = new Set(["text", "html", "space", "br"]); // where they have no tokens in them
const FENCE = /^ {0,3}(?:```|~~~)[^\n]*\n/;
const MATH = /^\s*(\$\$|\\\[|\\\(|\$)[^]*?(\$\$|\\\]|\\\)|\$)\s*$/;

/** The characters of a text that a token was made of, as positions. @typedef {number[]} Places */

/**
 * Bits for each character of a Markdown text: MARK, and its styles.
 * @param {string} text
 * @returns {Uint8Array}
 */
export function markupOf(text) {
  const bits = new Uint8Array(text.length);
  const tokens = lex(text);
  let at = 0;
  for (const token of tokens) {
    if (!text.startsWith(token.raw, at)) return bits; // the parser has changed line ends or tabs: the rest stays plain
    paint(token, range(at, token.raw.length), bits, 0);
    at += token.raw.length;
  }
  return bits;
}

/** The class names of a character's bits. @param {number} bits */
export const markupClasses = (bits) => NAMES.filter(([bit]) => bits & bit).map(([, name]) => `dm-lens-${name}`).join(" ");

/** @param {number} start @param {number} length @returns {Places} */
const range = (start, length) => Array.from({ length }, (_, index) => start + index);

/**
 * @param {Token} token
 * @param {Places} places  of the characters of `token.raw`
 * @param {Uint8Array} bits
 * @param {number} styles  of what it stands in
 */
function paint(token, places, bits, styles) {
  const own = styles | (OF_TYPE[token.type] ?? 0);
  const parts = partsOf(token);
  if (parts === null) {
    const [start, end] = shownOf(token);
    for (const [index, place] of places.entries()) bits[place] = own | (index < start || index >= end ? MARK : 0);
    return;
  }
  for (const place of places) bits[place] = own | MARK;
  let from = 0;
  for (const part of parts) {
    const found = align(part.raw, token.raw, from);
    if (found === null) {
      for (const place of places) bits[place] = own; // unknown which characters are marks
      return;
    }
    paint(part, found.map((index) => places[index]), bits, own);
    from = (found.at(-1) ?? from - 1) + 1;
  }
}

/** What stands in a token; null: text of its own. @param {any} token @returns {Token[] | null} */
function partsOf(token) {
  if (token.type === "table") return [...token.header, ...token.rows.flat()].flatMap(({ tokens }) => tokens);
  if (token.type === "list") return token.items;
  return token.tokens?.length > 0 ? token.tokens : null;
}

/**
 * From where to where the source of a token without others in it is shown; what is around that are marks. All of it, if
 * that is unknown.
 * @param {Token} token @returns {[start: number, end: number]}
 */
function shownOf({ type, raw, text = "", label }) {
  const all = /** @type {[number, number]} */ ([0, raw.length]);
  if (PLAIN.has(type)) return all;
  if (type === "escape") return [1, raw.length];
  if (type === "math" || type === "mathBlock") {
    const found = MATH.exec(raw);
    return found ? [raw.indexOf(found[1]) + found[1].length, raw.lastIndexOf(found[2])] : all;
  }
  const shown = typeof label === "string" ? label : text;
  if (shown === "") return [raw.length, raw.length];
  const start = raw.indexOf(shown, FENCE.test(raw) ? raw.indexOf("\n") : 0);
  return start === -1 ? all : [start, start + shown.length];
}

/**
 * Where the characters of a part stand in the whole, from an index on, line by line: the whole may have marks before each
 * line, as in quotes and lists. Null if they do not stand there.
 * @param {string} part @param {string} whole @param {number} from
 * @returns {number[] | null}
 */
function align(part, whole, from) {
  /** @type {number[]} */
  const places = [];
  let at = from;
  for (const line of part.split(/(?<=\n)/)) {
    const start = whole.indexOf(line, at);
    if (start === -1) return null;
    for (let index = 0; index < line.length; index++) places.push(start + index);
    at = start + line.length;
  }
  return places;
}
