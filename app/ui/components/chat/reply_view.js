// A reply. A streaming and a finished reply are the same element, rendered by the same code, so the page doesn't jump
// when a reply ends.

import { announce, make } from "../../shared/dom.js";
import { Citations } from "./citations.js";
import { CopyChoice } from "./copy_choice.js";
import { LensSwitch } from "./lens_switch.js";
import { Feedback } from "./feedback.js";
import { withFootnotes } from "./footnotes.js";
import { actionButton, MoreActions, versionRow } from "./message_actions.js";
import { ReplyBody } from "./reply_body.js";
import { ReplyEditor } from "./reply_editor.js";
import { endingNote, hasEnded, leftOutLine } from "./reply_texts.js";
import { ReplyTiming } from "./reply_timing.js";
import { SourcePreview } from "./source_preview.js";
import { Thoughts } from "./thoughts.js";

/** @typedef {import("./types.js").Message} Message */
/** @typedef {import("./types.js").End} End */

const SPOKEN_CHARACTERS = 1000; // how much of a finished reply is announced to screen readers
const PAUSE_MS = 1000; // a reply without a status that hasn't grown for this long is taken for finished

export class ReplyView {
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #pause;

  /** @param {Message} message @param {import("./types.js").Actions} actions */
  constructor(message, actions) {
    const { id } = message;
    this.leftOut = make("p", { class: "dm-left-out", hidden: !message.omitted_messages }, leftOutLine(message));
    this.waitingText = make("span");
    this.waiting = make("p", { class: "dm-waiting" }, make("span", { class: "dm-dots" }), this.waitingText);
    this.thoughts = new Thoughts(message);
    this.note = make("p", { class: "dm-note", hidden: true });
    this.copies = new CopyChoice(() => withFootnotes(this.source, this.citations.value));
    this.editor = new ReplyEditor(() => this.source, (text) => actions.rewrite(id, text), actions.draftKey(id));
    this.compare = actionButton("Compare", "Compare replies with other settings", () => actions.compare(id), "columns");
    this.resume = actionButton("Continue", "Continue this reply", () => actions.resume(id, this.#isLast), "next");
    this.resume.classList.add("dm-resume");
    this.feedback = new Feedback(message, actions);
    this.model = make("span", { class: "dm-reply-model", dir: "auto", hidden: !message.model, title: "The model that wrote this reply" }, message.model ?? "");
    this.timing = new ReplyTiming(message.context_length ?? null, message.model, actions.limitOf, actions.offers("prompt") ? () => actions.prompt(id) : null);
    const decide = actions.offers("decide") ? (/** @type {import("./types.js").Decision} */ decision) => actions.decide(id, decision) : null;
    this.body = new ReplyBody(message, decide);
    /** @type {((citation: import("./types.js").Citation) => unknown) | null} */
    const openSource = actions.offers("source") ? (citation) => actions.openSource(id, citation) : null;
    /** @type {((citation: import("./types.js").Citation) => unknown) | null} */
    const mark = actions.offers("mark") ? (citation) => actions.mark(id, citation) : null;
    this.citations = new Citations(message.citations, openSource, mark);
    this.preview = new SourcePreview(this.body.element, (number) => this.citations.find(number), openSource);
    this.lens = new LensSwitch(id, this.body.element, actions);
    /** @template Element @param {string} name @param {Element} element */
    const offered = (name, element) => (actions.offers(name) ? element : null);
    const again = actionButton("Try again", "Try again: write another reply", () => actions.regenerate(id), "again");
    again.classList.add("dm-again");
    again.title = again.ariaLabel ?? ""; // where the row is narrow, it is an icon
    const more = new MoreActions([
      offered("compare", this.compare),
      offered("rewrite", this.editor.button),
      offered("lens", this.lens.button),
      offered("branch", actionButton("Branch", "Branch: start a new conversation from here", () => actions.branch(id), "branch")),
      offered("delete", actionButton("Delete", "Delete this reply and everything after it", () => actions.remove(id), "delete")),
    ]);
    this.foot = make(
      "footer",
      { class: "dm-foot", hidden: true },
      offered("version", versionRow(message, actions)),
      offered("resume", this.resume),
      offered("copy", this.copies.element),
      offered("rate", this.feedback.buttons),
      offered("regenerate", again),
      ...more.elements,
      make("span", { class: "dm-facts" }, this.model, this.timing.element),
    );
    this.element = make(
      "article",
      { class: "dm-message dm-reply", "aria-label": "Reply", "data-id": id },
      this.leftOut,
      this.waiting,
      this.thoughts.element,
      this.body.element,
      this.editor.element,
      this.lens.element,
      this.citations.element,
      this.note,
      this.foot,
      offered("rate", this.feedback.details),
    );
    if (message.status === "streaming") {
      this.#showWaiting("Thinking");
      this.element.setAttribute("aria-busy", "true");
      this.element.dataset.status = "streaming";
    } else {
      this.#close(message);
      if (actions.offers("rewrite") && !this.editor.button.hidden) this.editor.restore();
    }
  }

  /** The text so far. */
  get source() {
    return this.body.source;
  }

  /** @param {string} text @param {() => void} [onRendered] */
  append(text, onRendered) {
    this.lens.close(); // it shows the text before
    this.body.append(text, onRendered);
    if (!this.waiting.hidden) this.waiting.hidden = true;
  }

  /**
   * Adds what the model thinks before it answers.
   * @param {string} text @param {{seconds: number | null, ended: boolean}} state @param {() => void} [onRendered]
   */
  think(text, state, onRendered) {
    this.thoughts.append(text, state, onRendered);
    this.waiting.hidden = true;
  }

  /** Shows a call of a tool, new or changed. @param {import("./types.js").ToolUse} use @param {() => void} [onRendered] */
  toolUse(use, onRendered) {
    this.body.toolUse(use);
    this.waiting.hidden = true;
    onRendered?.();
  }

  /** Shows what the reply cites so far. @param {import("./types.js").Citation[]} citations */
  cite(citations) {
    if (this.citations.show(citations)) this.body.cite(citations);
  }

  /** @param {{processed: number, total: number}} progress */
  progress({ processed, total }) {
    if (this.#isEmpty && total > 0) this.#showWaiting(`Reading ${Math.floor((100 * processed) / total)} %`);
  }

  /** @param {string} message */
  notice(message) {
    this.note.textContent = message;
    this.note.hidden = message === "";
  }

  /** @param {End} end */
  end(end) {
    this.#close(end);
    this.#settle();
  }

  /**
   * Shows a later state of the message: more text, its end, its statistics.
   * @param {Message} message
   * @param {() => void} onRendered
   */
  update(message, onRendered) {
    const { reasoning = "", reasoning_seconds: seconds = null } = message;
    const ended = message.content !== "" || message.status !== "streaming";
    if (reasoning !== this.thoughts.source) this.think(reasoning.slice(this.thoughts.source.length), { seconds, ended }, onRendered);
    const added = message.content.slice(this.source.length);
    if (added !== "") this.append(added, onRendered);
    for (const use of message.tool_uses ?? []) this.toolUse(use);
    this.cite(message.citations ?? []);
    this.feedback.show(message.feedback);
    if (message.status === "streaming") return;
    if (message.mayGrow && added !== "") {
      this.#close(message);
      clearTimeout(this.#pause);
      this.#pause = setTimeout(() => this.#settle(), PAUSE_MS);
    } else if (this.body.isGrowing) {
      this.end(message);
      onRendered();
    } else {
      this.#close(message);
      onRendered();
    }
  }

  /** Whether no message follows it. */
  get #isLast() {
    return this.element.matches(":last-child");
  }

  get #isEmpty() {
    return this.source === "" && this.thoughts.source === "" && !this.body.hasTools;
  }

  /** @param {string} text */
  #showWaiting(text) {
    this.waiting.hidden = !this.#isEmpty;
    this.waitingText.textContent = text;
  }

  /** Renders the whole text as final and announces it. */
  #settle() {
    clearTimeout(this.#pause);
    this.body.finish();
    if (!this.element.isConnected) return;
    const spoken = this.body.spoken(2 * SPOKEN_CHARACTERS);
    const cut = spoken.length > SPOKEN_CHARACTERS ? `${spoken.slice(0, SPOKEN_CHARACTERS)} …` : spoken;
    announce(`Reply: ${cut} ${this.note.textContent}`);
  }

  /** Shows how the reply ended, and its actions. @param {End} end */
  #close({ status = "complete", stats, error, reasoning_seconds: seconds }) {
    this.thoughts.finish(seconds ?? this.thoughts.seconds);
    this.element.removeAttribute("aria-busy");
    this.element.dataset.status = status;
    this.waiting.hidden = true;
    this.body.close();
    this.notice(endingNote(status, error, this.source === "" && !this.body.hasTools, this.thoughts.source !== ""));
    this.timing.show(stats, this.body.hasTools);
    this.copies.element.hidden = this.lens.button.hidden = this.source.trim() === "";
    this.editor.button.hidden = this.source.trim() === "" || this.body.hasTools;
    this.resume.hidden = (status === "complete" && hasEnded(stats)) || (this.source.trim() === "" && this.thoughts.source === "" && !this.body.hasTools);
    this.foot.hidden = false;
  }
}
