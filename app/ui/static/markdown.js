// Markdown to DOM. A model's text is not trusted: raw HTML is shown as text, the result is sanitised
// to a short list of tags, and pictures become links so that nothing is loaded from elsewhere.

import DOMPurify from "./vendor/purify.es.mjs";
import { Lexer, Marked } from "./vendor/marked.esm.js";
import { icon, make } from "./dom.js";

const escapeHtml = (text) =>
  text.replace(/[&<>"']/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" })[c]);

// Some texts take the parser very long: quotes within quotes a thousand deep, emphasis that never
// closes in a paragraph without end. A model that loops writes them; they are shown without markup.
const MAX_INLINE_CHARACTERS = 8000;
const TOO_DEEP = /^(?:[ \t]*(?:>|(?:[-+*]|\d{1,9}[.)])(?=[ \t]))){24,}/;

const unlessTooDeep = (source) => (TOO_DEEP.test(source) ? undefined : false); // false: as the parser does

const marked = new Marked({
  gfm: true,
  breaks: true,
  tokenizer: { blockquote: unlessTooDeep, list: unlessTooDeep },
  renderer: {
    html: ({ text }) => escapeHtml(text),
    image: ({ href, text }) => `<a href="${escapeHtml(href)}">${escapeHtml(text || href)}</a>`,
    checkbox: ({ checked }) => (checked ? "☑ " : "☐ "),
    heading({ tokens, depth }) {
      const level = Math.min(depth + 2, 6); // the page has its own h1 and h2
      return `<h${level}>${this.parser.parseInline(tokens)}</h${level}>`;
    },
  },
});

class BoundedLexer extends Lexer {
  inlineTokens(source, tokens = []) {
    if (source.length <= MAX_INLINE_CHARACTERS) return super.inlineTokens(source, tokens);
    for (const [i, line] of source.split("\n").entries()) {
      if (i > 0) tokens.push({ type: "br", raw: "\n" });
      tokens.push({ type: "text", raw: line, text: line, escaped: false });
    }
    return tokens;
  }
}

const lex = (text) => new BoundedLexer(marked.defaults).lex(text);

const PURIFY = {
  ALLOWED_TAGS: (
    "a p br hr em strong del code pre blockquote ul ol li h3 h4 h5 h6 table thead tbody tr th td"
  ).split(" "),
  ALLOWED_ATTR: ["href", "title", "class", "start", "align"],
  ALLOWED_URI_REGEXP: /^(?:https?:|mailto:)/i,
  ADD_URI_SAFE_ATTR: ["start", "align"], // no addresses; `PLAIN_VALUES` says what they may be
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  RETURN_DOM_FRAGMENT: true,
};

// The only elements and values that the attributes without an address may have.
const PLAIN_VALUES = [
  ["start", "OL", /^\d{1,9}$/],
  ["align", "TH", /^(?:left|center|right)$/],
  ["align", "TD", /^(?:left|center|right)$/],
  ["class", "CODE", /^language-/],
];

