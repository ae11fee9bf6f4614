// The messages of the open conversation. A streaming and a finished reply are the same element, rendered by
// the same code, so the page doesn't jump when a reply ends.

import { copyText, renderMarkdown, StreamingMarkdown } from "./markdown.js";
import { announce, byId, make } from "../../shared/dom.js";
import { Feedback } from "./feedback.js";
import { actionButton, versionSwitcher } from "./message_actions.js";
import { userMessage } from "./user_message.js";

const SPOKEN_CHARACTERS = 1000; // how much of a finished reply is announced to screen readers

const ENDINGS = { stop: "ended by itself", stop_string: "reached a stop string", length: "reached its maximum length", abort: "stopped", error: "failed", deadline: "timed out" };
const ENDED = new Set(["stop", "stop_string"]); // finish reasons that leave nothing to continue

const number = new Intl.NumberFormat("en");
const plural = (count, word) => `${number.format(count)} ${word}${count === 1 ? "" : "s"}`;

function whyEnded(stats, contextLength) {
  const full = contextLength !== null && stats.prompt_tokens + stats.completion_tokens >= contextLength;
  if (stats.finish_reason === "length" && full) return "reached the end of the model's context";
  return ENDINGS[stats.finish_reason] ?? stats.finish_reason;
}

// "212 tokens · first after 0.31 s · 24.1 tokens/s · 96 of 120 prompt tokens cached · ended by itself"
function statsLine(stats, contextLength) {
  const parts = [plural(stats.completion_tokens, "token")];
  if (stats.completion_tokens > 0) parts.push(`first after ${(stats.ttft_ms / 1000).toFixed(2)} s`);
  if (stats.tokens_per_second > 0) parts.push(`${stats.tokens_per_second.toFixed(1)} tokens/s`);
  const read = plural(stats.prompt_tokens, "prompt token");
  // Not every model server reports its cached tokens.
  parts.push(stats.cached_prompt_tokens === null ? read : `${number.format(stats.cached_prompt_tokens)} of ${read} cached`);
  parts.push(whyEnded(stats, contextLength));
  return parts.join(" · ");
}

const NOTES = {
  stopped: "Stopped. The text so far was kept.",
  interrupted: "Interrupted: Deskmate was shut down before the reply was complete. The text saved so far is shown.",
};

function ending(status, error, empty) {
  if (status === "error") return `The reply failed. ${error ?? ""}`.trim();
  if (status === "interrupted" && error) return `Interrupted. ${error} The text so far was kept.`;
  return NOTES[status] ?? (empty ? "The reply is empty." : "");
}

function leftOutLine({ omitted_messages: count, context_length: contextLength, has_system_prompt: prompted }) {
  const [messages, fit, were] = count === 1 ? ["message", "fits", "was"] : ["messages", "fit", "were"];
  const context = contextLength ? `the model's ${number.format(contextLength)} tokens` : "the model's context";
  const kept = prompted ? "; the system prompt was kept" : "";
  return `${number.format(count)} earlier ${messages} no longer ${fit} ${context} and ${were} left out${kept}.`;
}

