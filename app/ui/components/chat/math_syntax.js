// Mathematics in Markdown, as extensions of the parser: $$..$$ and \[..\] on lines of their own or in a line, \(..\) and $..$.
// A formula is handed on as it was written, delimiters included; math.js typesets it. Needs no page.

/** @typedef {import("../../shared/vendor/marked.esm.js").Token} Token */

const BLOCK = /^ {0,3}(\$\$|\\\[)/;
const NEXT_BLOCK = /\n(?: {0,3}(\$\$|\\\[)|[ \t]*\n)/; // in this paragraph
const BLANK_LINE = /\n[ \t]*\n/;
const MAX_CHARACTERS = 4000; // of a formula; what is longer is text
const REST_OF_LINE = /^[ \t]*(?:\n+|$)/;
/** @type {Record<string, string>} */
const CLOSING = { $$: "$$", "\\[": "\\]", "\\(": "\\)" };
const OPENING = /^(?:\$\$|\\\[|\\\()/;
// As pandoc has it: no space inside the dollars, no digit or letter after the last, and code is never part of a formula.
const DOLLARS = /^\$(?![\s$])((?:\\[^\n]|[^\\$\n`])*?[^\s\\$`]|\\[^\n])\$(?![\w$])/;
const BEFORE_DOLLAR = /[\w\\$]/;
const LOOKS_LIKE_TEX = /[\\^_={}]/;

/** The formula without its delimiters. @param {string} source */
export function texOf(source) {
  const text = source.trim();
  const length = OPENING.test(text) ? 2 : 1;
  return text.slice(length, -length).trim();
}

/** Whether a formula as it was written stands on lines of its own. @param {string} source */
export const isDisplayed = (source) => /^\s*(?:\$\$|\\\[)/.test(source);

/**
 * Whether what stands between two dollars is prose with prices, such as "$5 to 10$" or "$HOME or the$".
 * @param {string} text
 */
function isProse(text) {
  const words = text.replace(/\\[a-zA-Z]+\s*(?:\{[^{}]*\})?/g, " ").replace(/[_^]\{[^{}]*\}/g, " ");
  return (/^\d/.test(text) ? /\s[a-zA-Z]{2,}/ : /(?:^|\s)[a-zA-Z]{4,}(?:\s|$)/).test(words);
}

/** The end of a formula that begins with a delimiter of two characters; -1: it isn't closed. @param {string} source */
function endOf(source) {
  const closing = CLOSING[source.slice(0, 2)];
  const end = source.slice(0, MAX_CHARACTERS).indexOf(closing, 2);
  return end === -1 || source.slice(2, end).trim() === "" ? -1 : end + 2;
}

/**
 * A formula on lines of its own. It ends before an empty line at the latest; so far it is shown as it is written.
 * `mayChange`: what follows may make something else of it.
 * @param {string} source
 */
export function tokenizeMathBlock(source) {
  const opening = BLOCK.exec(source);
  if (!opening) return undefined;
  const near = source.slice(0, MAX_CHARACTERS);
  const blank = BLANK_LINE.exec(near);
  const paragraph = blank ? near.slice(0, blank.index) : near;
  const indent = opening[0].length - 2;
  const end = endOf(paragraph.slice(indent));
  if (end === -1) {
    if (!blank && near !== source) {
      const raw = near.slice(0, near.lastIndexOf("\n") + 1) || near; // shown as it is written, so that it is read once
      return { type: "mathBlock", raw, source: raw, isOpen: true, mayChange: false };
    }
    if (blank || !LOOKS_LIKE_TEX.test(paragraph.slice(indent + 2))) return undefined;
    return { type: "mathBlock", raw: source, source, isOpen: true, mayChange: true };
  }
  const rest = REST_OF_LINE.exec(source.slice(indent + end));
  if (!rest) return undefined;
  const raw = source.slice(0, indent + end + rest[0].length);
  return { type: "mathBlock", raw, source: raw.trim(), isOpen: false, mayChange: !rest[0].includes("\n") };
}

/**
 * A formula in a line.
 * @param {string} source @param {string} before  the character before it, or nothing
 */
export function tokenizeMath(source, before) {
  if (OPENING.test(source)) {
    const end = endOf(source);
    if (end !== -1) return { type: "math", raw: source.slice(0, end), source: source.slice(0, end), isOpen: false };
    const raw = /^[^\n]*/.exec(source)?.[0] ?? "";
    return LOOKS_LIKE_TEX.test(raw.slice(2)) ? { type: "math", raw, source: raw, isOpen: true } : undefined;
  }
  const found = BEFORE_DOLLAR.test(before) ? null : DOLLARS.exec(source);
  if (!found || isProse(found[1])) return undefined;
  return { type: "math", raw: found[0], source: found[0], isOpen: false };
}

/** @param {(text: string) => string} escapeHtml */
export function mathExtensions(escapeHtml) {
  /** @param {Token} token */
  const html = (token) => {
    const source = String(token.source);
    const kind = token.isOpen ? "open" : isDisplayed(source) ? "display" : "inline";
    return `<code class="math-${kind}">${escapeHtml(source.trim())}</code>`;
  };
  return [
    {
      name: "mathBlock",
      level: "block",
      /** @param {string} source */
      start: (source) => {
        const found = NEXT_BLOCK.exec(source);
        return found?.[1] ? found.index + 1 : undefined;
      },
      tokenizer: tokenizeMathBlock,
      /** @param {Token} token */
      renderer: (token) => `<p>${html(token)}</p>\n`,
    },
    {
      name: "math",
      level: "inline",
      /** @param {string} source */
      start: (source) => {
        const index = source.search(/\$|\\[([]/);
        return index === -1 ? undefined : index;
      },
      /** @param {string} source @param {Token[]} tokens */
      tokenizer: (source, tokens) => tokenizeMath(source, tokens.at(-1)?.raw.slice(-1) ?? ""),
      renderer: html,
    },
  ];
}