// A link definition may stand below the text that uses it.
const HAS_DEFINITION = /^ {0,3}\[[^\]\n]+\]:/m;
const OPEN_FENCE = /^(`{3,}|~{3,})[^\n]*\n/;

// HTML as a fragment of harmless elements, whatever it holds.
export function sanitizeHtml(html) {
  const fragment = DOMPurify.sanitize(html, PURIFY);
  for (const link of fragment.querySelectorAll("a")) {
    if (!link.hasAttribute("href")) continue;
    link.target = "_blank";
    link.rel = "noopener noreferrer nofollow";
  }
  for (const name of ["start", "align", "class"]) {
    for (const element of fragment.querySelectorAll(`[${name}]`)) {
      const value = element.getAttribute(name);
      const isPlain = PLAIN_VALUES.some(([each, tag, pattern]) => each === name && tag === element.tagName && pattern.test(value));
      if (!isPlain) element.removeAttribute(name);
    }
  }
  return fragment;
}

function toFragment(tokens) {
  const fragment = sanitizeHtml(marked.parser(tokens));
  for (const pre of fragment.querySelectorAll("pre")) frameCode(pre);
  for (const table of fragment.querySelectorAll("table")) {
    const frame = make("div", { class: "dm-table", tabindex: "0", role: "region", "aria-label": "Table" });
    table.replaceWith(frame);
    frame.append(table);
  }
  // Each block stands on the side where its language begins; code is read from the left in all of them.
  for (const block of fragment.children) if (!block.matches(".dm-code")) block.dir = "auto";
  return fragment;
}

// Puts a bar with a copy button above the code. The element itself stays: the code may still grow.
function frameCode(pre) {
  const code = pre.querySelector("code") ?? pre;
  const language = /^language-(\S+)/.exec(code.className)?.[1] ?? "";
  const copy = make("button", { type: "button", class: "dm-action", "aria-label": "Copy code" }, icon("copy"), "Copy");
  copy.addEventListener("click", () => copyText(code.textContent, copy));
  pre.tabIndex = 0; // long lines scroll, also by keyboard
  pre.setAttribute("role", "region");
  pre.setAttribute("aria-label", language ? `Code, ${language}` : "Code");
  const block = make("div", { class: "dm-code", dir: "ltr" }, make("div", { class: "dm-code-bar" }, make("span", {}, language), copy));
  pre.replaceWith(block);
  block.append(pre);
}

// Copies, and lets the button say how it went.
export async function copyText(text, button) {
  let outcome = "Copied";
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    outcome = "Not allowed";
  }
  const label = button.lastChild;
  const before = label.textContent;
  if (before === outcome) return;
  label.textContent = outcome;
  setTimeout(() => (label.textContent = before), 1500);
}

// A text that may grow. Only its last block is drawn again; blocks above it cannot change any more.
export class StreamingMarkdown {
  constructor(element, text = "") {
    this.element = element;
    this.text = "";
    this.settled = 0; // how much of the text stands above the last block
    this.tail = make("div", { class: "dm-tail" });
    this.openCode = null; // {raw, node, fence}: a code block that is still being written
    this.pause = 0; // no drawing before this time: large blocks are drawn less often
    this.frame = null;
    this.timer = null;
    element.replaceChildren(this.tail);
    if (text) {
      this.text = text;
      this.#draw();
    }
  }

  // `drawn` is called after the text is on the page.
  append(text, drawn = () => {}) {
    this.text += text;
    if (this.frame !== null || this.timer !== null) return;
    const draw = () => {
      this.frame = requestAnimationFrame(() => {
        this.frame = null;
        this.#draw();
        drawn();
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
    cancelAnimationFrame(this.frame);
    clearTimeout(this.timer);
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
    if (this.text.includes("\r")) this.text = this.text.replace(/\r\n?/g, "\n"); // as the lexer counts
    const rest = this.text.slice(this.settled);
    if (!this.#extendOpenCode(rest)) this.#drawBlocks(rest);
    const cost = performance.now() - started;
    this.pause = performance.now() + Math.min(cost * 4, 600);
  }

  #drawBlocks(rest) {
    const tokens = lex(rest);
    let last = tokens.length - 1;
    while (last > 0 && tokens[last].type === "space") last--;
    if (last > 0) {
      const settled = tokens.slice(0, last);
      this.tail.before(toFragment(settled));
      this.settled += settled.reduce((length, token) => length + token.raw.length, 0);
    }
    const growing = tokens.slice(Math.max(last, 0));
    this.tail.replaceChildren(toFragment(growing));
    this.openCode = null;
    const [code] = growing;
    const fence = code?.type === "code" ? OPEN_FENCE.exec(code.raw) : null;
    const node = this.tail.querySelector("pre code")?.firstChild;
    if (!fence || !node) return;
    const raw = this.text.slice(this.settled);
    const body = raw.slice(fence[0].length);
    // The lexer's text ends before the closing fence; without one it lacks a newline at most.
    if (body.length - code.text.length >= fence[1].length) return;
    node.data = body; // the renderer rounds off the last lines
    this.openCode = { raw, node, fence: fence[1][0] };
  }

  // Inside a code block whose end has not come, new text is appended as it is.
  #extendOpenCode(rest) {
    const open = this.openCode;
    if (!open || !rest.startsWith(open.raw)) return false;
    const fresh = rest.slice(open.raw.length);
    // A line with the fence's character in it may be the end: the lexer decides.
    const lineStart = open.raw.lastIndexOf("\n") + 1;
    if ((open.raw.slice(lineStart) + fresh).includes(open.fence)) return false;
    open.node.appendData(fresh);
    open.raw = rest;
    return true;
  }
}

export function renderMarkdown(element, text) {
  new StreamingMarkdown(element, text).finish();
}
