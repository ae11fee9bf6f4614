// A rendered reply as other programs take it: HTML of plain elements, or text without marks.

import { make } from "../../shared/dom.js";

const KEPT = new Set(["href", "start", "align", "dir"]); // attributes that mean something elsewhere
const BLOCKS = "p, div, pre, h3, h4, h5, h6, li, tr, table, blockquote, ul, ol, hr";

/** A copy without what only the page needs: buttons, colours, frames and typeset formulas. @param {HTMLElement} rendered */
function bare(rendered) {
  const copy = /** @type {HTMLElement} */ (rendered.cloneNode(true));
  for (const formula of /** @type {NodeListOf<HTMLElement>} */ (copy.querySelectorAll(".dm-math"))) formula.replaceWith(formula.dataset.source ?? "");
  for (const mark of copy.querySelectorAll(".dm-footnote-mark, .dm-footnote-of")) mark.replaceWith(`[${(mark.textContent ?? "").trim()}]`);
  for (const bar of copy.querySelectorAll(".dm-code-bar, button")) bar.remove();
  for (const rest of copy.querySelectorAll(".dm-rest")) {
    rest.previousElementSibling?.append(...rest.childNodes); // of a long list, which has several elements
    rest.remove();
  }
  for (const list of copy.querySelectorAll("ul, ol, table, thead, tbody, tr")) {
    for (const space of [...list.childNodes]) if (space instanceof Text) space.remove(); // line breaks of the source
  }
  for (const code of copy.querySelectorAll("pre code")) code.replaceChildren(code.textContent ?? "");
  for (const frame of copy.querySelectorAll(".dm-code, .dm-table")) frame.replaceWith(...frame.childNodes);
  for (const element of copy.querySelectorAll("*")) {
    for (const { name } of [...element.attributes]) if (!KEPT.has(name)) element.removeAttribute(name);
    if (element.getAttribute("href")?.startsWith("#")) element.removeAttribute("href"); // of a footnote on this page
  }
  return copy;
}

/** @param {HTMLElement} rendered  sanitized */
export const richText = (rendered) => new XMLSerializer().serializeToString(bare(rendered));

/** @param {HTMLElement} rendered  sanitized */
export function plainText(rendered) {
  const copy = bare(rendered);
  for (const item of copy.querySelectorAll("li")) {
    const list = item.parentElement;
    const at = list instanceof HTMLOListElement ? `${list.start + [...list.children].indexOf(item)}.` : "•";
    item.prepend(`${at} `);
  }
  for (const cell of copy.querySelectorAll("td:not(:last-child), th:not(:last-child)")) cell.append("\t");
  for (const end of copy.querySelectorAll("br")) end.replaceWith("\n");
  for (const block of copy.querySelectorAll(BLOCKS)) block.append(make("span", {}, block.matches("li, tr") ? "\n" : "\n\n"));
  return (copy.textContent ?? "").replace(/[ \t]+$/gm, "").replace(/\n{3,}/g, "\n\n").trim();
}
