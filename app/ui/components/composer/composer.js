// The message box: keyboard shortcuts, drafts and canned replies.

import { Component } from "../../shared/component.js";
import { ButtonSwap } from "./button_swap.js";
import { CannedReplies } from "./canned.js";
import { filledIn } from "./canned_text.js";
import { commandIn } from "./commands.js";
import { readDraft, withoutSent, writeDraft } from "./drafts.js";

const REPLY_IN_PROGRESS = "A reply is still being written. Wait for it, or press Esc to stop it.";

export class Composer extends Component {
  /** @type {string | null | undefined} the conversation whose draft is shown; null: a new chat; undefined: none */
  #draftOf = undefined;
  #isReplying = false;
  #swap = new ButtonSwap(); // of the buttons to send and to stop
  /** @type {string | null} the user's last message, which ArrowUp brings back */
  lastMessage = null;
  /**
   * Takes a canned reply in place of the box. Returns whether it did.
   * @type {(text: string) => boolean}
   */
  insertElsewhere = () => false;

  /** @param {import("../../shared/component.js").Context} context */
  constructor(context) {
    super(context);
    /** @type {HTMLTextAreaElement} */
    this.textarea = this.find(".dm-box");
    this.alert = this.find(".dm-alert");
    this.note = this.find(".dm-composer-note");
    this.hint = this.find(".dm-composer-hint");
    /** @type {HTMLButtonElement} */
    this.sendButton = this.find(".dm-send");
    /** @type {HTMLButtonElement} */
    this.stopButton = this.find(".dm-stop");
    /** @type {HTMLButtonElement} */
    this.cannedButton = this.find(".dm-canned-open");
    /** @type {HTMLButtonElement} */
    this.draftButton = this.find(".dm-draft-open");
    this.draftButton.addEventListener("click", () => this.#draft());
    /** @type {HTMLButtonElement} */
    this.compareButton = this.find(".dm-compare-open");
    this.compareButton.addEventListener("click", () => this.emit("compare", { text: this.text }));
    const { textarea } = this;
    this.canned = new CannedReplies(this.cannedButton, {
      list: () => this.#listCanned(),
      fill: (reply, values) => this.#fillCanned(reply, values),
      commands: () => this.#commands,
      emptyMessage: () => this.props.canned_empty,
      insert: (text) => {
        if (!this.insertElsewhere(text)) this.insert(text);
      },
      onError: (error) => this.#fail(error),
      onCancel: (typed) => (typed === "" ? this.focus() : this.insert(typed)),
    });
    this.sendButton.addEventListener("click", (event) => this.#swap.isLate("send", event) || this.#submit());
    this.stopButton.addEventListener("click", (event) => this.#swap.isLate("stop", event) || this.stopReply());
    textarea.addEventListener("keydown", (event) => this.#onKey(event));
    textarea.addEventListener("input", () => {
      this.#changed();
      this.emit("input", { text: this.text });
    });
    this.element.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && !event.isComposing && !event.defaultPrevented) this.stopReply();
    });
    this.#watchProps();
  }

  #watchProps() {
    const { props } = this;
    if (this.text !== "" && !props.value) props.value = this.text; // typed before this script was loaded
    const described = ["placeholder", "submit_label", "stop_label", "hint", "note", "max_length", "interactive", "canned", "drafts", "comparisons"];
    const describe = () => {
      this.textarea.placeholder = props.placeholder;
      this.sendButton.textContent = props.submit_label;
      this.stopButton.textContent = props.stop_label;
      this.hint.textContent = props.hint;
      this.showNote(props.note);
      if (props.max_length) this.textarea.maxLength = props.max_length;
      else this.textarea.removeAttribute("maxlength");
      for (const control of [this.textarea, this.sendButton, this.cannedButton, this.draftButton, this.compareButton]) control.disabled = !props.interactive;
      this.cannedButton.hidden = !props.canned;
      this.draftButton.hidden = !props.drafts;
      this.compareButton.hidden = !props.comparisons;
      if (props.canned) this.canned.renew(props.canned);
    };
    const remember = () => {
      this.lastMessage = props.last_message ?? null;
    };
    /** @type {[string | string[], () => void][]} */
    const watched = [
      [described, describe],
      ["value", () => this.#set(props.value ?? "", { keepsError: true })],
      ["last_message", remember],
      ["error", () => this.showError(props.error)],
      ["replying", () => this.setReplying(Boolean(props.replying))],
    ];
    for (const [names, show] of watched) {
      show();
      this.watch(names, show);
    }
  }

  get text() {
    return this.textarea.value;
  }

  /** @param {KeyboardEvent} event */
  #onKey(event) {
    const { textarea } = this;
    if (event.isComposing || event.keyCode === 229) return; // an IME is composing
    const modified = event.ctrlKey || event.metaKey || event.altKey;
    if (event.key === "Enter" && !event.shiftKey && !modified) {
      event.preventDefault();
      event.stopImmediatePropagation();
      this.#submit();
    } else if (event.key === "/" && textarea.value === "" && !modified && this.props.canned) {
      event.preventDefault();
      this.canned.open({ typed: true });
    } else if (event.key === "ArrowUp" && textarea.value === "") {
      if (this.lastMessage === null) return;
      event.preventDefault();
      this.fill(this.lastMessage);
    }
  }

  /** @returns {import("./commands.js").Command[]} */
  get #commands() {
    if (!this.props.drafts) return [];
    return [{ name: "draft", title: "Draft a reply", description: "Writes a reply to the customer’s message, to edit and copy", run: () => this.#draft() }];
  }

  // The text stays in the box: the draft is written from it.
  #draft() {
    this.emit("draft", { text: this.text });
  }