export class ReplyView {
  // `actions`: resume(id), regenerate(id), branch(id), remove(id), show(id, step), onError(error).
  constructor(message, actions) {
    this.contextLength = message.context_length ?? null;
    this.leftOut = make("p", { class: "dm-left-out", hidden: !message.omitted_messages });
    if (message.omitted_messages) this.leftOut.textContent = leftOutLine(message);
    this.waiting = make("p", { class: "dm-waiting" }, make("span", { class: "dm-dots" }), make("span", {}));
    this.text = make("div", { class: "dm-text dm-markdown" });
    this.note = make("p", { class: "dm-note", hidden: true });
    this.copy = actionButton("Copy", "Copy reply", () => copyText(this.source, this.copy), "copy");
    this.resume = actionButton("Continue", "Continue this reply", () => actions.resume(message.id), "next");
    this.resume.classList.add("dm-resume");
    this.feedback = new Feedback(message, actions.onError);
    this.stats = make("span", { class: "dm-stats" });
    this.foot = make(
      "footer",
      { class: "dm-foot", hidden: true },
      versionSwitcher(message, actions.show),
      this.resume,
      this.copy,
      this.feedback.buttons,
      actionButton("Try again", "Try again: write another reply", () => actions.regenerate(message.id), "again"),
      actionButton("Branch", "Branch: start a new conversation from here", () => actions.branch(message.id), "branch"),
      actionButton("Delete", "Delete this reply and everything after it", () => actions.remove(message.id), "delete"),
      this.stats,
    );
    this.element = make(
      "article",
      { class: "dm-message dm-reply", "aria-label": "Reply", "data-id": message.id },
      this.leftOut,
      this.waiting,
      this.text,
      this.note,
      this.foot,
      this.feedback.details,
    );
    this.source = message.content;
    if (message.status === "streaming") {
      this.growing = new StreamingMarkdown(this.text, message.content);
      this.#showWaiting("Thinking");
      this.element.setAttribute("aria-busy", "true");
      this.element.dataset.status = "streaming";
    } else {
      renderMarkdown(this.text, message.content);
      this.#close(message);
    }
  }

  append(text, onRendered) {
    this.source += text;
    this.waiting.hidden = true;
    this.growing.append(text, onRendered);
  }

  progress({ processed, total }) {
    if (this.source === "" && total > 0) this.#showWaiting(`Reading ${Math.floor((100 * processed) / total)} %`);
  }

  notice(message) {
    this.note.textContent = message;
    this.note.hidden = message === "";
  }

  end({ status, stats, error }) {
    this.growing.finish();
    this.element.removeAttribute("aria-busy");
    this.#close({ status, stats, error });
    const spoken = this.text.textContent.trim();
    const cut = spoken.length > SPOKEN_CHARACTERS ? `${spoken.slice(0, SPOKEN_CHARACTERS)} …` : spoken;
    announce(`Reply: ${cut} ${this.note.textContent}`);
  }

  #showWaiting(text) {
    this.waiting.hidden = this.source !== "";
    this.waiting.lastChild.textContent = text;
  }

  #close({ status, stats, error }) {
    this.element.dataset.status = status;
    this.waiting.hidden = true;
    this.notice(ending(status, error, this.source === ""));
    this.stats.textContent = stats ? statsLine(stats, this.contextLength) : "";
    this.copy.hidden = this.source === "";
    const ended = status === "complete" && (!stats || ENDED.has(stats.finish_reason));
    this.resume.hidden = ended || this.source.trim() === "";
    this.foot.hidden = false;
  }
}

