// The draft of a reply to a customer above the message box: the text to edit, its sources, and what can be done with it.

import { Citations } from "../../components/chat/citations.js";
import { icon, make, uniqueId } from "../../shared/dom.js";
import { citedIn } from "./draft_text.js";

/** @import { DraftState } from "./draft_state.js" */

/**
 * @typedef {object} PanelHost
 * @property {(change: "shorter" | "friendlier" | null) => unknown} write  null: a new draft
 * @property {() => unknown} stop
 * @property {(withSources: boolean) => unknown} copy
 * @property {() => unknown} insert  into the message box
 * @property {(by: number) => unknown} step  to another version
 * @property {() => unknown} close
 * @property {() => unknown} changed  the user changed the message, the notes or the text
 */

const FROM = { box: "Customer’s message, from the box below", chat: "Customer’s message, your last one in this chat", case: "Customer’s last message", panel: "Customer’s message" };
const EARLIER = { chat: "Customer’s message, an earlier one in this chat", case: "An earlier message of the customer’s" };
const OTHER = " (this draft answers another one)";
const EXCERPT_CHARS = 80;

export class DraftPanel {
  /** @type {DraftState | null} */
  #state = null;
  #isLast = true;

  /** @param {PanelHost} host @param {{isInsertFirst?: boolean}} options  `isInsertFirst`: the reply is sent from the box below, so it goes there rather than to the clipboard */
  constructor(host, { isInsertFirst = false } = {}) {
    const title = uniqueId("dm-draft-title");
    /** @param {string} name @param {() => unknown} onclick @param {Record<string, unknown>} attributes */
    const button = (name, onclick, attributes = {}) => make("button", { type: "button", class: "dm-button dm-small", onclick, ...attributes }, name);
    /** @param {string} name @param {string} label @param {() => unknown} onclick */
    const iconButton = (name, label, onclick) => make("button", { type: "button", class: "dm-icon-button dm-small", "aria-label": label, title: label, onclick }, icon(name));
    this.message = make("textarea", { class: "dm-input", rows: "3", dir: "auto", id: uniqueId("dm-draft-message") });
    this.notes = make("textarea", { class: "dm-input", rows: "2", dir: "auto", id: uniqueId("dm-draft-notes"), placeholder: "What the model should know, such as what was agreed by phone" });
    this.origin = make("span", { class: "dm-draft-origin", dir: "auto" });
    this.about = make(
      "details",
      { class: "dm-draft-about" },
      make("summary", {}, this.origin),
      make("div", { class: "dm-field" }, make("label", { class: "dm-label", for: this.message.id }, "Customer’s message"), this.message),
      make("div", { class: "dm-field" }, make("label", { class: "dm-label", for: this.notes.id }, "Notes on the case (the customer doesn’t see them)"), this.notes),
      (this.rests = make("p", { class: "dm-hint" })),
    );
    this.text = make("textarea", { class: "dm-input dm-draft-text", rows: "6", dir: "auto", "aria-label": "Draft" });
    this.status = make("p", { class: "dm-hint dm-draft-status", role: "status" });
    this.notice = make("p", { class: "dm-notice", role: "status" });
    this.alert = make("p", { class: "dm-alert", role: "alert" });
    this.citations = new Citations();
    this.previous = iconButton("previous", "Previous draft", () => host.step(-1));
    this.next = iconButton("next", "Next draft", () => host.step(1));
    this.place = make("span", { "aria-hidden": "true" });
    this.versions = make("span", { class: "dm-versions", role: "group" }, this.previous, this.place, this.next);
    this.copyButton = button("Copy reply", () => host.copy(false), { class: isInsertFirst ? "dm-button dm-small" : "dm-button dm-small dm-primary", title: "Copies it without the numbers of its sources, for the customer" });
    this.copySourcesButton = button("With sources", () => host.copy(true), { "aria-label": "Copy with sources", title: "Copies it with the numbers and a list of the sources, for a colleague" });
    this.insertButton = button("Insert", () => host.insert(), { class: isInsertFirst ? "dm-button dm-small dm-primary" : "dm-button dm-small", title: "Puts the reply into the message box. Nothing is sent." });
    this.shorter = button("Shorter", () => host.write("shorter"));
    this.friendlier = button("Friendlier", () => host.write("friendlier"));
    this.again = button("Try again", () => host.write(null));
    this.stop = button("Stop writing", () => host.stop(), { class: "dm-button dm-small dm-draft-stop" });
    this.element = make(
      "section",
      { class: "dm-draft", "aria-labelledby": title, hidden: true },
      make("div", { class: "dm-draft-head" }, make("h2", { id: title }, "Draft of a reply"), this.versions, iconButton("close", "Close the draft", () => host.close())),
      make("div", { class: "dm-draft-body" }, this.about, this.alert, this.notice, this.text, this.citations.element),
      this.status,
      make("div", { class: "dm-draft-actions" }, ...(isInsertFirst ? [this.insertButton, this.copyButton] : [this.copyButton, this.insertButton]), this.copySourcesButton, make("span", { class: "dm-draft-rewrites" }, this.shorter, this.friendlier, this.again, this.stop)),
    );
    this.element.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || event.isComposing) return;
      event.preventDefault(); // it must not stop a reply of the chat
      event.stopPropagation();
      if (this.#state?.version?.writing) host.stop();
    });
    this.text.addEventListener("input", () => {
      const version = this.#state?.version;
      if (version) version.text = this.text.value;
      this.#showSources();
      this.#enable();
      host.changed();
    });
    for (const [field, name] of /** @type {const} */ ([[this.message, "message"], [this.notes, "notes"]])) {
      field.addEventListener("input", () => {
        if (!this.#state) return;
        this.#state[name] = field.value;
        if (name === "message") this.#state.from = "panel";
        this.#showOrigin();
        this.#enable();
        host.changed();
      });
    }
  }

  /**
   * @param {DraftState} state
   * @param {object} shown
   * @param {string} [shown.status]  what is going on
   * @param {string} [shown.error]
   * @param {string} [shown.rests]  the collections that it rests on
   * @param {boolean} [shown.isLast]  whether the customer has written nothing since the message in the panel
   */
  show(state, { status = "", error = "", rests = this.rests.textContent ?? "", isLast = true } = {}) {
    this.#isLast = isLast;
    const focused = this.element.contains(document.activeElement) ? /** @type {HTMLElement} */ (document.activeElement) : null;
    const opens = this.#state !== state || (state.isOpen && this.element.hidden);
    this.#state = state;
    this.element.hidden = !state.isOpen;
    set(this.message, state.message);
    set(this.notes, state.notes);
    if (opens) this.about.open = state.message.trim() === "";
    this.#showOrigin();
    this.rests.textContent = rests;
    const { version, versions, at } = state;
    this.text.readOnly = version?.writing ?? false;
    this.text.hidden = version === null;
    this.#follow(() => set(this.text, version?.text ?? ""));
    this.notice.textContent = version?.notice ?? "";
    this.alert.textContent = error;
    if (this.status.textContent !== status) this.status.textContent = status;
    this.versions.hidden = versions.length < 2;
    this.versions.setAttribute("aria-label", `Draft ${at + 1} of ${versions.length}`);
    this.place.textContent = `${at + 1} / ${versions.length}`;
    this.previous.disabled = at <= 0;
    this.next.disabled = at >= versions.length - 1;
    this.#showSources();
    this.#enable();
    if (focused) this.#keepFocus(focused);
    if (error !== "") this.alert.scrollIntoView({ block: "nearest" }); // the button that was used may be below all of the text
  }

  /** The customer has written, or it is known again what they wrote last. @param {boolean} isLast  as of `show` */
  showIsLast(isLast) {
    this.#isLast = isLast;
    if (this.#state) this.#showOrigin();
  }

  focus() {
    const field = this.#state?.version ? this.text : this.message;
    field.focus({ preventScroll: true });
  }

  /** Inserts a text at the cursor. Returns whether there is a draft that takes it. @param {string} text */
  insert(text) {
    const version = this.#state?.version;
    if (!this.#state?.isOpen || !version || version.writing) return false;
    const { selectionStart: from, selectionEnd: to, value } = this.text;
    this.text.value = value.slice(0, from) + text + value.slice(to);
    this.text.dispatchEvent(new Event("input"));
    this.text.focus({ preventScroll: true });
    this.text.setSelectionRange(from + text.length, from + text.length);
    return true;
  }

  /** Selects the text, where the browser does not let it be copied. */
  select() {
    this.text.focus();
    this.text.select();
  }

  // Keeps the end of a text in sight while it grows, unless the user has scrolled up.
  /** @param {() => void} change */
  #follow(change) {
    const { text } = this;
    const isAtEnd = text.scrollHeight - text.scrollTop - text.clientHeight < 24;
    change();
    if (isAtEnd && text.readOnly) text.scrollTop = text.scrollHeight;
  }

  // A control that was just used may be hidden or disabled by what it did: the focus goes on to what comes next.
  /** @param {HTMLElement} focused */
  #keepFocus(focused) {
    const isUsable = (/** @type {HTMLElement} */ each) => each.closest("[hidden]") === null && !each.matches(":disabled");
    if (this.element.hidden || isUsable(focused)) return;
    const turn = focused === this.previous ? this.next : focused === this.next ? this.previous : null;
    [turn, this.stop, this.text, this.again].find((each) => each !== null && isUsable(each))?.focus({ preventScroll: true });
  }

  #showOrigin() {
    const { message, from, isForAnother } = /** @type {DraftState} */ (this.#state);
    const line = message.trim().replace(/\s+/g, " ");
    const excerpt = line.length > EXCERPT_CHARS ? `${line.slice(0, EXCERPT_CHARS)}…` : line;
    const name = !this.#isLast && (from === "chat" || from === "case") ? EARLIER[from] : FROM[from];
    this.origin.textContent = line === "" ? "Customer’s message: none yet, paste it here" : `${name}${isForAnother ? OTHER : ""}: “${excerpt}”`;
  }

  #showSources() {
    const version = this.#state?.version;
    // Without a text of the model's, all passages that were found are shown, to write the reply from.
    const isAll = version !== null && version !== undefined && version.id === null;
    this.citations.show(version ? (isAll ? version.sources : citedIn(version.text, version.sources)) : []);
  }

  #enable() {
    const state = /** @type {DraftState} */ (this.#state);
    const writing = state.versions.some((version) => version.writing);
    const isEmpty = (state.version?.text ?? "").trim() === "";
    for (const each of [this.copyButton, this.insertButton, this.copySourcesButton]) each.disabled = isEmpty || (state.version?.writing ?? false);
    for (const each of [this.shorter, this.friendlier]) each.disabled = isEmpty;
    for (const each of [this.shorter, this.friendlier, this.again]) each.hidden = writing;
    this.copySourcesButton.hidden = (state.version?.sources ?? []).length === 0;
    this.again.textContent = state.versions.length === 0 ? "Write the draft" : "Try again";
    this.again.disabled = state.message.trim() === "";
    this.stop.hidden = !writing;
  }
}

/** Sets a field's text, and leaves cursor and scroll position alone where it has that already. @param {HTMLTextAreaElement} field @param {string} text */
function set(field, text) {
  if (field.value === text) return;
  const { scrollTop } = field;
  field.value = text;
  field.scrollTop = scrollTop;
}
