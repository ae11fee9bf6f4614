// Typesets formulas with KaTeX, which is loaded with the first one. Until then, and where it can't, a formula is shown as
// it was written. A model's formulas are untrusted: no links, no pictures, no endless macros, nothing that covers the page.

import { loadStyle } from "../../shared/component.js";
import { make } from "../../shared/dom.js";
import { isDisplayed, texOf } from "./math_syntax.js";

/** @typedef {import("../../shared/vendor/katex/katex.min.js").Katex} Katex */

const FILES = new URL("../../shared/vendor/katex/", import.meta.url).href;
const LIMITS = { throwOnError: true, trust: false, strict: /** @type {const} */ ("ignore"), errorColor: "inherit", maxSize: 5, maxExpand: 200 };
const MAX_CHARACTERS = 4000; // of a formula that is typeset
const MAX_TYPESET = 500; // formulas that are kept, to be shown again while a reply grows
const SLICE_MS = 12; // how long formulas are typeset at a time

/** @type {Katex | null} */
let katex = null;
/** @type {Promise<unknown> | null} */
let loading = null;
/** @type {Map<string, DocumentFragment | null>} by source; null: not a formula that KaTeX can read */
const typeset = new Map();

/** Replaces the formulas of a rendered part, which the parser marks. @param {ParentNode} root */
export function showMath(root) {
  for (const code of root.querySelectorAll("code[class^='math-']")) {
    const source = code.textContent ?? "";
    const formula = make("span", { class: "dm-math", "data-source": source, translate: "no" }, source);
    if (code.className === "math-open") formula.classList.add("dm-math-open");
    else if (isDisplayed(source)) {
      formula.classList.add("dm-math-display");
      formula.tabIndex = 0; // so that a long formula can be scrolled by keyboard
      formula.setAttribute("role", "group");
      formula.setAttribute("aria-label", "Formula");
    }
    code.replaceWith(formula);
    if (!formula.matches(".dm-math-open")) show(formula);
  }
}

/** The text of a part with its formulas as they were written, or its beginning of at least `length`. @param {Node} part */
export function textOf(part, length = Infinity) {
  let text = "";
  /** @param {Node} node */
  const read = (node) => {
    if (node instanceof Text) text += node.data;
    else if (node instanceof HTMLElement && node.matches(".dm-math")) text += node.dataset.source ?? "";
    else for (let child = node.firstChild; child && text.length < length; child = child.nextSibling) read(child);
  };
  read(part);
  return text;
}

/** @param {ParentNode} root */
function sourcesInstead(root) {
  /** @type {NodeListOf<HTMLElement>} */
  const formulas = root.querySelectorAll(".dm-math");
  for (const formula of formulas) formula.replaceChildren(formula.dataset.source ?? "");
}

/** @param {HTMLElement} formula */
function show(formula) {
  const source = formula.dataset.source ?? "";
  if (!typeset.has(source) && !katex) {
    load();
    return; // load() shows all that wait
  }
  const shown = typesetOf(source);
  formula.classList.toggle("dm-math-typeset", shown !== null);
  if (shown) formula.replaceChildren(shown.cloneNode(true));
}

/** @param {string} source @returns {DocumentFragment | null} */
function typesetOf(source) {
  const kept = typeset.get(source);
  if (kept !== undefined) return kept;
  const fragment = source.length > MAX_CHARACTERS ? null : render(source);
  if (typeset.size >= MAX_TYPESET) typeset.delete([...typeset.keys()][0]);
  typeset.set(source, fragment);
  return fragment;
}

/** @param {string} source */
function render(source) {
  const place = make("span");
  try {
    katex?.render(texOf(source), place, { ...LIMITS, displayMode: isDisplayed(source) });
  } catch {
    return null; // it stays as it was written
  }
  const fragment = document.createDocumentFragment();
  fragment.append(...place.childNodes);
  return fragment;
}

function load() {
  loading ??= Promise.all([import(`${FILES}katex.min.js`), loadStyle(`${FILES}katex.min.css`)]).then(
    () => {
      katex = /** @type {{katex?: Katex}} */ (/** @type {unknown} */ (globalThis)).katex ?? null;
      document.addEventListener("copy", copySources);
      requestAnimationFrame(showWaiting);
    },
    () => (loading = null), // no connection: the next formula tries again
  );
}

function showWaiting() {
  const started = performance.now();
  /** @type {NodeListOf<HTMLElement>} */
  const waiting = document.querySelectorAll(".dm-math:not(.dm-math-typeset, .dm-math-open, .dm-math-failed)");
  for (const formula of waiting) {
    if (performance.now() - started > SLICE_MS) {
      requestAnimationFrame(showWaiting);
      return;
    }
    show(formula);
    if (!formula.matches(".dm-math-typeset")) formula.classList.add("dm-math-failed");
  }
}

/** A selection with formulas is copied as they were written. @param {ClipboardEvent} event */
function copySources(event) {
  const selection = getSelection();
  if (event.defaultPrevented || !event.clipboardData || !selection || selection.isCollapsed) return;
  const fragments = Array.from({ length: selection.rangeCount }, (_, index) => wholeFormulas(selection.getRangeAt(index)).cloneContents());
  if (!fragments.some((fragment) => fragment.querySelector(".dm-math"))) return;
  for (const fragment of fragments) sourcesInstead(fragment);
  // The browser makes plain text of what is on the page, with its line breaks.
  const place = make("div", { class: "dm-copied" });
  place.append(...fragments);
  document.body.append(place);
  event.clipboardData.setData("text/plain", place.innerText);
  event.clipboardData.setData("text/html", new XMLSerializer().serializeToString(place));
  place.remove();
  event.preventDefault();
}

/** The range, widened to whole formulas. @param {Range} range */
function wholeFormulas(range) {
  const whole = range.cloneRange();
  /** @param {Node} node */
  const formula = (node) => (node instanceof Element ? node : node.parentElement)?.closest(".dm-math");
  const [first, last] = [formula(range.startContainer), formula(range.endContainer)];
  if (first) whole.setStartBefore(first);
  if (last) whole.setEndAfter(last);
  return whole;
}