  #submit() {
    if (this.#isReplying) {
      this.warnReplyInProgress();
      return;
    }
    const command = commandIn(this.text, this.#commands);
    if (command) {
      this.#set("");
      command.run();
      return;
    }
    this.props.value = this.text;
    this.emit("submit", { text: this.text });
  }

  /** Raises `stop`, if a reply is being written. */
  stopReply() {
    if (this.#isReplying) this.emit("stop");
  }

  /** @returns {Promise<import("./canned_text.js").CannedReply[]>} */
  async #listCanned() {
    return /** @type {any} */ (await this.emit("canned_open")) ?? this.props.canned;
  }

  /**
   * Resolves to the text of a canned reply, or null where a listener inserts it.
   * @param {import("./canned_text.js").CannedReply} reply
   * @param {Record<string, string>} values
   */
  async #fillCanned(reply, values) {
    const filled = /** @type {{text: string} | undefined} */ (await this.emit("canned_fill", { name: reply.name, values }));
    if (filled) return filled.text;
    return reply.body === undefined ? null : filledIn(reply.body, values);
  }

  /** @param {Error} error */
  #fail(error) {
    this.showError(error.message);
    this.emit("error", error);
  }

  /** Makes the box as high as its text; the style sheet sets the limit. */
  #grow() {
    this.textarea.style.height = "auto";
    const height = this.textarea.scrollHeight; // 0 while the component is not shown
    if (height > 0) this.textarea.style.height = `${height}px`;
  }

  // A listener's new text keeps the error, which the same listener may have given: Gradio brings them one by one.
  #changed({ keepsError = false } = {}) {
    if (!keepsError) this.showError("");
    this.#grow();
    if (this.props.value !== this.text) this.props.value = this.text;
    if (this.#draftOf !== undefined) writeDraft(this.#draftOf, this.text);
  }

  /** @param {string} text */
  #set(text, { keepsError = false } = {}) {
    if (this.textarea.value === text) return;
    this.textarea.value = text;
    this.#changed({ keepsError });
  }

  /** Replaces the text of the box, with the cursor at its end. @param {string} text */
  fill(text) {
    this.#set(text);
    this.focus();
    this.textarea.setSelectionRange(text.length, text.length);
  }

  /** Inserts text at the cursor, replacing the selection. @param {string} text */
  insert(text) {
    const { value, selectionStart: from, selectionEnd: to } = this.textarea;
    this.#set(value.slice(0, from) + text + value.slice(to));
    this.textarea.focus({ preventScroll: true });
    this.textarea.setSelectionRange(from + text.length, from + text.length);
  }

  /**
   * Removes sent text from the draft of chat `from` (null: a new chat). Text typed after it meanwhile stays, also when
   * the user has left that chat.
   * @param {string} text
   * @param {string | null} from
   */
  clearSent(text, from) {
    const isShown = from === this.#draftOf;
    const rest = withoutSent(isShown ? this.text : readDraft(from), text);
    if (rest === null) return;
    if (isShown) this.#set(rest);
    writeDraft(from, rest);
  }

  /**
   * Shows the draft of a conversation. Drafts are kept per conversation and tab until they are sent.
   * @param {string | null} conversationId
   */
  useDraft(conversationId) {
    this.#draftOf = conversationId;
    this.#set(readDraft(conversationId));
    this.showError("");
  }

  /**
   * A new chat got its conversation id: the text in the box becomes that conversation's draft.
   * @param {string} conversationId
   */
  keepDraftFor(conversationId) {
    this.deleteDraft(null);
    this.#draftOf = conversationId;
    writeDraft(conversationId, this.text);
  }

  /** @param {string | null} conversationId */
  deleteDraft(conversationId) {
    writeDraft(conversationId, "");
  }

  /** Shows the button to stop in place of the one to send, or the reverse. @param {boolean} isReplying */
  setReplying(isReplying) {
    if (isReplying !== this.#isReplying) this.#swap.swapped();
    this.#isReplying = isReplying;
    // The pressed button is about to be hidden; keep the focus on the page.
    const focused = document.activeElement;
    if (focused === this.stopButton || focused === this.sendButton) this.focus();
    this.element.classList.toggle("dm-replying", isReplying);
  }

  focus() {
    // On a touch screen the on-screen keyboard would cover the page.
    if (matchMedia("(hover: hover)").matches) this.textarea.focus({ preventScroll: true });
  }

  /** Takes the focus of a draft that is closed: in the box, or on the draft's button where the box doesn't get it. */
  focusAfterDraft() {
    this.focus();
    if (document.activeElement !== this.textarea) this.draftButton.focus({ preventScroll: true });
  }

  /**
   * Focuses the box once a request is done, unless the user has moved the focus meanwhile. `before`: the focused
   * element at the time of the request.
   * @param {Element | null} before
   */
  takeFocus(before = null) {
    const now = document.activeElement;
    // The clicked list row may have been rebuilt since: compare its link.
    const again = now instanceof HTMLAnchorElement && before instanceof HTMLAnchorElement && now.href === before.href;
    if (now === null || now === document.body || now === before || again || this.textarea.parentElement?.contains(now)) this.focus();
  }

  /** @param {string} message  empty: hides the alert */
  showError(message) {
    this.alert.textContent = message ?? "";
  }

  /** Hides the alert, if it still says this. @param {string} message */
  withdrawError(message) {
    if (this.alert.textContent === message) this.showError("");
  }

  /** @param {string} text  empty: hides the note */
  showNote(text) {
    this.note.textContent = text ?? "";
  }

  warnReplyInProgress() {
    this.showError(REPLY_IN_PROGRESS);
  }
}

/** @param {import("../../shared/component.js").Context} context */
export const mount = (context) => new Composer(context);
