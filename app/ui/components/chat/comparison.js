// Several replies to one message side by side, each under the settings in which it differs from the others.

import { announce, make } from "../../shared/dom.js";
import { markDifferences, unmark } from "./difference_marks.js";
import { headingsOf, letterOf } from "./difference_texts.js";
import { ReplyView } from "./reply_view.js";

/** @import { VersionView } from "../../shared/api_types.js" */
/** @import { Actions } from "./types.js" */

const OFFERED = new Set(["copy", "source"]); // all else is offered once one of the replies is kept

/** @typedef {{version: VersionView, reply: ReplyView, said: HTMLElement, keep: HTMLButtonElement | null}} Column */

export class Comparison {
  #wasWriting = false;

  /** @param {VersionView[]} versions @param {Actions} actions */
  constructor(versions, actions) {
    const headings = headingsOf(versions);
    const inColumn = { ...actions, offers: (/** @type {string} */ name) => OFFERED.has(name) && actions.offers(name) };
    /** @type {Column[]} */
    this.columns = versions.map((version) => ({
      version,
      reply: new ReplyView({ ...version.message, siblings: [] }, inColumn),
      said: make("p", { class: "dm-column-differs", role: "status" }),
      keep: actions.offers("compare") ? this.#keepButton(version.message.id, actions) : null,
    }));
    this.marks = make("button", { type: "button", class: "dm-chip dm-mark-differences", "aria-pressed": "true", onclick: () => this.#toggle() }, "Mark differences");
    this.row = make(
      "div",
      { class: "dm-columns", tabindex: "0", role: "group", "aria-label": "Replies side by side" },
      ...this.columns.map((column, index) => this.#column(column, index, headings[index])),
    );
    this.element = make(
      "section",
      { class: "dm-comparison", "aria-label": `Comparison of ${versions.length} replies`, "data-id": versions[0].message.id },
      make("div", { class: "dm-comparison-bar" }, make("h2", {}, `${versions.length} replies side by side`), this.marks),
      this.row,
    );
    this.update();
  }

  /** Call when a reply has ended: once all have, their differences are marked and one can be kept. */
  update() {
    const isWriting = this.columns.some(({ reply }) => reply.element.getAttribute("aria-busy") === "true");
    for (const { keep } of this.columns) if (keep) keep.disabled = isWriting;
    this.marks.disabled = isWriting;
    this.#wasWriting ||= isWriting;
    if (isWriting) return;
    this.#mark();
    if (this.#wasWriting) announce("All replies are complete."); // not where an old comparison is opened
  }

  get #isMarking() {
    return this.marks.getAttribute("aria-pressed") === "true";
  }

  #toggle() {
    this.marks.setAttribute("aria-pressed", String(!this.#isMarking));
    this.#mark();
  }

  #mark() {
    const bodies = this.columns.map(({ reply }) => reply.body.element);
    for (const body of bodies) unmark(body);
    const said = this.#isMarking ? markDifferences(bodies) : [];
    for (const [index, { said: place }] of this.columns.entries()) place.textContent = said[index] ?? "";
  }

  /** @param {Column} column @param {number} index @param {string} heading */
  #column({ version, reply, said, keep }, index, heading) {
    const { seed, model } = version.message;
    const facts = [seed === null || seed === undefined ? "" : `Seed ${seed}`, model ?? ""].filter((fact) => fact !== "");
    reply.model.hidden = true; // it stands above
    return make(
      "div",
      { class: "dm-column" },
      make("h3", { class: "dm-column-heading" }, make("span", { class: "dm-column-letter" }, letterOf(index)), make("span", { dir: "auto" }, heading)),
      make("p", { class: "dm-column-facts" }, facts.join(" · ")),
      reply.element,
      said,
      keep,
    );
  }

  /** @param {string} id @param {Actions} actions */
  #keepButton(id, actions) {
    return make("button", { type: "button", class: "dm-button dm-small dm-keep", onclick: () => actions.keep(id) }, "Keep this one");
  }
}
