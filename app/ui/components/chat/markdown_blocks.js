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
// What may become another block below a list: a number, which is a paragraph before its full stop has arrived, or a
// character that begins an item, a rule or emphasis.
const UNDECIDED = /^ {0,3}(?:\d{1,9}|[-+*]|([-*_])(?:[ \t]*\1){2,})\s*$/;
const MAY_CLOSE = /^ {0,3}[`~]+ *$/m; // a line that closes a code block, or its beginning
const OPEN_FENCE = /^(`{3,}|~{3,})[^\n]*\n/;

/** The index of the last token up to `index` that is no empty line. @param {Token[]} tokens @param {number} index */
function lastBlock(tokens, index) {
  let last = index;
  while (last > 0 && tokens[last].type === "space") last--;
  return last;
}

/** An item as it stands in a list with empty lines between its items: what it says is a paragraph. @param {any} item */
function loosen(item) {
  if (item.loose) return;
  item.loose = true;
  for (const token of item.tokens) if (token.type === "text") token.type = "paragraph";
  const [box, first] = item.tokens;
  if (box?.type !== "checkbox") return;
  if (first?.type === "paragraph" && first.tokens) first.tokens.unshift(item.tokens.shift());
  else item.tokens[0] = { type: "paragraph", raw: box.raw, text: box.raw, tokens: [box] };
}

/**
 * The last block, where it is a list or a table: `kept` of its items or rows are final. It is parsed again from `from`
 * on, below `head`: a table's header.
 * @typedef {{type: string, ordered: unknown, loose: boolean, head: string, from: number, kept: number}} OpenBlock
 */

/**
 * The last block, if it has final parts.
 * @param {any} token @param {number} start  of the token in the text @param {OpenBlock | null} before  as it was so far
 * @returns {OpenBlock | null}
 */
function openBlock(token, start, before) {
  const kept = before?.kept ?? 0;
  if (token?.type === "list") {
    const last = token.items.length - 1;
    const length = token.items.slice(0, last).reduce((/** @type {number} */ sum, /** @type {Token} */ { raw }) => sum + raw.length, 0);
    return { type: "list", ordered: token.ordered, loose: token.loose, head: "", from: start + length, kept: kept + last };
  }
  if (token?.type !== "table") return null;
  const lines = token.raw.trimEnd().split("\n");
  const head = `${lines[0]}\n${lines[1]}\n`;
  const last = lines.length - 3;
  if (last < 0 || last + 1 !== token.rows.length) return null;
  const length = lines.slice(0, -1).join("\n").length + 1;
  return { type: "table", ordered: false, loose: false, head, from: start + length, kept: kept + last };
}

/**
 * What there is to draw since the last time: text at the end of the unclosed code block, or else blocks that are final
 * and what replaces the last block. `code` is the text of that block where it is an unclosed code block, verbatim; the
 * parser normalises trailing newlines. The first of these blocks is the list or the table that was the last one, and
 * its first `kept` items or rows stay as they are: the HTML is without them.
 * @typedef {{appended: string} | {complete: string, growing: string, code: string | null, kept: number}} Drawing
 */

/** A text that grows. Only the last block is parsed again, of a list or table the last item or row; the rest is final. */
export class GrowingBlocks {
  #text = "";
  #held = ""; // a carriage return at the end, which may be half a line break
  #completeLength = 0; // length of the text before the last block
  /** @type {{raw: string} | null} the unclosed code block at the end */
  #openCode = null;
  /** @type {OpenBlock | null} the list or table at the end */
  #open = null;

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
    const appended = this.#openCode ? this.#extendOpenCode(this.#text.slice(this.#completeLength)) : null;
    return appended === null ? this.#drawBlocks() : { appended };
  }

  /** The last block from where it is not final, and what follows. */
  #lexRest() {
    const open = this.#open;
    if (open && open.kept > 0) {
      const tokens = lex(open.head + this.#text.slice(open.from));
      const first = /** @type {any} */ (tokens[0]);
      if (first?.type === open.type && (open.type === "table" || (first.ordered === open.ordered && (open.loose || !first.loose)))) {
        if (open.loose) for (const item of first.items) loosen(item);
        first.loose = open.loose;
        return { tokens, start: open.from - open.head.length, kept: open.kept };
      }
      this.#open = null; // all of it may look different now
    }
    return { tokens: lex(this.#text.slice(this.#completeLength)), start: this.#completeLength, kept: 0 };
  }

  #drawBlocks() {
    const { tokens, start, kept } = this.#lexRest();
    let last = lastBlock(tokens, tokens.length - 1);
    const before = lastBlock(tokens, last - 1);
    if (before >= 0 && tokens[before].type === "list" && UNDECIDED.test(tokens[last].raw)) last = before;
    else if (before >= 0 && last >= 0 && tokens[last].mayChange) last = before; // and become a part of the one before
    const complete = tokens.slice(0, Math.max(last, 0));
    const growing = tokens.slice(Math.max(last, 0));
    const growingStart = complete.reduce((length, token) => length + token.raw.length, start);
    this.#open = openBlock(growing[0], growingStart, complete.length === 0 && kept > 0 ? this.#open : null);
    if (complete.length > 0 || kept === 0) this.#completeLength = growingStart;
    const code = this.#findOpenCode(growing[0]);
    return { complete: marked.parser(complete), growing: marked.parser(growing), code, kept };
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
    this.#openCode = { raw };
    return code;
  }

  /** Fast path: inside an unclosed code block, new text is appended verbatim. Null: not so. @param {string} rest */
  #extendOpenCode(rest) {
    const open = this.#openCode;
    if (!open || !rest.startsWith(open.raw)) return null;
    const fresh = rest.slice(open.raw.length);
    const lineStart = open.raw.lastIndexOf("\n") + 1;
    if (MAY_CLOSE.test(open.raw.slice(lineStart) + fresh)) return null; // the lexer knows
    open.raw = rest;
    return fresh;
  }
}
