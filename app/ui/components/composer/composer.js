// The message box: keyboard shortcuts, drafts and canned replies.

import { Component } from "../../shared/component.js";
import { byId, storage } from "../../shared/dom.js";
import { CannedReplies } from "./canned.js";

const draftKeyOf = (conversationId) => `deskmate.draft.${conversationId ?? "new"}`;

export class Composer extends Component {
  #draftKey = null;
  lastMessage = null; // the user's last message, which ArrowUp brings back

  constructor(context) {
    super(context);
    this.textarea = byId("dm-box");
    this.alert = byId("dm-alert");
    const { textarea } = this;
    this.canned = new CannedReplies(byId("dm-canned"), {
      insert: (text) => this.insert(text),
      onError: (error) => this.emit("error", error),
      onCancel: (typed) => (typed === "" ? this.focus() : this.insert(typed)),
    });
    byId("dm-send").addEventListener("click", () => this.#submit());
    byId("dm-stop").addEventListener("click", () => this.emit("stop"));
    textarea.addEventListener("keydown", (event) => {
      if (event.isComposing || event.keyCode === 229) return; // an IME is composing
      if (event.key === "Enter" && !event.shiftKey && !event.ctrlKey && !event.metaKey && !event.altKey) {
        event.preventDefault();
        event.stopImmediatePropagation();
        this.#submit();
      } else if (event.key === "/" && textarea.value === "" && !event.ctrlKey && !event.metaKey && !event.altKey) {
        event.preventDefault();
        this.canned.open({ typed: true });
      } else if (event.key === "ArrowUp" && textarea.value === "") {
        if (this.lastMessage === null) return;
        event.preventDefault();
        this.fill(this.lastMessage);
      }
    });
    textarea.addEventListener("input", () => {
      this.showError("");
      this.#grow();
      if (this.#draftKey) storage.write("sessionStorage", this.#draftKey, textarea.value);
    });
    document.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || event.isComposing || event.defaultPrevented) return;
      if (!event.target.closest("#dm-conversations, #dm-settings")) this.emit("stop"); // in a panel, Esc closes menus
    });
  }

  get text() {
    return this.textarea.value;
  }

  #submit() {
    this.props.value = this.text;
    this.emit("submit", { text: this.text });
  }

  // Makes the box as high as its text; the style sheet sets the limit.
  #grow() {
    this.textarea.style.height = "auto";
    this.textarea.style.height = `${this.textarea.scrollHeight}px`;
  }

  #set(text) {
    if (this.textarea.value === text) return;
    this.textarea.value = text;
    this.textarea.dispatchEvent(new Event("input", { bubbles: true }));
  }

  // Replaces the text of the box, with the cursor at its end.
  fill(text) {
    this.#set(text);
    this.focus();
    this.textarea.setSelectionRange(text.length, text.length);
  }

  // Inserts text at the cursor, replacing the selection.
  insert(text) {
    const { value, selectionStart: from, selectionEnd: to } = this.textarea;
    this.#set(value.slice(0, from) + text + value.slice(to));
    this.textarea.focus({ preventScroll: true });
    this.textarea.setSelectionRange(from + text.length, from + text.length);
  }

  // Removes sent text from the draft of chat `from` (null: a new chat). Text typed after it meanwhile stays, also when
  // the user has left that chat.
  clearSent(text, from) {
    const key = draftKeyOf(from);
    const draft = key === this.#draftKey ? this.text : (storage.read("sessionStorage", key) ?? "");
    if (!draft.startsWith(text)) return;
    const rest = draft.slice(text.length).trimStart();
    if (key === this.#draftKey) this.#set(rest);
    storage.write("sessionStorage", key, rest);
  }

  // Shows the draft of a conversation. Drafts are kept per conversation and tab until they are sent.
  useDraft(conversationId) {
    this.#draftKey = draftKeyOf(conversationId);
    this.#set(storage.read("sessionStorage", this.#draftKey) ?? "");
    this.showError("");
  }

  // A new chat got its conversation id: the text in the box becomes that conversation's draft.
  keepDraftFor(conversationId) {
    this.deleteDraft(null);
    this.#draftKey = draftKeyOf(conversationId);
    storage.write("sessionStorage", this.#draftKey, this.text);
  }

  deleteDraft(conversationId) {
    storage.write("sessionStorage", draftKeyOf(conversationId), null);
  }

  focus() {
    // On a touch screen the on-screen keyboard would cover the page.
    if (matchMedia("(hover: hover)").matches) this.textarea.focus({ preventScroll: true });
  }

  // Focuses the box once a request is done, unless the user has moved the focus meanwhile. `before`: the focused
  // element at the time of the request.
  takeFocus(before = null) {
    const now = document.activeElement;
    // The clicked list row may have been rebuilt since: compare its link.
    const again = now?.href !== undefined && now.href === before?.href;
    if (now === null || now === document.body || now === before || again || now.closest("#dm-composer")) this.focus();
  }

  showError(message) {
    this.alert.textContent = message;
  }
}

export const mount = (context) => new Composer(context);
