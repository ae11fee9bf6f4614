// The scrolling list of messages.

import { replaceChildren } from "../../shared/dom.js";
import { Comparison } from "./comparison.js";
import { Following, isAtEnd } from "./following.js";
import { actionButton } from "./message_actions.js";
import { ReplyView } from "./reply_view.js";
import { userMessage } from "./user_message.js";
import { changeOf } from "./value.js";

/** @typedef {import("./types.js").Message} Message */
/** @typedef {{message: Message, element: HTMLElement, reply: ReplyView | null}} View */

const KEYS_UP = new Set(["ArrowUp", "PageUp", "Home"]);

// It follows new text to the bottom unless the user has scrolled up.
export class MessageList {
  /** @type {Map<string, View>} what the last call of `show` shows, by id */
  #views = new Map();
  #following = new Following();
  #couldScroll = false; // at the last look, because there was more than the view holds

  /**
   * @param {{scroller: HTMLElement, list: HTMLElement, latest: HTMLElement}} elements
   * @param {import("./types.js").Actions} actions
   */
  constructor({ scroller, list, latest }, actions) {
    this.actions = actions;
    this.scroller = scroller;
    this.list = list;
    this.latest = latest;
    this.scroller.addEventListener("scroll", () => this.#look(), { passive: true });
    // New text in each frame can cancel the scrolling that a wheel or a key has just begun, before anything has moved.
    this.scroller.addEventListener("wheel", ({ deltaY, ctrlKey }) => deltaY < 0 && !ctrlKey && this.#beginsUp(), { passive: true });
    this.scroller.addEventListener("keydown", ({ key, target }) => {
      if (target === this.scroller && KEYS_UP.has(key)) this.#beginsUp();
    });
    this.latest.addEventListener("click", () => {
      this.toLatest();
      this.scroller.focus({ preventScroll: true });
    });
    new ResizeObserver(() => this.followDown()).observe(this.scroller);
    // Formulas above are typeset once KaTeX is there: what is below must not move down and up again.
    new ResizeObserver(() => this.list.querySelector('[data-status="streaming"]') && this.followDown()).observe(this.list);
  }

  clear() {
    this.#views.clear();
    this.list.replaceChildren();
    this.#following.put({ top: 0 }, this.following);
  }

  /**
   * Shows exactly these messages. What has not changed keeps its element, and a reply that has grown is appended to.
   * @param {Message[]} messages
   */
  show(messages) {
    const before = [...this.#views.keys()];
    const shown = this.#views;
    this.#views = new Map(messages.map((message) => [message.id, this.#become(shown.get(message.id), message)]));
    const elements = [...this.#views.values()].map(({ element }) => element);
    const { children } = this.list;
    // Most values of a stream change text only: reading sizes then would make the browser lay out the page each time.
    if (elements.length === children.length && elements.every((element, index) => element === children[index])) return;
    const { scrollHeight, scrollTop } = this.scroller;
    replaceChildren(this.list, elements);
    this.#sayOnce();
    const grewAbove = before.length > 0 && [...this.#views.keys()].indexOf(before[0]) > 0;
    const last = messages.at(-1);
    if (last?.role === "user" && !shown.has(last.id)) this.toLatest();
    else if (grewAbove) this.#keepFromBottom(scrollHeight - scrollTop);
    else this.followDown();
  }

  /** @param {View | undefined} view @param {Message} message @returns {View} */
  #become(view, message) {
    const change = view ? changeOf(view.message, message) : "replace";
    if (!view || change === "replace") return { message, ...this.#build(message) };
    if (change === "update") view.reply?.update(message, () => this.followDown());
    return { ...view, message };
  }

  /** Appends a message. Returns its ReplyView, or null for a user's message. @param {Message} message */
  add(message) {
    const { element, reply } = this.#build(message);
    this.list.append(element);
    this.#sayOnce();
    return reply;
  }

  /** Appends compared replies, side by side. @param {import("../../shared/api_types.js").VersionView[]} versions */
  compare(versions) {
    const comparison = new Comparison(versions, this.actions);
    this.list.append(comparison.element);
    return comparison;
  }

  /** Prepends earlier messages without moving the scroll position. @param {Message[]} messages */
  addAbove(messages) {
    const fromBottom = this.scroller.scrollHeight - this.scroller.scrollTop;
    this.list.prepend(...messages.map((message) => this.#build(message).element));
    this.#sayOnce();
    this.#keepFromBottom(fromBottom);
  }

  /** @param {number} fromBottom  pixels from the top of the view to the end of the content */
  #keepFromBottom(fromBottom) {
    this.scroller.scrollTop = this.scroller.scrollHeight - fromBottom;
    this.#following.put(this.#where, this.following);
  }

  /** Whether new text keeps the end in view. */
  get following() {
    return this.#following.on;
  }

  /** Keeps the view where it is, whatever text is added. */
  stay() {
    this.#following.put(this.#where, false);
    this.#showLatest();
  }

  // The scroll position, for `returnTo` after the messages are rebuilt.
  get place() {
    return this.scroller.scrollTop;
  }

  /** @param {number} place */
  returnTo(place) {
    this.scroller.scrollTop = place;
    const where = this.#where;
    this.#following.put(where, isAtEnd(where.fromEnd));
    this.#showLatest();
  }

  // The selection in the focused edit box, for `goOnWriting` after the messages are rebuilt; null if none has the
  // focus.
  get writing() {
    const box = document.activeElement;
    if (!(box instanceof HTMLTextAreaElement) || !box.matches(".dm-edit-box") || !this.list.contains(box)) return null;
    const { selectionStart: from, selectionEnd: to } = box;
    const message = /** @type {HTMLElement} */ (box.closest(".dm-message"));
    return { id: message.dataset.id ?? "", from, to };
  }

  /** @param {{id: string, from: number, to: number}} writing */
  goOnWriting({ id, from, to }) {
    /** @type {HTMLTextAreaElement | null | undefined} */
    const box = this.#elementOf(id)?.querySelector(".dm-edit-box");
    box?.focus({ preventScroll: true });
    box?.setSelectionRange(from, to);
  }

  /** After switching versions, focuses the rebuilt button that was pressed. @param {string} id @param {string} step */
  focusVersion(id, step) {
    /** @type {NodeListOf<HTMLButtonElement> | undefined} */
    const found = this.#elementOf(id)?.querySelectorAll(".dm-version");
    const buttons = [...(found ?? [])];
    const enabled = buttons.filter((button) => !button.disabled);
    (enabled.find((button) => button.dataset.step === step) ?? enabled[0])?.focus({ preventScroll: true });
  }

  /** @param {string} id */
  holds(id) {
    return this.#elementOf(id) !== null;
  }

  /** Scrolls a message into view and highlights it. Returns false if it isn't in the list. @param {string} id */
  lookAt(id) {
    const element = this.#elementOf(id);
    if (!element) return false;
    element.scrollIntoView({ block: "center" });
    this.stay();
    element.classList.add("dm-found");
    element.tabIndex = -1;
    element.focus({ preventScroll: true });
    this.#showLatest();
    return true;
  }

  /**
   * If the last message is the user's, because its reply was deleted, offers to get a new reply.
   * @param {Message | undefined} message
   */
  offerReply(message) {
    if (message?.role !== "user" || !this.actions.offers("regenerate")) return;
    const ask = actionButton("Get a reply", "Get a reply to this message", () => this.actions.regenerate(message.id), "again");
    this.#elementOf(message.id)?.querySelector(".dm-foot")?.append(ask);
  }

  toLatest() {
    this.#toEnd();
    this.#showLatest();
  }

  followDown() {
    const { top, fromEnd } = this.#where;
    this.#following.look({ top, fromEnd });
    this.#couldScroll = top > 0 || (this.#couldScroll && fromEnd > 0);
    if (this.following && (this.#couldScroll || fromEnd <= 0)) this.#toEnd();
    else if (this.following) this.#followSoon();
    this.#showLatest();
  }

  /** Draws the first text that the view does not hold before it scrolls: in one frame, the browser takes it for a layout shift. */
  #followSoon() {
    requestAnimationFrame(() => {
      this.#couldScroll = true;
      this.followDown();
    });
  }

  #toEnd() {
    // A welcome screen that is higher than its place begins with its heading.
    this.scroller.scrollTop = this.list.childElementCount === 0 ? 0 : this.scroller.scrollHeight;
    this.#following.put(this.#where, true);
  }

  /** @param {Message} message @returns {{element: HTMLElement, reply: ReplyView | null}} */
  #build(message) {
    if (message.role === "user") return { element: userMessage(message, this.actions), reply: null };
    const reply = new ReplyView(message, this.actions);
    return { element: reply.element, reply };
  }

  // Shows the notice about omitted messages only where it changes, not on every reply.
  #sayOnce() {
    let said = "";
    /** @type {NodeListOf<HTMLElement>} */
    const lines = this.list.querySelectorAll(".dm-left-out");
    for (const line of lines) {
      const text = line.textContent ?? "";
      line.hidden = text === said || text === "";
      said = text;
    }
  }

  /** @param {string} id @returns {HTMLElement | null} */
  #elementOf(id) {
    return this.list.querySelector(`[data-id="${CSS.escape(id)}"]`);
  }

  get #where() {
    const { scrollTop: top, scrollHeight, clientHeight } = this.scroller;
    return { top, fromEnd: scrollHeight - top - clientHeight };
  }

  #beginsUp() {
    if (this.scroller.scrollTop > 0) this.stay();
  }

  #look() {
    this.#following.look(this.#where);
    this.#showLatest();
  }

  #showLatest() {
    this.latest.hidden = !this.#following.isBehind(this.#where);
  }
}
