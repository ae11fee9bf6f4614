// A reply through the lens: each token tinted and underlined by how surprising it was, and the same as a table. The
// tokens are shown as the model wrote them; what Markdown makes of them is seen, and its marks step back.

import { make } from "../../shared/dom.js";
import { markupClasses, markupOf } from "./lens_markup.js";
import { LensPopover } from "./lens_popover.js";
import { degree, entropyText, LEGEND, settingName, shareText, tokenLabel, visibleText } from "./lens_texts.js";

/** @import { LensChoice, LensToken, LensView as Lens } from "../../shared/api_types.js" */

const SHOW_MS = 200; // not for a pointer that only passes

export class LensView {
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #timer;
  /** @type {Map<number, Promise<LensChoice>>} */
  #choices = new Map();

  /**
   * @param {Lens} lens
   * @param {{choice: (index: number) => Promise<LensChoice>, branch: (index: number, tokenId: number) => unknown}} actions
   */
  constructor(lens, actions) {
    this.lens = lens;
    this.actions = actions;
    this.popover = new LensPopover(lens.settings, (index, tokenId) => actions.branch(index, tokenId));
    const markup = markupOf(lens.tokens.map(({ text }) => text).join(""));
    let at = 0;
    this.marks = lens.tokens.map((token, index) => {
      const bits = markup.subarray(at, (at += token.text.length));
      return this.#mark(token, index, bits);
    });
    this.text = make("div", { class: "dm-lens-text", role: "group", dir: "auto", "aria-label": "Tokens of the reply. Arrow keys move, Enter shows the alternatives." });
    this.marks.forEach((mark, index) => this.text.append(mark, ...breaksAfter(lens.tokens[index].text)));
    this.#listen();
    this.element = make("div", { class: "dm-lens-view" }, this.#head(), this.text, this.#table());
  }

  close() {
    clearTimeout(this.#timer);
    this.popover.close();
  }

  #head() {
    const { model, approximate } = this.lens;
    const legend = LEGEND.map((name, step) => make("li", { class: "dm-lens-key", "data-degree": String(step) }, name));
    const note = approximate
      ? `Approximate: computed with ${model} from the text alone, because another model wrote it or its tokens are not known.`
      : "";
    return make(
      "div",
      { class: "dm-lens-head" },
      make("p", { class: "dm-lens-title" }, "How likely each token was"),
      make("ul", { class: "dm-lens-legend", "aria-label": "Legend" }, ...legend),
      make("p", { class: "dm-lens-note", hidden: note === "" }, note),
    );
  }

  /** @param {LensToken} token @param {number} index @param {Uint8Array} bits  of its characters, see markupOf */
  #mark(token, index, bits) {
    const share = Math.exp(token.logprob);
    return make(
      "span",
      {
        class: "dm-lens-token",
        role: "button",
        tabindex: index === 0 ? "0" : "-1",
        "aria-label": tokenLabel(token),
        "aria-haspopup": "dialog",
        "data-degree": String(degree(share)),
        "data-removed": token.kept_logprob === null,
        "data-index": String(index),
      },
      ...runs(token.text, bits),
    );
  }

  #listen() {
    const text = this.text;
    text.addEventListener("pointerover", (event) => {
      const mark = markAt(event.target);
      if (!mark || event.pointerType === "touch" || this.popover.isPinned) return;
      clearTimeout(this.#timer);
      this.#timer = setTimeout(() => this.#open(mark, false), SHOW_MS);
    });
    text.addEventListener("pointerout", (event) => {
      if (event.pointerType === "touch") return;
      clearTimeout(this.#timer);
      this.popover.leaveSoon();
    });
    text.addEventListener("click", ({ target }) => {
      const mark = markAt(target);
      if (mark) this.#open(mark, true);
    });
    text.addEventListener("focusin", ({ target }) => {
      const mark = markAt(target);
      if (mark) for (const other of this.marks) other.tabIndex = other === mark ? 0 : -1;
    });
    text.addEventListener("keydown", (event) => {
      const mark = markAt(event.target);
      if (mark) this.#press(event, this.marks.indexOf(mark));
    });
  }

  /** @param {KeyboardEvent} event @param {number} at */
  #press(event, at) {
    const last = this.marks.length - 1;
    /** @type {Record<string, number>} */
    const places = { ArrowLeft: at - 1, ArrowRight: at + 1, ArrowUp: at - 1, ArrowDown: at + 1, Home: 0, End: last };
    if (event.key === "Enter" || event.key === " ") this.#open(this.marks[at], true);
    else if (event.key in places) this.marks[Math.max(0, Math.min(last, places[event.key]))].focus();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  /** @param {HTMLElement} mark @param {boolean} pinned  it stays until it is closed */
  #open(mark, pinned) {
    clearTimeout(this.#timer);
    const index = Number(mark.dataset.index);
    let choice = this.#choices.get(index);
    if (!choice) {
      choice = this.actions.choice(index);
      this.#choices.set(index, choice);
      choice.catch(() => this.#choices.delete(index)); // it can be tried again
    }
    this.popover.open(mark, { index, token: this.lens.tokens[index], choice, pinned });
  }

  #table() {
    const details = make("details", { class: "dm-lens-table" }, make("summary", {}, "As a table"));
    details.addEventListener("toggle", () => {
      if (details.open && details.childElementCount === 1) details.append(table(this.lens));
    });
    return details;
  }
}

/** @param {Lens} lens */
function table({ tokens, settings }) {
  const after = settings.temperature === 0 ? `After the settings (${settingName("temperature")})` : "After the settings";
  const names = ["Token", "Probability", after, "Left to choose from", "Entropy"];
  const rows = tokens.map((token) =>
    make(
      "tr",
      {},
      make("th", { scope: "row" }, visibleText(token.text)),
      make("td", {}, shareText(Math.exp(token.logprob))),
      make("td", {}, token.kept_logprob === null ? "removed" : shareText(Math.exp(token.kept_logprob))),
      make("td", {}, String(token.num_kept)),
      make("td", {}, entropyText(token.entropy)),
    ),
  );
  const head = make("tr", {}, ...names.map((name) => make("th", { scope: "col" }, name)));
  return make("div", { class: "dm-lens-scroll", tabindex: "0", role: "region", "aria-label": "Tokens of the reply" }, make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows)));
}

/** A token's text, in parts that look alike. @param {string} text @param {Uint8Array} bits */
function* runs(text, bits) {
  for (let start = 0, end = 1; start < text.length; start = end++) {
    while (end < text.length && bits[end] === bits[start]) end++;
    const part = text.slice(start, end).replaceAll("\n", "⏎");
    yield bits[start] === 0 ? part : make("span", { class: markupClasses(bits[start]) }, part);
  }
}

/** @param {string} text */
const breaksAfter = (text) => Array.from({ length: text.split("\n").length - 1 }, () => make("br"));

/** @param {EventTarget | null} target @returns {HTMLElement | null} */
const markAt = (target) => (target instanceof Element ? target.closest(".dm-lens-token") : null);
