// What a model thought before it answered: folded above the answer, with how long it took.

import { make } from "../../shared/dom.js";
import { renderMarkdown, StreamingMarkdown } from "./markdown.js";
import { thoughtsLabel } from "./reply_texts.js";

const TICK_MS = 1000;

// The text is rendered only while it is open: most thoughts are never looked at, and they are long.
export class Thoughts {
  /** @type {StreamingMarkdown | null} while they are open and may grow */
  #growing = null;
  /** @type {ReturnType<typeof setInterval> | undefined} */
  #ticks;
  #startedAt = 0; // performance.now() at second 0, while the model thinks

  source = "";
  running = false;
  /** @type {number | null} */
  seconds = null;

  /** @param {import("./types.js").Message} message */
  constructor({ reasoning = "", reasoning_seconds: seconds = null }) {
    this.dots = make("span", { class: "dm-dots", hidden: true });
    this.label = make("span");
    this.text = make("div", { class: "dm-thoughts-text dm-markdown" });
    this.element = make(
      "details",
      { class: "dm-thoughts", hidden: true, ontoggle: () => this.#draw() },
      make("summary", {}, this.dots, this.label),
      this.text,
    );
    this.source = reasoning;
    this.seconds = seconds;
    this.#describe();
  }

  /**
   * Adds new thinking; `ended`: what comes next is the answer, or the end.
   * @param {string} text @param {{seconds: number | null, ended: boolean}} state @param {() => void} [onRendered]
   */
  append(text, { seconds, ended }, onRendered) {
    this.source += text;
    this.seconds = seconds;
    if (text !== "") this.#growing?.append(text, onRendered);
    if (ended) this.finish(seconds);
    else this.#run();
  }

  /** The thinking has ended. @param {number | null} seconds */
  finish(seconds = this.seconds) {
    clearInterval(this.#ticks);
    this.running = false;
    this.seconds = seconds;
    this.#growing?.finish();
    this.#growing = null;
    this.#describe();
  }

  #run() {
    this.#startedAt = performance.now() - 1000 * (this.seconds ?? 0);
    if (!this.running) {
      this.running = true;
      this.#ticks = setInterval(() => this.#tick(), TICK_MS);
      if (this.element.open) this.#draw();
    }
    this.#describe();
  }

  #tick() {
    if (!this.element.isConnected) clearInterval(this.#ticks); // another conversation is shown
    this.seconds = (performance.now() - this.#startedAt) / 1000;
    this.#describe();
  }

  #describe() {
    this.element.hidden = this.source === "";
    this.dots.hidden = !this.running;
    this.label.textContent = thoughtsLabel(this.seconds, this.running);
  }

  #draw() {
    if (!this.element.open) {
      this.#growing = null;
      this.text.replaceChildren();
    } else if (this.running) this.#growing = new StreamingMarkdown(this.text, this.source);
    else renderMarkdown(this.text, this.source);
  }
}
