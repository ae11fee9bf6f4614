// The choice of one token: its alternatives as bars, what removed each, and sliders that redraw them at once.

import { make, uniqueId } from "../../shared/dom.js";
import { placeBeside } from "../../shared/popover.js";
import { choose, ownShares, readScores } from "./lens_filters.js";
import { entropyText, settingName, shareText, visibleText } from "./lens_texts.js";

/** @import { LensChoice, LensSettings, LensToken } from "../../shared/api_types.js" */

/**
 * @typedef {object} Shown
 * @property {number} index
 * @property {LensToken} token
 * @property {Promise<LensChoice>} choice
 * @property {boolean} pinned
 */

const HIDE_MS = 300; // enough to move the pointer from the token onto the popover
const SHEET_WIDTH = 600; // pixels: in narrower windows it is a sheet at the lower edge

/** @type {{name: "temperature" | "top_k" | "top_p" | "min_p" | "typical_p", label: string, max: number, step: number}[]} */
const SLIDERS = [
  { name: "temperature", label: "Temperature", max: 2, step: 0.05 },
  { name: "top_k", label: "Top-k", max: 100, step: 1 },
  { name: "top_p", label: "Top-p", max: 1, step: 0.01 },
  { name: "min_p", label: "Min-p", max: 1, step: 0.01 },
  { name: "typical_p", label: "Typical-p", max: 1, step: 0.01 },
];

/** One alternative: its probability before and after the settings, or what removed it. */
class Bar {
  /** @param {{id: number, text: string}} alternative @param {boolean} isChosen @param {() => unknown} branch */
  constructor({ id, text }, isChosen, branch) {
    this.id = id;
    this.text = visibleText(text);
    this.isChosen = isChosen;
    this.own = make("span", { class: "dm-lens-bar dm-lens-own" });
    this.left = make("span", { class: "dm-lens-bar dm-lens-left" });
    this.words = make("span", { class: "dm-lens-share" });
    this.fate = make("span", { class: "dm-hidden" });
    this.button = make(
      "button",
      { type: "button", class: "dm-lens-alternative", disabled: isChosen, "aria-current": isChosen ? "true" : null, onclick: branch },
      make("span", { class: "dm-lens-word" }, this.text),
      make("span", { class: "dm-lens-track", "aria-hidden": "true" }, this.own, this.left),
      this.words,
      this.fate,
    );
    this.element = make("li", {}, this.button);
  }

  /** @param {number} own @param {number} left  shares @param {string | null} cause */
  draw(own, left, cause) {
    this.own.style.width = `${100 * own}%`;
    this.left.style.width = `${100 * left}%`;
    this.button.dataset.removed = String(cause !== null);
    this.words.textContent = cause === null ? `${shareText(own)} → ${shareText(left)}` : `${shareText(own)}, ${settingName(cause)}`;
    this.left.hidden = cause !== null;
    this.fate.textContent = `${cause === null ? "after the settings" : "removed it"}. ${this.isChosen ? "Chosen." : "Branch here."}`;
  }
}

export class LensPopover {
  /** @type {HTMLElement | null} the token whose choice is shown */
  #mark = null;
  /** @type {HTMLElement | null} */
  #element = null;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #timer;
  isPinned = false;

  /**
   * @param {LensSettings} settings  those of the reply
   * @param {(index: number, tokenId: number) => unknown} branch
   */
  constructor(settings, branch) {
    this.given = settings;
    this.settings = { ...settings }; // as the sliders have been moved, for all tokens
    this.branch = branch;
  }

