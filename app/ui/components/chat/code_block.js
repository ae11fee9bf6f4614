// A block of code: its language, a copy button, and colours, which come from a worker while the code may still grow.

import { icon, make } from "../../shared/dom.js";
import { grammarOf, PART_CHARACTERS } from "./code_tokens.js";
import { copyText } from "./copying.js";
import { Highlighting } from "./highlighting.js";

/** @typedef {import("./code_tokens.js").Piece} Piece */

const SLICE = 4 * PART_CHARACTERS; // characters of code that get their colours in one frame
const MAX_CHARACTERS = 200_000; // longer code stays without colours
const PAUSE_MS = 150; // between two questions about code that grows, and a millisecond more for each 20 characters

const highlighting = new Highlighting();

/** The colours of one block. Its last node is a text without colours, which more code is appended to. */
class Colours {
  /** @type {{part: string, length: number, element: HTMLElement}[]} the coloured parts, from the beginning of the code */
  #parts = [];
  /** @type {import("./highlighting.js").Parts} the parts as they should be */
  #wanted = [];
  #asking = false;
  #grown = false;
  #drawing = false;

  /** @param {Element} code @param {string} language */
  constructor(code, language) {
    this.code = code;
    this.language = language;
  }

  /** The code without colours at the end. */
  get #tail() {
    const { lastChild } = this.code;
    return lastChild instanceof Text ? lastChild : null;
  }

  grow() {
    this.#grown = true;
    if (this.#asking) return;
    this.#grown = false;
    const text = this.code.textContent ?? "";
    if (text === "" || text.length > MAX_CHARACTERS) return;
    const known = highlighting.known(text, this.language);
    if (known && this.#parts.length === 0) this.#want(known.parts);
    if (known?.text === text) return;
    this.#asking = true;
    highlighting.ask(text, this.language).then((parts) => {
      if (parts && (this.code.textContent ?? "").startsWith(text)) this.#want(parts);
      setTimeout(
        () => {
          this.#asking = false;
          if (this.#grown) this.grow();
        },
        PAUSE_MS + text.length / 20,
      );
    });
  }

  /** @param {import("./highlighting.js").Parts} parts */
  #want(parts) {
    this.#wanted = parts;
    if (!this.#drawing) this.#drawOn();
  }

  #drawOn() {
    this.#drawing = this.#draw(SLICE);
    if (this.#drawing) requestAnimationFrame(() => this.#drawOn());
  }

  /** Draws parts that differ, up to `size` characters; returns whether there are more. @param {number} size */
  #draw(size) {
    let drawn = 0;
    for (const [index, part] of this.#wanted.entries()) {
      const shown = this.#parts[index];
      if (shown?.part === part) continue;
      if (drawn >= size) return true;
      const { element, length } = drawPart(part);
      drawn += length;
      const missing = length - (shown?.length ?? 0);
      const tail = this.#tail;
      if (missing < 0 || (missing > 0 && (!tail || tail.length < missing || index < this.#parts.length - 1))) return false; // the code is another now
      // The rest becomes a new node: one whose beginning moves is a layout shift to the browser, though nothing moves.
      const rest = missing > 0 ? tail?.splitText(missing) : tail;
      if (missing > 0) tail?.remove();
      if (shown) shown.element.replaceWith(element);
      else this.code.insertBefore(element, rest ?? null);
      this.#parts[index] = { part, length, element };
    }
    return false;
  }
}

/**
 * A coloured part. One of whole lines is a block of its own, so that the browser doesn't lay it out again when more code
 * follows.
 * @param {string} part
 */
function drawPart(part) {
  /** @type {Piece[]} */
  const pieces = JSON.parse(part);
  const length = pieces.reduce((sum, [, text]) => sum + text.length, 0);
  const isWhole = pieces.at(-1)?.[1].endsWith("\n") ?? false;
  const spans = pieces.map(([kind, text]) => (kind === "" ? text : make("span", { class: `dm-code-${kind}` }, text)));
  return { element: make("span", { class: isWhole ? "dm-lines" : null }, ...spans), length };
}

/** @type {WeakMap<Element, Colours>} by <code> */
const colours = new WeakMap();

/**
 * Adds a bar with a copy button above the code. Keeps the <pre> itself, because the code may still be streaming.
 * @param {HTMLPreElement} pre
 */
export function frameCode(pre) {
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

/** Colours the code as it stands now: called again when it has grown. @param {Element} code */
export function colourCode(code) {
  const language = /^language-(\S+)/.exec(code.className)?.[1] ?? "";
  if (!grammarOf(language)) return;
  const shown = colours.get(code) ?? new Colours(code, language);
  colours.set(code, shown);
  shown.grow();
}

/**
 * Shows other text in a block that grows, without drawing it anew; returns whether that was possible.
 * @param {Element} code @param {string} text
 */
export function becomeText(code, text) {
  const { lastChild: tail } = code;
  const before = code.textContent ?? "";
  if (!(tail instanceof Text)) return false;
  if (text.startsWith(before)) tail.appendData(text.slice(before.length));
  else if (before.startsWith(text) && before.length - text.length <= tail.length) tail.data = tail.data.slice(0, tail.length - (before.length - text.length));
  else return false;
  return true;
}
