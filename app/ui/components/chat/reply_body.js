// The text of a reply, with a card for each call of a tool where the text stood when the model made it.

import { make } from "../../shared/dom.js";
import { markCitations } from "./citation_marks.js";
import { renderMarkdown, StreamingMarkdown } from "./markdown.js";
import { textOf } from "./math.js";
import { ToolCard } from "./tool_card.js";

/** @typedef {import("./types.js").ToolUse} ToolUse */
/** @typedef {import("./types.js").Decision} Decision */
/** @typedef {import("./types.js").Citation} Citation */

export class ReplyBody {
  /** @type {StreamingMarkdown | null} the last text, while it may grow */
  #growing = null;
  #tailStart = 0; // where the last text begins in the source
  #lastRound = -1;
  /** @type {HTMLElement | null} the cards of the last round */
  #group = null;
  /** @type {Map<string, ToolCard>} by the call's id */
  #cards = new Map();
  /** @type {Citation[]} */
  #citations = [];

  source = "";

  /**
   * @param {import("./types.js").Message} message
   * @param {((decision: Decision) => unknown) | null} decide  null: nothing can be decided here
   */
  constructor({ content, status, tool_uses: uses = [], citations = [] }, decide) {
    this.decide = decide;
    this.#citations = citations;
    this.tail = makeText();
    this.element = make("div", { class: "dm-reply-body" }, this.tail);
    this.source = content;
    if (status === "streaming") this.#growing = this.#grow(content);
    else renderMarkdown(this.tail, content, this.#mark);
    for (const use of uses) this.toolUse(use);
  }

  get isGrowing() {
    return this.#growing !== null;
  }

  get hasTools() {
    return this.#cards.size > 0;
  }

  /** The text for a screen reader, or its beginning of at least `length`. @param {number} length */
  spoken(length) {
    const texts = [...this.element.querySelectorAll(":scope > .dm-text")].map((text) => textOf(text, length).trim());
    const waiting = [...this.#cards.values()].some(({ isWaiting }) => isWaiting) ? "A tool waits for your decision." : "";
    return [...texts, waiting].filter((text) => text !== "").join(" ");
  }

  /** @param {string} text @param {() => void} [onRendered] */
  append(text, onRendered) {
    this.#growing ??= this.#grow(this.source.slice(this.#tailStart));
    this.source += text;
    this.#growing.append(text, onRendered);
  }

  /** The reply cites these now: their numbers become buttons, also those in the text so far. @param {Citation[]} citations */
  cite(citations) {
    this.#citations = citations;
    this.#mark(this.element);
  }

  #mark = (/** @type {ParentNode & Node} */ part) => markCitations(part, this.#citations);

  /** @param {string} text */
  #grow(text) {
    return new StreamingMarkdown(this.tail, text, this.#mark);
  }

  /** Shows a call, new or changed. @param {ToolUse} use */
  toolUse(use) {
    const shown = this.#cards.get(use.id);
    if (shown) {
      shown.show(use);
      return;
    }
    const card = new ToolCard(use, this.decide ? () => this.#sendDecision() : null);
    this.#cards.set(use.id, card);
    this.#groupOf(use).append(card.element);
  }

  /** The reply has ended, so that what waits can be decided about, and nothing runs any more. */
  close() {
    for (const card of this.#cards.values()) card.close();
  }

  /** Renders the whole text as final. */
  finish() {
    this.#growing?.finish();
    this.#growing = null;
  }

  /** The element for the cards of a call's round; splits the text where a new round stands. @param {ToolUse} use */
  #groupOf({ round = 0, at = 0 }) {
    if (this.#group && round === this.#lastRound) return this.#group;
    this.#lastRound = round;
    const boundary = Math.max(this.#tailStart, [...this.source].slice(0, at).join("").length);
    const before = this.source.slice(this.#tailStart, boundary);
    const after = this.source.slice(boundary);
    const grows = this.#growing !== null;
    this.finish();
    renderMarkdown(this.tail, before, this.#mark);
    this.tail.hidden = before.trim() === "";
    this.#group = make("div", { class: "dm-tools" });
    this.tail = makeText();
    this.#tailStart = boundary;
    this.element.append(this.#group, this.tail);
    if (grows) this.#growing = this.#grow(after);
    else renderMarkdown(this.tail, after, this.#mark);
    return this.#group;
  }

  /** Sends the decision, once the user has decided about every call that waits. */
  #sendDecision() {
    const cards = [...this.#cards.values()].filter(({ isWaiting }) => isWaiting);
    if (cards.some(({ decision }) => decision === null)) return;
    /** @type {Decision} */
    const decision = { allow: [], allow_for_chat: [], deny: [] };
    for (const { use, decision: decided } of cards) if (decided) decision[decided].push(use.id);
    for (const card of cards) card.setBusy(true);
    Promise.resolve(this.decide?.(decision)).finally(() => {
      for (const card of cards) card.setBusy(false); // of a decision that was refused: it can be made again
    });
  }
}

const makeText = () => make("div", { class: "dm-text dm-markdown" });
