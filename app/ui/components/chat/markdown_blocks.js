// Parses Markdown, also while it grows. The HTML is untrusted until sanitizeHtml() has read it, but raw HTML of the source
// is text in it already. Needs no page.

import { Lexer, Marked } from "../../shared/vendor/marked.esm.js";
import { footnoteExtensions } from "./footnote_syntax.js";
import { mathExtensions } from "./math_syntax.js";

/** @typedef {import("../../shared/vendor/marked.esm.js").Token} Token */

/** @type {Record<string, string>} */
const ENTITIES = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" };
/** @param {string} text */
const escapeHtml = (text) => text.replace(/[&<>"']/g, (c) => ENTITIES[c]);

// Limits for texts that make the parser very slow, such as quotes nested a thousand deep or unclosed emphasis in an
// endless paragraph. A model stuck in a loop writes them. Beyond the limits, text is shown without markup.
const MAX_INLINE_CHARACTERS = 8000;
const TOO_DEEP = /^(?:[ \t]*(?:>|(?:[-+*]|\d{1,9}[.)])(?=[ \t]))){24,}/;

/** @param {string} source */
const unlessTooDeep = (source) => (TOO_DEEP.test(source) ? undefined : false); // false: use the parser's default

const marked = new Marked({
  gfm: true,
  breaks: true,
  extensions: [...mathExtensions(escapeHtml), ...footnoteExtensions(escapeHtml)],
  tokenizer: { blockquote: unlessTooDeep, list: unlessTooDeep },
  renderer: {
    html: ({ text }) => escapeHtml(text),
    image: ({ href, text }) => `<a href="${escapeHtml(href)}">${escapeHtml(text || href)}</a>`,
    checkbox: ({ checked }) => (checked ? "☑ " : "☐ "),
    listitem(item) {
      const html = this.parser.parse(item.tokens);
      return item.task ? `<li class="task">${html}</li>\n` : `<li>${html}</li>\n`;
    },
    heading({ tokens, depth }) {
      const level = Math.min(depth + 2, 6); // h1 and h2 belong to the page
      return `<h${level}>${this.parser.parseInline(tokens)}</h${level}>`;
    },
  },
});

class BoundedLexer extends Lexer {
  /**
   * @override
   * @param {string} source
   * @param {Token[]} tokens
   */
  inlineTokens(source, tokens = []) {
    if (source.length <= MAX_INLINE_CHARACTERS) return super.inlineTokens(source, tokens);
    for (const [i, line] of source.split("\n").entries()) {
      if (i > 0) tokens.push({ type: "br", raw: "\n" });
      tokens.push({ type: "text", raw: line, text: line, escaped: false });
    }
    return tokens;
  }
}

/** The blocks of a text, each with what is in it. @param {string} text */
export const lex = (text) => new BoundedLexer(marked.defaults).lex(text);

/** The HTML of a whole text, untrusted. @param {string} text */
export const toHtml = (text) => marked.parser(lex(text));

// A link reference definition may follow the text that uses it. A footnote's text stands where it is written.
const HAS_DEFINITION = /^ {0,3}\[(?!\^)[^\]\n]+\]:/m;
// The number of a list's next item, before its full stop has arrived: so far it is a paragraph below the list.
const ITEM_NUMBER = /^ {0,3}\d{1,9}\s*$/;
const OPEN_FENCE = /^(`{3,}|~{3,})[^\n]*\n/;

/** The index of the last token up to `index` that is no empty line. @param {Token[]} tokens @param {number} index */
function lastBlock(tokens, index) {
  let last = index;
  while (last > 0 && tokens[last].type === "space") last--;
  return last;
}

/**
 * What there is to draw since the last time: text at the end of the unclosed code block, or else blocks that are final
 * and what replaces the last block. `code` is the text of that block where it is an unclosed code block, verbatim; the
 * parser normalises trailing newlines.
 * @typedef {{appended: string} | {complete: string, growing: string, code: string | null}} Drawing
 */

/** A text that grows. Only the last block is parsed again; earlier blocks are final. */
export class GrowingBlocks {
  #text = "";
  #held = ""; // a carriage return at the end, which may be half a line break
  #completeLength = 0; // length of the text before the last block
  /** @type {{raw: string, fence: string} | null} the unclosed code block at the end */
  #openCode = null;

  /** @param {string} text */
  append(text) {
    const fresh = this.#held + text;
    this.#held = fresh.endsWith("\r") ? "\r" : "";
    this.#text += fresh.slice(0, fresh.length - this.#held.length).replace(/\r\n?/g, "\n"); // as the lexer does: offsets must match
  }

  /** The HTML of the whole text, if a block that was drawn may look different now that the text has ended; else null. */
  get redrawn() {
    return HAS_DEFINITION.test(this.#text) ? toHtml(this.#text) : null;
  }

  /** @returns {Drawing} */
  draw() {
    const rest = this.#text.slice(this.#completeLength);
    const appended = this.#extendOpenCode(rest);
    return appended === null ? this.#drawBlocks(rest) : { appended };
  }

  /** @param {string} rest */
  #drawBlocks(rest) {
    const tokens = lex(rest);
    let last = lastBlock(tokens, tokens.length - 1);
    const before = lastBlock(tokens, last - 1);
    if (before >= 0 && tokens[before].type === "list" && ITEM_NUMBER.test(tokens[last].raw)) last = before;
    else if (before >= 0 && last >= 0 && tokens[last].mayChange) last = before; // and become a part of the one before
    const complete = tokens.slice(0, Math.max(last, 0));
    this.#completeLength += complete.reduce((length, token) => length + token.raw.length, 0);
    const growing = tokens.slice(Math.max(last, 0));
    const code = this.#findOpenCode(growing[0]);
    return { complete: marked.parser(complete), growing: marked.parser(growing), code };
  }

  /** The text of the last block, if it is a code block that is not closed. @param {Token | undefined} block */
  #findOpenCode(block) {
    this.#openCode = null;
    const fence = block?.type === "code" ? OPEN_FENCE.exec(block.raw) : null;
    if (!block || !fence) return null;
    const raw = this.#text.slice(this.#completeLength);
    const code = raw.slice(fence[0].length);
    // block.text excludes the closing fence; without a closing fence it lacks one newline at most.
    if (code.length - (block.text ?? "").length >= fence[1].length) return null;
    this.#openCode = { raw, fence: fence[1][0] };
    return code;
  }

  /** Fast path: inside an unclosed code block, new text is appended verbatim. Null: not so. @param {string} rest */
  #extendOpenCode(rest) {
    const open = this.#openCode;
    if (!open || !rest.startsWith(open.raw)) return null;
    const fresh = rest.slice(open.raw.length);
    // A line that contains the fence's character may close the block: leave that to the lexer.
    const lineStart = open.raw.lastIndexOf("\n") + 1;
    if ((open.raw.slice(lineStart) + fresh).includes(open.fence)) return null;
    open.raw = rest;
    return fresh;
  }
}
