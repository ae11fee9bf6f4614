// The sources that a reply cites, below it. Each opens to show the passage that was cited.

import { make } from "../../shared/dom.js";

/** @import { Citation } from "./types.js" */

/**
 * The headings above a passage, without the document's title, with which many documents begin.
 * @param {Citation} citation
 */
export function headingBelowTitle({ title, heading }) {
  const [first, ...rest] = heading.split(" > ");
  return first === title ? rest.join(" > ") : heading;
}

export class Citations {
  #shown = "[]";

  /** @param {Citation[]} [citations] */
  constructor(citations = []) {
    this.element = make("section", { class: "dm-citations", "aria-label": "Sources", hidden: true });
    this.show(citations);
  }

  /** Shows these sources; an unchanged list stays as it is, and what is open stays open. @param {Citation[]} citations */
  show(citations) {
    const shown = JSON.stringify(citations);
    if (shown === this.#shown) return;
    this.#shown = shown;
    this.element.hidden = citations.length === 0;
    const list = make("ol", { class: "dm-citation-list" }, ...citations.map((citation) => make("li", {}, makeSource(citation))));
    this.element.replaceChildren(...(citations.length === 0 ? [] : [make("p", { class: "dm-citations-title" }, "Sources"), list]));
  }
}

/** @param {Citation} citation */
function makeSource(citation) {
  const heading = headingBelowTitle(citation);
  return make(
    "details",
    { class: "dm-citation" },
    make(
      "summary",
      {},
      make("span", { class: "dm-citation-number" }, `[${citation.number}]`),
      make("span", { class: "dm-citation-title", dir: "auto" }, citation.title),
      heading === "" ? "" : make("span", { class: "dm-citation-heading", dir: "auto" }, heading),
    ),
    make("blockquote", { class: "dm-citation-text", dir: "auto" }, citation.text),
  );
}
