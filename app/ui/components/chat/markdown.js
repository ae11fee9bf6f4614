// Renders Markdown to DOM. Model output is untrusted: raw HTML is shown as text, the result is sanitised to a
// short list of tags, and images become links so that nothing is loaded from other origins.

import DOMPurify from "../../shared/vendor/purify.es.mjs";
import { make } from "../../shared/dom.js";
import { becomeText, colourCode, frameCode } from "./code_block.js";
import { linkFootnotes } from "./footnote_marks.js";
import { GrowingBlocks } from "./markdown_blocks.js";
import { showMath } from "./math.js";

export { copyText } from "./copying.js";

const PURIFY = {
  ALLOWED_TAGS: (
    "a p br hr em strong del code pre blockquote ul ol li h3 h4 h5 h6 table thead tbody tr th td sup"
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
  ["class", "CODE", /^(?:language-|math-(?:inline|display|open)$)/],
  ["class", "SUP", /^footnote-(?:mark|of)$/],
  ["class", "P", /^footnote$/],
  ["class", "LI", /^task$/],
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
  showMath(fragment);
  linkFootnotes(fragment);
  // The text direction is set per block by its language; code is always left to right.
  for (const block of fragment.children) if (!block.matches(".dm-code")) block.setAttribute("dir", "auto");
  return fragment;
}

// How many finished blocks stand beside each other. The browser restyles all children of an element that gets another
// one, with everything in them, as soon as a page has a formula: its own styles for MathML have `~ :nth-child(2n)`. So the
// blocks after these stand in an element of their own, at the end.
const MAX_SIBLINGS = 24;
// Of a growing list that stand in one element: the browser goes through all of them for each new one. Until the page is
// opened again, a screen reader so tells of several lists.
const MAX_ITEMS = 100;
const SLICE = 1500; // characters that are drawn in one frame, at least; of a burst a sixteenth, so that it is caught up with

// Renders Markdown that is still streaming. Only the last block is rendered again; earlier blocks are final.
export class StreamingMarkdown {
  /** @param {HTMLElement} element @param {string} text @param {Decorate} decorate */
  constructor(element, text = "", decorate = () => {}) {
    this.element = element;
    this.decorate = decorate;
    this.blocks = new GrowingBlocks();
    this.tail = make("div", { class: "dm-tail" });
    this.part = element; // gets the finished blocks
    /** @type {Element | null} the <code> of the unclosed code block at the end; its last child is a text */
    this.openCode = null;
    /** @type {Element | null} the last element of the list at the end, which may have several */
    this.openList = null;
    this.closedItems = 0; // of the list at the end, in the elements before that one
    this.waiting = ""; // text that is drawn in the next frames
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
    this.waiting += text;
    if (this.frame === null && this.timer === null) this.#drawSoon(onRendered);
  }

  /** @param {() => void} onRendered */
  #drawSoon(onRendered) {
    const draw = () => {
      this.frame = requestAnimationFrame(() => {
        this.frame = null;
        this.#take(Math.max(SLICE, Math.ceil(this.waiting.length / 16)));
        this.#draw();
        onRendered();
        if (this.waiting !== "") this.#drawSoon(onRendered);
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

  /** @param {number} length */
  #take(length) {
    const end = /[\uD800-\uDBFF]/.test(this.waiting.charAt(length - 1)) ? length + 1 : length; // a pair stays one
    this.blocks.append(this.waiting.slice(0, end));
    this.waiting = this.waiting.slice(end);
  }

  finish() {
    if (this.frame !== null) cancelAnimationFrame(this.frame);
    if (this.timer !== null) clearTimeout(this.timer);
    this.frame = this.timer = null;
    this.#take(this.waiting.length);
    const { redrawn } = this.blocks;
    if (redrawn !== null) {
      const fragment = this.#render(redrawn);
      colourAll(fragment);
      this.element.replaceChildren(fragment);
      return;
    }
    this.#draw();
    // A long list keeps it: with another class around it, the browser lays all of it out again.
    if (!this.openList) this.tail.className = "dm-part";
  }

  #draw() {
    const started = performance.now();
    const drawing = this.blocks.draw();
    if ("appended" in drawing) this.#appendCode(drawing.appended);
    else this.#drawBlocks(drawing);
    const cost = performance.now() - started;
    this.pause = performance.now() + Math.min(cost * 4, 600);
  }

  /** @param {string} text */
  #appendCode(text) {
    const last = this.openCode?.lastChild;
    if (!this.openCode || !(last instanceof Text)) return;
    last.appendData(text);
    colourCode(this.openCode);
  }

  /** @param {string} html  untrusted @param {string | null} openCode  the text of its last code block, if that is not closed */
  #render(html, openCode = null) {
    const fragment = toFragment(html);
    const code = [...fragment.querySelectorAll("pre code")];
    if (openCode !== null) code.at(-1)?.replaceChildren(openCode); // with newlines that the parser drops
    this.decorate(fragment);
    return fragment;
  }

  #beginPart() {
    const part = make("div", { class: "dm-part" }, this.tail);
    this.part.append(part);
    this.part = part;
  }

  /** @param {Exclude<import("./markdown_blocks.js").Drawing, {appended: string}>} drawing */
  #drawBlocks({ complete, growing, code, kept }) {
    if (complete !== "") {
      const fragment = this.#render(complete);
      const goesOn = this.#goOn(fragment, kept);
      if (goesOn) this.#keepTail();
      if (this.part.childElementCount > MAX_SIBLINGS) this.#beginPart();
      if (!goesOn) {
        colourAll(fragment);
        this.tail.before(fragment);
      }
    }
    const fragment = this.#render(growing, code);
    if (complete !== "" || !this.#goOn(fragment, kept)) {
      colourAll(fragment);
      this.tail.replaceChildren(fragment);
    }
    const last = code === null ? null : [...this.tail.querySelectorAll("pre code")].at(-1);
    this.openCode = last?.lastChild instanceof Text ? last : null;
  }

  /** The tail stays where it is, with blocks that are final now, and gets a new one for what follows. */
  #keepTail() {
    const kept = this.tail;
    kept.className = "dm-part";
    this.openList = null;
    this.tail = make("div", { class: "dm-tail" });
    kept.after(this.tail);
  }

  /**
   * If the first block of a fragment goes on with the one in the tail, that stays the element that it was, with its
   * layout and its colours, and gets what is new in it; the rest of the fragment follows. Returns whether it is so.
   * @param {DocumentFragment} fragment @param {number} kept  how many of its items or rows are no part of the fragment
   */
  #goOn(fragment, kept) {
    const block = fragment.firstElementChild;
    if (kept === 0) this.openList = null;
    const old = this.openList ?? this.tail.firstElementChild;
    if (!old || !block || !(kept > 0 ? this.#extendList(old, block, kept) : this.#extendCode(old, block))) return false;
    block.remove();
    const last = this.openList ?? old;
    while (last.nextSibling) last.nextSibling.remove();
    colourAll(fragment);
    this.tail.append(fragment);
    return true;
  }

  /**
   * Replaces the items of a list, or the rows of a table, after the first `kept` by those of a block.
   * @param {Element} old @param {Element} block @param {number} kept
   */
  #extendList(old, block, kept) {
    if (!this.openList) this.closedItems = 0;
    let list = listOf(old);
    if (!list || list.childElementCount < kept - this.closedItems) return false;
    while (list.childElementCount > kept - this.closedItems) list.lastChild?.remove();
    if (list === old && list instanceof HTMLElement && list.childElementCount >= MAX_ITEMS) {
      list = this.openList = continueList(list);
      this.closedItems = kept;
    }
    colourAll(block);
    const added = listOf(block);
    if (added && list.lastChild instanceof Text) while (added.firstChild instanceof Text) added.firstChild.remove();
    if (added) list.append(...added.childNodes); // with the line breaks between them, for those who read the text alone
    return true;
  }

  /** @param {Element} old @param {Element} block */
  #extendCode(old, block) {
    const [code, oldCode] = [block.querySelector(":scope > pre > code"), this.openCode];
    this.openCode = null; // a text has one open block at most
    if (!code || !oldCode || !old.contains(oldCode) || code.className !== oldCode.className) return false;
    if (!becomeText(oldCode, code.textContent ?? "")) return false;
    colourCode(oldCode);
    return true;
  }
}

/** @param {ParentNode} root */
function colourAll(root) {
  for (const code of root.querySelectorAll("pre code")) colourCode(code);
}

/** Makes an element for more items of a list, after the one that is full. @param {HTMLElement} list */
function continueList(list) {
  const rest = /** @type {HTMLElement} */ (list.cloneNode());
  if (list instanceof HTMLOListElement) rest.setAttribute("start", String(list.start + list.childElementCount));
  rest.classList.add("dm-rest");
  list.after(rest);
  return rest;
}

/** What has the items of a list as its children, or the rows of a table. @param {Element} block */
const listOf = (block) => (block.matches("ul, ol") ? block : block.querySelector(":scope > table > tbody"));

/** @param {HTMLElement} element @param {string} text @param {Decorate} [decorate] */
export function renderMarkdown(element, text, decorate) {
  new StreamingMarkdown(element, text, decorate).finish();
}
