// The box to write in. Gradio owns the textarea; this adds the keys and keeps the draft.

import { byId, storage } from "./dom.js";

export class Composer {
  #draftKey = null;

  // `canned(typed)` opens the list of canned replies.
  constructor(textarea, { send, stop, lastMessage, canned }) {
    this.textarea = textarea;
    this.alert = byId("dm-alert");
    textarea.setAttribute("aria-describedby", "dm-hint");
    textarea.setAttribute("enterkeyhint", "send");
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
      this.complain("");
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

  // The text was sent: what was typed behind it meanwhile stays.
  taken(text) {
    if (this.text.startsWith(text)) this.#set(this.text.slice(text.length).trimStart());
  }

  // Each conversation has its own unsent text, kept in this tab until it is sent.
  useDraft(conversationId) {
    this.#draftKey = `deskmate.draft.${conversationId ?? "new"}`;
    this.#set(storage.read("sessionStorage", this.#draftKey) ?? "");
    this.complain("");
  }

  // The new chat has become a conversation, and what is in the box belongs to it.
  keepDraftFor(conversationId) {
    this.#draftKey = `deskmate.draft.${conversationId}`;
    storage.write("sessionStorage", this.#draftKey, this.text);
  }

  focus() {
    // On a touch screen the keyboard would cover the page.
    if (matchMedia("(hover: hover)").matches) this.textarea.focus({ preventScroll: true });
  }

  complain(message) {
    this.alert.textContent = message;
  }
}