// The scrolling message list. It follows new text to the bottom unless the user has scrolled up.
export class MessageList {
  // `actions`: the callbacks that ReplyView and userMessage need.
  constructor(actions) {
    this.actions = actions;
    this.scroller = byId("dm-scroll");
    this.list = byId("dm-messages");
    this.latest = byId("dm-latest");
    this.following = true;
    this.lastTop = 0;
    this.scroller.addEventListener("scroll", () => this.#scrolled(), { passive: true });
    this.latest.addEventListener("click", () => {
      this.toLatest();
      this.scroller.focus({ preventScroll: true });
    });
    new ResizeObserver(() => this.followDown()).observe(this.scroller);
  }

  clear() {
    this.list.replaceChildren();
  }

  // Appends a message (the API's MessageView). Returns its ReplyView, or null for a user's message.
  add(message) {
    const { element, reply } = this.#build(message);
    this.list.append(element);
    this.#sayOnce();
    return reply;
  }

  // Prepends earlier messages without moving the scroll position.
  addAbove(messages) {
    const fromBottom = this.scroller.scrollHeight - this.scroller.scrollTop;
    this.list.prepend(...messages.map((message) => this.#build(message).element));
    this.#sayOnce();
    this.scroller.scrollTop = this.scroller.scrollHeight - fromBottom;
  }

  // The scroll position, for `returnTo` after the messages are rebuilt.
  get place() {
    return this.scroller.scrollTop;
  }

  returnTo(place) {
    this.scroller.scrollTop = place;
    this.lastTop = place;
    this.following = this.#fromEnd() < 24;
    this.#showLatest();
  }

  // The selection in the focused edit box, for `goOnWriting` after the messages are rebuilt; null if none has the
  // focus.
  get writing() {
    const box = document.activeElement;
    if (!box?.matches(".dm-edit-box") || !this.list.contains(box)) return null;
    const { selectionStart: from, selectionEnd: to } = box;
    return { id: box.closest(".dm-message").dataset.id, from, to };
  }

  goOnWriting({ id, from, to }) {
    const box = this.#elementOf(id)?.querySelector(".dm-edit-box");
    box?.focus({ preventScroll: true });
    box?.setSelectionRange(from, to);
  }

  // After switching versions, focuses the rebuilt button that was pressed.
  focusVersion(id, step) {
    const buttons = [...this.list.querySelectorAll(`[data-id="${CSS.escape(id)}"] .dm-version`)];
    const enabled = buttons.filter((button) => !button.disabled);
    (enabled.find((button) => button.dataset.step === step) ?? enabled[0])?.focus({ preventScroll: true });
  }

  holds(id) {
    return this.#elementOf(id) !== null;
  }

  // Scrolls a message into view and highlights it. Returns false if it isn't in the list.
  lookAt(id) {
    const element = this.#elementOf(id);
    if (!element) return false;
    this.following = false;
    element.scrollIntoView({ block: "center" });
    this.lastTop = this.scroller.scrollTop;
    element.classList.add("dm-found");
    element.tabIndex = -1;
    element.focus({ preventScroll: true });
    this.#showLatest();
    return true;
  }

  // If the last message is the user's, because its reply was deleted, offers to get a new reply.
  offerReply(message) {
    if (message?.role !== "user") return;
    const ask = actionButton("Get a reply", "Get a reply to this message", () => this.actions.regenerate(message.id), "again");
    this.#elementOf(message.id).querySelector(".dm-foot")?.append(ask);
  }

  toLatest() {
    this.following = true;
    this.followDown();
  }

  followDown() {
    if (this.following) this.scroller.scrollTop = this.scroller.scrollHeight;
    this.lastTop = this.scroller.scrollTop;
    this.#showLatest();
  }

  #build(message) {
    if (message.role === "user") return { element: userMessage(message, this.actions), reply: null };
    const reply = new ReplyView(message, this.actions);
    return { element: reply.element, reply };
  }

  // Shows the notice about omitted messages only where it changes, not on every reply.
  #sayOnce() {
    let said = "";
    for (const line of this.list.querySelectorAll(".dm-left-out")) {
      line.hidden = line.textContent === said || line.textContent === "";
      said = line.textContent;
    }
  }

  #elementOf(id) {
    return this.list.querySelector(`[data-id="${CSS.escape(id)}"]`);
  }

  #fromEnd() {
    return this.scroller.scrollHeight - this.scroller.scrollTop - this.scroller.clientHeight;
  }

  #scrolled() {
    const top = this.scroller.scrollTop;
    const fromEnd = this.#fromEnd();
    // Scrolling up by any amount stops following. If the content shrank, the browser scrolls by itself and the end
    // stays in view, which must not.
    if (top < this.lastTop && fromEnd >= 1) this.following = false;
    else if (fromEnd < 24) this.following = true;
    this.lastTop = top;
    this.#showLatest();
  }

  #showLatest() {
    this.latest.hidden = this.following || this.#fromEnd() < 24;
  }
}
