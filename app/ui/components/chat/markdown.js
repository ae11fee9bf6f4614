// Renders Markdown to DOM. Model output is untrusted: raw HTML is shown as text, the result is sanitised to a
// short list of tags, and images become links so that nothing is loaded from other origins.

import DOMPurify from "../../shared/vendor/purify.es.mjs";
import { icon, make } from "../../shared/dom.js";
import { GrowingBlocks } from "./markdown_blocks.js";

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

/** What is done to each rendered part before it is shown. @typedef {(fragment: DocumentFragment) => void} Decorate */

/** @param {string} html  untrusted */
function toFragment(html) {
  const fragment = sanitizeHtml(html);
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
  /** @param {HTMLElement} element @param {string} text @param {Decorate} decorate */
  constructor(element, text = "", decorate = () => {}) {
    this.element = element;
    this.decorate = decorate;
    this.blocks = new GrowingBlocks();
    this.tail = make("div", { class: "dm-tail" });
    /** @type {Text | null} the text of the unclosed code block at the end */
    this.openCode = null;
    this.pause = 0; // performance.now() before which nothing is rendered: slow blocks are rendered less often
    /** @type {number | null} */
    this.frame = null;
    /** @type {ReturnType<typeof setTimeout> | null} */
    this.timer = null;
    element.replaceChildren(this.tail);
    if (text) {
      this.blocks.append(text);
      this.#draw();
    }
  }

  /** `onRendered` is called once the text is on the page. @param {string} text @param {() => void} onRendered */
  append(text, onRendered = () => {}) {
    this.blocks.append(text);
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
    const { redrawn } = this.blocks;
    if (redrawn !== null) {
      this.element.replaceChildren(this.#render(redrawn));
      return;
    }
    this.#draw();
    this.tail.replaceWith(...this.tail.childNodes);
  }

  #draw() {
    const started = performance.now();
    const drawing = this.blocks.draw();
    if ("appended" in drawing) this.openCode?.appendData(drawing.appended);
    else this.#drawBlocks(drawing.complete, drawing.growing, drawing.code);
    const cost = performance.now() - started;
    this.pause = performance.now() + Math.min(cost * 4, 600);
  }

  /** @param {string} html  untrusted */
  #render(html) {
    const fragment = toFragment(html);
    this.decorate(fragment);
    return fragment;
  }

  /** @param {string} complete @param {string} growing @param {string | null} code  of the unclosed code block */
  #drawBlocks(complete, growing, code) {
    if (complete !== "") this.tail.before(this.#render(complete));
    this.tail.replaceChildren(this.#render(growing));
    this.openCode = null;
    if (code === null) return;
    this.openCode = document.createTextNode(code);
    this.tail.querySelector("pre code")?.replaceChildren(this.openCode); // with newlines that the parser drops
  }
}

/** @param {HTMLElement} element @param {string} text @param {Decorate} [decorate] */
export function renderMarkdown(element, text, decorate) {
  new StreamingMarkdown(element, text, decorate).finish();
}
