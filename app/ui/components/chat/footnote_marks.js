// Footnotes on the page: a mark leads to its note, and the note leads back.

import { make } from "../../shared/dom.js";

/** Makes buttons of the marks and notes of a rendered part. @param {ParentNode} root */
export function linkFootnotes(root) {
  for (const mark of root.querySelectorAll("sup.footnote-mark")) {
    const label = mark.textContent ?? "";
    mark.replaceWith(makeButton("dm-footnote-mark", label, `Footnote ${label}`, ".dm-footnote-of"));
  }
  for (const of of root.querySelectorAll("sup.footnote-of")) {
    const label = of.textContent ?? "";
    of.parentElement?.classList.replace("footnote", "dm-footnote");
    of.replaceWith(makeButton("dm-footnote-of", label, `Back to the text of footnote ${label}`, ".dm-footnote-mark"));
  }
}

/** @param {string} name @param {string} label @param {string} spoken @param {string} target  where it leads */
function makeButton(name, label, spoken, target) {
  const button = make("button", { type: "button", class: name, "aria-label": spoken, "data-label": label }, label);
  button.addEventListener("click", () => {
    /** @type {NodeListOf<HTMLElement> | undefined} */
    const found = button.closest(".dm-markdown")?.querySelectorAll(target);
    const other = [...(found ?? [])].find(({ dataset }) => dataset.label === label);
    other?.scrollIntoView({ block: "nearest" });
    other?.focus({ preventScroll: true });
  });
  return make("sup", {}, button);
}
