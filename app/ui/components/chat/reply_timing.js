// The quiet line under a reply, and the popover that it opens: where the time of the reply went.

import { make } from "../../shared/dom.js";
import { TitledPopover } from "../../shared/popover.js";
import { duration, factsOf, phasesOf, quietLine } from "./reply_phases.js";

/** @typedef {import("./types.js").MessageStats} MessageStats */

export class ReplyTiming {
  /** @type {MessageStats | null} */
  #stats = null;
  #hasTools = false;

  /**
   * @param {number | null} contextLength
   * @param {string | null | undefined} model
   * @param {(model: string) => import("../../shared/page_options.js").DecodeLimit | null} limitOf
   * @param {(() => unknown) | null} read  shows the reply's prompt
   */
  constructor(contextLength, model, limitOf, read) {
    this.limitOf = limitOf;
    this.read = read;
    this.contextLength = contextLength;
    this.model = model;
    this.button = make("button", { type: "button", class: "dm-stats" });
    this.popover = new TitledPopover(this.button, "Where the time went", { name: "dm-timing", within: ".dm-scroll" }, () => this.#content());
    this.element = make("span", { class: "dm-stats-place", hidden: true }, this.button, this.popover.element);
  }

  /** @param {MessageStats | null | undefined} stats @param {boolean} hasTools  the reply has called tools */
  show(stats, hasTools) {
    this.#stats = stats ?? null;
    this.#hasTools = hasTools;
    this.element.hidden = !stats;
    this.button.textContent = stats ? quietLine(stats, this.contextLength) : "";
  }

  #content() {
    if (this.#stats === null) return [];
    const phases = phasesOf(this.#stats, this.#hasTools);
    const end = Math.max(1e-9, ...phases.map(({ start, ms }) => (start ?? 0) + (ms ?? 0)));
    const rows = phases.map(({ name, note, start, ms }) => {
      const bar = make("span", { class: "dm-timing-bar" });
      if (start !== null && ms !== null) {
        bar.style.marginInlineStart = `${(100 * start) / end}%`;
        bar.style.width = `${(100 * ms) / end}%`;
      } else bar.hidden = true;
      return make(
        "tr",
        { "data-total": name === "First token" },
        make("th", { scope: "row" }, name, make("span", { class: "dm-popover-note" }, note)),
        make("td", { class: "dm-timing-track" }, bar),
        make("td", { class: "dm-timing-ms dm-popover-number" }, ms === null ? "not known" : duration(ms)),
      );
    });
    const head = ["Phase", "When", "Took"].map((text) => make("th", { scope: "col" }, text));
    const facts = factsOf(this.#stats, this.contextLength, this.model ? this.limitOf(this.model) : null);
    if (this.model) facts.unshift(["Model", this.model]);
    return [
      make("table", { class: "dm-popover-table" }, make("thead", { class: "dm-hidden" }, make("tr", {}, ...head)), make("tbody", {}, ...rows)),
      make("dl", { class: "dm-timing-facts" }, ...facts.flatMap(([name, value]) => [make("dt", {}, name), make("dd", { dir: "auto" }, value)])),
      ...this.#reading(),
    ];
  }

  #reading() {
    const { read } = this;
    if (read === null) return [];
    const button = make("button", { type: "button", class: "dm-button dm-small" }, "What the model reads");
    button.addEventListener("click", () => {
      this.popover.hide();
      read();
    });
    return [make("div", { class: "dm-buttons dm-timing-read" }, button)];
  }
}
