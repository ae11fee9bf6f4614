// The box below a case: a reply to the customer, or an internal note. Its colour, label and button say which, and each
// has a text of its own.

import { CannedReplies } from "../../components/composer/canned.js";
import { api } from "../../shared/api.js";
import { errorMessage } from "../../shared/api.js";
import { make, uniqueId } from "../../shared/dom.js";
import { button } from "./controls.js";

/** @import { Mode } from "./types.js" */
/** @import { Outbox } from "./outbox.js" */

/** @type {Record<Mode, {name: string, label: string, send: string, sending: string, placeholder: string}>} */
export const MODES = {
  reply: { name: "Reply to customer", label: "Reply to the customer", send: "Send to customer", sending: "Sending to the customer …", placeholder: "The customer reads this. Type / for a canned reply." },
  note: { name: "Internal note", label: "Internal note, for colleagues only", send: "Add note", sending: "Adding the note …", placeholder: "Only colleagues read this." },
};

/**
 * @typedef {object} BoxHost
 * @property {() => unknown} submit  sends the outbox's text
 * @property {() => unknown} typed  the user types a reply
 * @property {() => unknown} draft  shows a draft of a reply
 */

export class ReplyBox {
  /** @param {Outbox} outbox @param {BoxHost} host */
  constructor(outbox, host) {
    this.outbox = outbox;
    this.host = host;
    /** @param {Mode} mode */
    const tab = (mode) => make("button", { type: "button", class: `cs-mode cs-mode-${mode}`, onclick: () => this.choose(mode) }, MODES[mode].name);
    this.tabs = { reply: tab("reply"), note: tab("note") };
    this.label = make("label", { class: "dm-hidden" });
    this.text = make("textarea", { class: "dm-input cs-text", id: uniqueId("cs-text"), rows: "3", dir: "auto", maxlength: "100000" });
    this.label.htmlFor = this.text.id;
    this.alert = make("p", { class: "dm-alert", role: "alert" });
    this.warning = make("p", { class: "cs-warning", role: "status" });
    this.hint = make("span", { class: "dm-hint" });
    this.canned = button("Canned replies", () => undefined);
    this.draft = button("Draft a reply", () => host.draft());
    this.send = button("", () => host.submit(), { class: "dm-button dm-primary cs-send", title: "Ctrl+Enter", "aria-keyshortcuts": "Control+Enter" });
    this.cannedReplies = new CannedReplies(this.canned, {
      list: () => api.listCanned(),
      fill: async (reply, values) => (await api.fillCanned(reply.name, values)).text,
      commands: () => [],
      emptyMessage: () => "There are no canned replies yet. Admins can add them at /desk.",
      insert: (text) => this.#insert(text),
      onError: (error) => {
        this.alert.textContent = errorMessage(error);
      },
      onCancel: (typed) => {
        if (typed) this.#insert(typed);
        this.text.focus();
      },
    });
    this.element = make(
      "section",
      { class: "cs-box", "aria-label": "Write" },
      make("div", { class: "cs-modes", role: "group", "aria-label": "What you write" }, this.tabs.reply, this.tabs.note),
      this.label,
      this.text,
      this.warning,
      this.alert,
      make("div", { class: "cs-box-actions" }, this.canned, this.draft, this.hint, this.send),
    );
    this.text.addEventListener("input", () => {
      outbox.setText(this.text.value);
      if (outbox.mode === "reply") host.typed();
      this.show();
    });
    this.text.addEventListener("keydown", (event) => {
      if (event.isComposing) return;
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
        event.preventDefault();
        host.submit();
      } else if (event.key === "/" && this.text.value === "" && outbox.mode === "reply") {
        event.preventDefault();
        this.cannedReplies.open({ typed: true });
      }
    });
    this.show();
  }

  /** Chooses a mode, with its text, and goes there. @param {Mode} mode */
  choose(mode) {
    if (this.outbox.sending === null) this.outbox.setMode(mode);
    this.show();
    this.text.focus();
  }

  /** @param {{hint?: string}} [shown] */
  show({ hint = this.hint.textContent ?? "" } = {}) {
    const { outbox } = this;
    const { mode } = outbox;
    const words = MODES[mode];
    this.element.dataset.mode = mode;
    for (const [name, tab] of Object.entries(this.tabs)) tab.setAttribute("aria-pressed", String(name === mode));
    this.label.textContent = words.label;
    this.text.placeholder = words.placeholder;
    if (this.text.value !== outbox.text) this.text.value = outbox.text;
    this.text.readOnly = outbox.sending !== null;
    this.send.textContent = outbox.sending === null ? words.send : MODES[outbox.sending].sending;
    this.send.disabled = outbox.sending !== null || outbox.text.trim() === "";
    const alert = outbox.error[mode] === "" ? "" : `${outbox.error[mode]} Your text is kept.`;
    if (this.alert.textContent !== alert) this.alert.textContent = alert;
    const warning = mode === "reply" ? outbox.warning : "";
    if (this.warning.textContent !== warning) this.warning.textContent = warning;
    this.hint.textContent = hint;
    this.canned.hidden = this.draft.hidden = mode === "note";
  }

  /** Puts a text into the reply, whatever is being written. @param {string} text */
  insertReply(text) {
    this.choose("reply");
    this.#insert(text);
  }

  /** @param {string} text  at the cursor */
  #insert(text) {
    this.text.focus();
    this.text.setRangeText(text, this.text.selectionStart, this.text.selectionEnd, "end");
    this.text.dispatchEvent(new Event("input"));
  }
}
