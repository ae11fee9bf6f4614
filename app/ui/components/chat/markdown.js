// Renders Markdown to DOM. Model output is untrusted: raw HTML is shown as text, the result is sanitised to a
// short list of tags, and images become links so that nothing is loaded from other origins.

import DOMPurify from "../../shared/vendor/purify.es.mjs";
import { Lexer, Marked } from "../../shared/vendor/marked.esm.js";
import { icon, make } from "../../shared/dom.js";

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
  tokenizer: { blockquote: unlessTooDeep, list: unlessTooDeep },
  renderer: {
    html: ({ text }) => escapeHtml(text),
    image: ({ href, text }) => `<a href="${escapeHtml(href)}">${escapeHtml(text || href)}</a>`,
    checkbox: ({ checked }) => (checked ? "☑ " : "☐ "),
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

/** @param {string} text */
const lex = (text) => new BoundedLexer(marked.defaults).lex(text);

const PURIFY = {
  ALLOWED_TAGS: (
    "a p br hr em strong del code pre blockquote ul ol li h3 h4 h5 h6 table thead tbody tr th td"
  ).split(" "),
  ALLOWED_ATTR: ["href", "title", "class", "start", "align"],
  ALLOWED_URI_REGEXP: /^(?:https?:|mailto:)/i,
  ADD_URI_SAFE_ATTR: ["start", "align"], // not URIs; PLAIN_VALUES restricts their values
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  RETURN_DOM_FRAGMENT: true,
};

/** @type {[string, string, RegExp][]} the allowed elements and values of attributes that aren't URIs */
const PLAIN_VALUES = [
  ["start", "OL", /^\d{1,9}$/],
  ["align", "TH", /^(?:left|center|right)$/],
  ["align", "TD", /^(?:left|center|right)$/],
  ["class", "CODE", /^language-/],
];

// A link reference definition may follow the text that uses it.
const HAS_DEFINITION = /^ {0,3}\[[^\]\n]+\]:/m;
const OPEN_FENCE = /^(`{3,}|~{3,})[^\n]*\n/;

/** Sanitises untrusted HTML to a fragment of allowed elements and attributes. @param {string} html */
export function sanitizeHtml(html) {
  const fragment = DOMPurify.sanitize(html, PURIFY);
  for (const link of fragment.querySelectorAll("a")) {
    if (!link.hasAttribute("href")) continue;
    link.target = "_blank";
    link.rel = "noopener noreferrer nofollow";
  }
  for (const name of ["start", "align", "class"]) {
    for (const element of fragment.querySelectorAll(`[${name}]`)) {
      const value = element.getAttribute(name) ?? "";
      const isPlain = PLAIN_VALUES.some(([each, tag, pattern]) => each === name && tag === element.tagName && pattern.test(value));
      if (!isPlain) element.removeAttribute(name);
    }
  }
  return fragment;
}

/** @param {Token[]} tokens */
function toFragment(tokens) {
  const fragment = sanitizeHtml(marked.parser(tokens));
  for (const pre of fragment.querySelectorAll("pre")) frameCode(pre);
  for (const table of fragment.querySelectorAll("table")) {
    const frame = make("div", { class: "dm-table", tabindex: "0", role: "region", "aria-label": "Table" });
    table.replaceWith(frame);
    frame.append(table);
  }
  // The text direction is set per block by its language; code is always left to right.
  for (const block of fragment.children) if (!block.matches(".dm-code")) block.setAttribute("dir", "auto");
  return fragment;
}

/**
 * Adds a bar with a copy button above the code. Keeps the <pre> itself, because the code may still be streaming.
 * @param {HTMLPreElement} pre
 */
function frameCode(pre) {
  const code = pre.querySelector("code") ?? pre;
  const language = /^language-(\S+)/.exec(code.className)?.[1] ?? "";
  const copy = make("button", { type: "button", class: "dm-action", "aria-label": "Copy code" }, icon("copy"), "Copy");
  copy.addEventListener("click", () => copyText(code.textContent ?? "", copy));
  pre.tabIndex = 0; // so that long lines can be scrolled by keyboard
  pre.setAttribute("role", "region");
  pre.setAttribute("aria-label", language ? `Code, ${language}` : "Code");
  const block = make("div", { class: "dm-code", dir: "ltr" }, make("div", { class: "dm-code-bar" }, make("span", {}, language), copy));
  pre.replaceWith(block);
  block.append(pre);
}

/** Copies text and shows the outcome on the button for 1.5 s. @param {string} text @param {HTMLElement} button */
export async function copyText(text, button) {
  let outcome = "Copied";
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    outcome = "Not allowed";
  }
  const label = button.lastChild;
  const before = label?.textContent;
  if (!label || before === undefined || before === outcome) return;
  label.textContent = outcome;
  setTimeout(() => (label.textContent = before), 1500);
}

// Renders Markdown that is still streaming. Only the last block is rendered again; earlier blocks are final.
export class StreamingMarkdown {
  /** @param {HTMLElement} element @param {string} text */
  constructor(element, text = "") {
    this.element = element;
    this.text = "";
    this.completeLength = 0; // length of the text before the last block
    this.tail = make("div", { class: "dm-tail" });
    /** @type {{raw: string, node: Text, fence: string} | null} the unclosed code block at the end */
    this.openCode = null;
    this.pause = 0; // performance.now() before which nothing is rendered: slow blocks are rendered less often
    /** @type {number | null} */
    this.frame = null;
    /** @type {ReturnType<typeof setTimeout> | null} */
    this.timer = null;
    element.replaceChildren(this.tail);
    if (text) {
      this.text = text;
      this.#draw();
    }
  }

  /** `onRendered` is called once the text is on the page. @param {string} text @param {() => void} onRendered */
  append(text, onRendered = () => {}) {
    this.text += text;
    if (this.frame !== null || this.timer !== null) return;
    const draw = () => {
      this.frame = requestAnimationFrame(() => {
        this.frame = null;
        this.#draw();
        onRendered();
      });
    };
    const wait = this.pause - performance.now();
    if (wait <= 0) draw();
    else {
      this.timer = setTimeout(() => {
        this.timer = null;
        draw();
      }, wait);
    }
  }

  finish() {
    if (this.frame !== null) cancelAnimationFrame(this.frame);
    if (this.timer !== null) clearTimeout(this.timer);
    this.frame = this.timer = null;
    if (HAS_DEFINITION.test(this.text)) {
      this.element.replaceChildren(toFragment(lex(this.text)));
      return;
    }
    this.#draw();
    this.tail.replaceWith(...this.tail.childNodes);
  }

  #draw() {
    const started = performance.now();
    if (this.text.includes("\r")) this.text = this.text.replace(/\r\n?/g, "\n"); // as the lexer does: offsets must match
    const rest = this.text.slice(this.completeLength);
    if (!this.#extendOpenCode(rest)) this.#drawBlocks(rest);
    const cost = performance.now() - started;
    this.pause = performance.now() + Math.min(cost * 4, 600);
  }

  /** @param {string} rest */
  #drawBlocks(rest) {
    const tokens = lex(rest);
    let last = tokens.length - 1;
    while (last > 0 && tokens[last].type === "space") last--;
    if (last > 0) {
      const complete = tokens.slice(0, last);
      this.tail.before(toFragment(complete));
      this.completeLength += complete.reduce((length, token) => length + token.raw.length, 0);
    }
    const growing = tokens.slice(Math.max(last, 0));
    this.tail.replaceChildren(toFragment(growing));
    this.openCode = null;
    const [code] = growing;
    const fence = code?.type === "code" ? OPEN_FENCE.exec(code.raw) : null;
    const node = this.tail.querySelector("pre code")?.firstChild;
    if (!fence || !(node instanceof Text)) return;
    const raw = this.text.slice(this.completeLength);
    const body = raw.slice(fence[0].length);
    // code.text excludes the closing fence; without a closing fence it lacks one newline at most.
    if (body.length - (code.text ?? "").length >= fence[1].length) return;
    node.data = body; // the renderer normalises trailing newlines
    this.openCode = { raw, node, fence: fence[1][0] };
  }

  /** Fast path: inside an unclosed code block, new text is appended verbatim. @param {string} rest */
  #extendOpenCode(rest) {
    const open = this.openCode;
    if (!open || !rest.startsWith(open.raw)) return false;
    const fresh = rest.slice(open.raw.length);
    // A line that contains the fence's character may close the block: leave that to the lexer.
    const lineStart = open.raw.lastIndexOf("\n") + 1;
    if ((open.raw.slice(lineStart) + fresh).includes(open.fence)) return false;
    open.node.appendData(fresh);
    open.raw = rest;
    return true;
  }
}

/** @param {HTMLElement} element @param {string} text */
export function renderMarkdown(element, text) {
  new StreamingMarkdown(element, text).finish();
}