  /** @param {HTMLElement} mark @param {Shown} shown */
  async open(mark, shown) {
    clearTimeout(this.#timer);
    if (this.#mark !== mark) {
      this.close();
      this.#mark = mark;
      mark.dataset.open = "true";
      this.#element = this.#make(shown.token);
      document.body.append(this.#element);
      this.#element.showPopover?.(); // above dialogs and panels
      document.addEventListener("scroll", this.#place, { capture: true, passive: true });
      document.addEventListener("pointerdown", this.#leave);
      document.addEventListener("keydown", this.#escape, { capture: true });
      this.#place();
    }
    const element = this.#element;
    this.isPinned ||= shown.pinned;
    if (shown.pinned) element?.focus({ preventScroll: true });
    try {
      const choice = await shown.choice;
      const body = element?.querySelector(".dm-lens-body");
      if (body && element === this.#element && body.childElementCount <= 1) body.replaceChildren(...(await this.#content(shown, choice)));
    } catch (error) {
      const body = element?.querySelector(".dm-lens-body");
      body?.replaceChildren(make("p", { role: "alert" }, error instanceof Error ? error.message : String(error)));
    }
    if (element === this.#element) this.#place();
  }

  leaveSoon() {
    if (!this.isPinned) this.#timer = setTimeout(() => this.close(), HIDE_MS);
  }

  close() {
    clearTimeout(this.#timer);
    document.removeEventListener("scroll", this.#place, { capture: true });
    document.removeEventListener("pointerdown", this.#leave);
    document.removeEventListener("keydown", this.#escape, { capture: true });
    if (this.#mark) {
      delete this.#mark.dataset.open;
      if (this.#element?.contains(document.activeElement)) this.#mark.focus({ preventScroll: true });
    }
    this.#element?.remove();
    this.#mark = this.#element = null;
    this.isPinned = false;
  }

  /** @param {LensToken} token */
  #make({ text }) {
    const title = uniqueId("dm-lens-title");
    return make(
      "div",
      {
        class: "dm-component dm-popover dm-lens-popover",
        popover: "manual",
        role: "dialog",
        tabindex: "-1",
        "aria-labelledby": title,
        onpointerenter: () => clearTimeout(this.#timer),
        onpointerleave: () => this.leaveSoon(),
      },
      make(
        "div",
        { class: "dm-lens-top" },
        make("p", { class: "dm-lens-name", id: title }, make("span", { class: "dm-hidden" }, "Alternatives to "), make("q", {}, visibleText(text))),
        make("button", { type: "button", class: "dm-action dm-lens-close", onclick: () => this.close() }, "Close"),
      ),
      make("div", { class: "dm-lens-body" }, make("p", { class: "dm-lens-loading" }, "Reading the choice …")),
    );
  }

  /** @param {Shown} shown @param {LensChoice} choice */
  async #content({ index, token }, choice) {
    const scores = readScores(await inflate(choice.row.data), choice.row, this.given);
    const own = ownShares(scores);
    const facts = make("p", { class: "dm-lens-facts", "aria-live": "polite" });
    const bars = choice.alternatives.map((alternative) => new Bar(alternative, alternative.id === token.id, () => this.#branch(index, alternative.id)));
    const removedByServer = new Map(choice.alternatives.map(({ id, removed_by: cause }) => [id, cause]));
    const draw = () => {
      const left = choose(scores, this.settings);
      facts.textContent = `${shareText(own[token.id])} by the model, ${shareText(left.weights[token.id] / (left.total || 1))} after the settings. Entropy ${entropyText(token.entropy)}; ${left.count.toLocaleString("en")} of ${own.length.toLocaleString("en")} tokens left.`;
      for (const bar of bars) {
        let cause = left.removedBy(bar.id);
        if (cause === "forbidden_words") cause = removedByServer.get(bar.id) ?? cause; // the server knows what forbade it
        bar.draw(own[bar.id], left.weights[bar.id] / (left.total || 1), cause);
      }
    };
    draw();
    return [facts, make("ol", { class: "dm-lens-bars" }, ...bars.map(({ element }) => element)), this.#sliders(draw)];
  }

  /** @param {() => void} draw */
  #sliders(draw) {
    /** @type {(() => void)[]} */
    const resets = [];
    const rows = SLIDERS.map(({ name, label, max, step }) => {
      const output = make("output", { class: "dm-lens-value" });
      const input = make("input", { type: "range", min: "0", max: String(max), step: String(step), "aria-label": label });
      const say = () => (output.textContent = name === "top_k" && this.settings[name] === 0 ? "off" : String(Math.round(this.settings[name] * 100) / 100));
      const reset = () => {
        input.value = String(this.settings[name]);
        say();
      };
      input.addEventListener("input", () => {
        this.settings[name] = Number(input.value);
        say();
        draw();
      });
      resets.push(reset);
      reset();
      return make("label", { class: "dm-lens-slider" }, make("span", {}, label), input, output);
    });
    const reset = make("button", { type: "button", class: "dm-action" }, "Reset");
    reset.addEventListener("click", () => {
      Object.assign(this.settings, this.given);
      for (const each of resets) each();
      draw();
    });
    return make("fieldset", { class: "dm-lens-sliders" }, make("legend", {}, "What if"), ...rows, reset);
  }

  /** @param {number} index @param {number} tokenId */
  #branch(index, tokenId) {
    this.close();
    return this.branch(index, tokenId);
  }

  /** Puts the popover below its token, or above it where there is more room. */
  #place = () => {
    if (!this.#mark || !this.#element) return;
    if (!this.#mark.isConnected) {
      this.close();
      return;
    }
    const { style } = this.#element;
    if (innerWidth < SHEET_WIDTH) style.top = style.left = "";
    else placeBeside(this.#element, this.#mark.getClientRects()[0] ?? this.#mark.getBoundingClientRect());
  };

  /** Escape closes the popover, and nothing else. @param {KeyboardEvent} event */
  #escape = (event) => {
    if (event.key !== "Escape") return;
    event.preventDefault(); // it would also stop a reply
    event.stopPropagation();
    this.close();
  };

  /** A tap elsewhere closes it. @param {PointerEvent} event */
  #leave = ({ target }) => {
    if (target instanceof Node && !this.#element?.contains(target) && !this.#mark?.contains(target)) this.close();
  };
}

/** @param {string} data  base64 of a zlib stream @returns {Promise<Uint8Array>} */
async function inflate(data) {
  const bytes = Uint8Array.from(atob(data), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}
