// The sources that a reply cites, below it. Each opens to show the passage that was cited; those of a reply that only lists
// what was found are open.

import { make } from "../../shared/dom.js";

/** @import { Citation } from "./types.js" */

/**
 * The headings above a passage, without the document's title, with which many documents begin.
 * @param {Pick<Citation, "title" | "heading">} citation
 */
export function headingBelowTitle({ title, heading }) {
  const [first, ...rest] = heading.split(" > ");
  return first === title ? rest.join(" > ") : heading;
}

/**
 * A document's title and the headings below it, as app/domain/knowledge.py joins them.
 * @param {Pick<Citation, "title" | "heading">} citation
 */
export const placeOf = ({ title, heading }) => [title, headingBelowTitle({ title, heading })].filter(Boolean).join(" > ");

export class Citations {
  #shown = "[]";
  /** @type {Citation[]} what the reply cites, by number */
  value = [];

  /**
   * @param {Citation[]} [citations]
   * @param {((citation: Citation) => unknown) | null} [open]  shows the document; null: that is not offered
   * @param {((citation: Citation) => unknown) | null} [mark]  says that the passage answers the question; null: as above
   */
  constructor(citations = [], open = null, mark = null) {
    this.open = open;
    this.mark = mark;
    this.element = make("section", { class: "dm-citations", "aria-label": "Sources", hidden: true });
    this.show(citations);
  }

  /** @param {number} number */
  find(number) {
    return this.value.find((citation) => citation.number === number);
  }

  /**
   * Shows these sources, and returns whether there are others than before. An unchanged list stays as it is, and what is
   * open stays open.
   * @param {Citation[]} citations
   */
  show(citations) {
    const shown = JSON.stringify(citations);
    if (shown === this.#shown) return false;
    this.#shown = shown;
    this.value = citations;
    this.element.hidden = citations.length === 0;
    this.element.classList.toggle("dm-listed", citations.some(({ listed }) => listed));
    const withheld = citations.find((citation) => citation.withheld);
    const items = citations.map((citation) => {
      const isOpen = citation.listed && (!citation.withheld || citation === withheld); // the first of them says why
      return make("li", {}, makeSource(citation, isOpen, this.open, this.mark));
    });
    const list = make("ol", { class: "dm-citation-list" }, ...items);
    this.element.replaceChildren(...(citations.length === 0 ? [] : [make("p", { class: "dm-citations-title" }, "Sources"), list]));
    return true;
  }
}

/**
 * @param {Citation} citation
 * @param {boolean | undefined} isOpen
 * @param {((citation: Citation) => unknown) | null} open
 * @param {((citation: Citation) => unknown) | null} mark
 */
function makeSource(citation, isOpen, open, mark) {
  const heading = headingBelowTitle(citation);
  return make(
    "details",
    { class: "dm-citation", open: isOpen },
    make(
      "summary",
      {},
      make("span", { class: "dm-citation-number" }, `[${citation.number}]`),
      make("span", { class: "dm-citation-title", dir: "auto" }, citation.title),
      heading === "" ? "" : make("span", { class: "dm-citation-heading", dir: "auto" }, heading),
    ),
    citation.withheld
      ? make("p", { class: "dm-hint" }, citation.withheld)
      : make("blockquote", { class: "dm-citation-text", dir: "auto" }, citation.text),
    open !== null && !citation.withheld
      ? make("button", { type: "button", class: "dm-action dm-open-source", onclick: () => open(citation) }, "Open document")
      : null,
    mark !== null && citation.document_id !== undefined && !citation.withheld
      ? make("button", { type: "button", class: "dm-action dm-mark-source", onclick: () => mark(citation) }, "Answers this question")
      : null,
  );
}
