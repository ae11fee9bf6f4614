// The box to write in. Gradio owns the textarea; this adds the keys and keeps the draft.

import { byId, storage } from "./dom.js";

const draftKeyOf = (conversationId) => `deskmate.draft.${conversationId ?? "new"}`;

export class Composer {
  #draftKey = null;

  // `canned(typed)` opens the list of canned replies.
  constructor(textarea, { send, stop, lastMessage, canned }) {
    this.textarea = textarea;
    this.alert = byId("dm-alert");
    textarea.setAttribute("aria-describedby", "dm-hint");
    textarea.setAttribute("enterkeyhint", "send");
    textarea.dir = "auto";
    textarea.addEventListener("keydown", (event) => {
      if (event.isComposing || event.keyCode === 229) return; // an input method is choosing characters
      if (event.key === "Enter" && !event.shiftKey && !event.ctrlKey && !event.metaKey && !event.altKey) {
        event.preventDefault();
        event.stopImmediatePropagation();
        send();
      } else if (event.key === "/" && textarea.value === "" && !event.ctrlKey && !event.metaKey && !event.altKey) {
        event.preventDefault();
        canned();
      } else if (event.key === "ArrowUp" && textarea.value === "") {
        const last = lastMessage();
        if (last === null) return;
        event.preventDefault();
        this.fill(last);
      }
    });
    textarea.addEventListener("input", () => {
      this.showError("");
      if (this.#draftKey) storage.write("sessionStorage", this.#draftKey, textarea.value);
    });
    document.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || event.isComposing || event.defaultPrevented) return;
      if (!event.target.closest("#dm-conversations, #dm-settings")) stop(); // there it closes a menu, say
    });
  }

  get text() {
    return this.textarea.value;
  }

  // Gradio learns of a value set by code from the event alone.
  #set(text) {
    if (this.textarea.value === text) return;
    this.textarea.value = text;
    this.textarea.dispatchEvent(new Event("input", { bubbles: true }));
  }

  // Brings text into the box, ready to be changed and sent.
  fill(text) {
    this.#set(text);
    this.focus();
    this.textarea.setSelectionRange(text.length, text.length);
  }

  // Puts text where the person writes, in place of what is selected.
  insert(text) {
    const { value, selectionStart: from, selectionEnd: to } = this.textarea;
    this.#set(value.slice(0, from) + text + value.slice(to));
    this.textarea.focus({ preventScroll: true });
    this.textarea.setSelectionRange(from + text.length, from + text.length);
  }

  // The text was sent from the chat `from` (null is a new one): what was typed behind it meanwhile stays, here or as the draft of
  // a chat that the person has left.
  clearSent(text, from) {
    const key = draftKeyOf(from);
    const draft = key === this.#draftKey ? this.text : (storage.read("sessionStorage", key) ?? "");
    if (!draft.startsWith(text)) return;
    const rest = draft.slice(text.length).trimStart();
    if (key === this.#draftKey) this.#set(rest);
    storage.write("sessionStorage", key, rest);
  }

  // Each conversation has its own unsent text, kept in this tab until it is sent.
  useDraft(conversationId) {
    this.#draftKey = draftKeyOf(conversationId);
    this.#set(storage.read("sessionStorage", this.#draftKey) ?? "");
    this.showError("");
  }

  // The new chat has become a conversation, and what is in the box belongs to it.
  keepDraftFor(conversationId) {
    this.deleteDraft(null);
    this.#draftKey = draftKeyOf(conversationId);
    storage.write("sessionStorage", this.#draftKey, this.text);
  }

  deleteDraft(conversationId) {
    storage.write("sessionStorage", draftKeyOf(conversationId), null);
  }

  focus() {
    // On a touch screen the keyboard would cover the page.
    if (matchMedia("(hover: hover)").matches) this.textarea.focus({ preventScroll: true });
  }

  // What the person asked for has come; they may have gone on meanwhile. The focus stays where it is by now, unless that is
  // where it was when they asked, or nowhere.
  takeFocus(before = null) {
    const now = document.activeElement;
    // A row of the list may have been drawn anew since it was clicked.
    const again = now?.href !== undefined && now.href === before?.href;
    if (now === null || now === document.body || now === before || again || now.closest("#dm-composer")) this.focus();
  }

  showError(message) {
    this.alert.textContent = message;
  }
}
