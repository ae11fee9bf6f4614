// Marks the words in which rendered replies differ.

import { make } from "../../shared/dom.js";
import { plural } from "../../shared/formats.js";
import { markedWords, wordsOf } from "./word_diff.js";

// No words of the reply, or drawn as a whole: the colours of code may still arrive, and need its text as it is.
const UNMARKED = ".dm-code, .dm-math, button";
const CODE_DIFFERS = "dm-code-differs";

/** @param {HTMLElement} element @returns {{node: Text, word: import("./word_diff.js").Word}[]} */
function wordsIn(element) {
  const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  const words = [];
  while (walker.nextNode()) {
    const node = /** @type {Text} */ (walker.currentNode);
    if (!node.parentElement?.closest(UNMARKED)) for (const word of wordsOf(node.data)) words.push({ node, word });
  }
  return words;
}

/** Takes the marks away. @param {HTMLElement} element */
export function unmark(element) {
  for (const mark of element.querySelectorAll("mark.dm-differs")) {
    const parent = mark.parentElement;
    mark.replaceWith(...mark.childNodes);
    parent?.normalize();
  }
  for (const code of element.querySelectorAll(`.${CODE_DIFFERS}`)) code.classList.remove(CODE_DIFFERS);
}

/**
 * Marks the words in which the texts differ, and says for each how many; see `markedWords`.
 * @param {HTMLElement[]} elements
 * @returns {string[]}
 */
export function markDifferences(elements) {
  markCode(elements);
  const all = elements.map(wordsIn);
  const marks = markedWords(all.map((words) => words.map(({ word }) => word.text)));
  return all.map((words, index) => {
    const marked = marks[index];
    if (marked === null) return "Too long to mark the differences.";
    /** @type {Map<Text, [number, number][]>} */
    const runs = new Map();
    for (const [at, { node, word }] of words.entries()) {
      if (!marked[at]) continue;
      const ranges = runs.get(node) ?? [];
      const last = ranges.at(-1);
      if (last && at > 0 && marked[at - 1] && words[at - 1].node === node) last[1] = word.end;
      else ranges.push([word.start, word.end]);
      runs.set(node, ranges);
    }
    for (const [node, ranges] of runs) wrap(node, ranges);
    const count = marked.filter(Boolean).length;
    if (index === 0) return count === 0 ? "" : `${plural(count, "word")} only here`;
    return count === 0 && words.length === all[0].length ? "The same words as A" : `${plural(count, "word")} not in A`;
  });
}

/** Frames the blocks of code that the first reply does not have; in the first, those that no other has. @param {HTMLElement[]} elements */
function markCode(elements) {
  /** @param {Element} block */
  const textOf = (block) => block.querySelector("pre")?.textContent ?? "";
  const blocks = elements.map((element) => [...element.querySelectorAll(".dm-code")]);
  const texts = blocks.map((each) => each.map(textOf));
  for (const [index, each] of blocks.entries()) {
    const others = index === 0 ? texts.slice(1).flat() : texts[0];
    for (const block of each) block.classList.toggle(CODE_DIFFERS, !others.includes(textOf(block)));
  }
}

/** @param {Text} node @param {[number, number][]} ranges */
function wrap(node, ranges) {
  const text = node.data;
  /** @type {(string | HTMLElement)[]} */
  const parts = [];
  let at = 0;
  for (const [start, end] of ranges) {
    parts.push(text.slice(at, start), make("mark", { class: "dm-differs" }, text.slice(start, end)));
    at = end;
  }
  node.replaceWith(...parts, text.slice(at));
}
