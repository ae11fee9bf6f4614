// A case's draft as this tab keeps it: the customer's message, the notes, and every version, with the user's changes.

import { storage } from "../../shared/dom.js";

/** @import { Citation } from "../../components/chat/types.js" */

/**
 * A version of a draft. `id`: of the stored draft; null if the model wrote nothing. `sources`: what it may cite.
 * `writing`: its text is still coming. `message`: the customer's message that it answers, found at `from`.
 * @typedef {{id: string | null, text: string, sources: Citation[], notice: string, writing: boolean, message: string, from: MessageFrom}} Version
 */

/** @typedef {"box" | "chat" | "case" | "panel"} MessageFrom  where the customer's message was found */

export const MAX_VERSIONS = 20;
export const CUT_SHORT = "The page was closed, reloaded or duplicated while this draft was being written. Try again for the rest.";

/** @param {string | null} conversationId  null: a new chat */
const keyOf = (conversationId) => `deskmate.reply-draft.${conversationId ?? "new"}`;

export class DraftState {
  isOpen = false;
  message = ""; // the next version answers it; the one that is shown may answer another
  notes = "";
  /** @type {MessageFrom} */
  from = "panel";
  /** @type {Version[]} oldest first */
  versions = [];
  at = -1; // the version that is shown; -1: there is none
  isDeleted = false; // its conversation was deleted, and save() does nothing

  /** @param {string | null} conversationId */
  constructor(conversationId) {
    this.conversationId = conversationId;
  }

  /** The draft of a conversation as this tab has it; what was being written then was cut short. @param {string | null} conversationId */
  static read(conversationId) {
    const state = new DraftState(conversationId);
    try {
      const { isOpen, message, notes, from, versions, at } = JSON.parse(storage.read("sessionStorage", keyOf(conversationId)) ?? "{}");
      if (!Array.isArray(versions)) return state;
      Object.assign(state, { isOpen, message, notes, from, versions, at });
    } catch {
      return state; // written by another version of this page
    }
    for (const version of state.versions) {
      version.message ??= state.message; // an earlier release kept one message for all versions
      version.from ??= state.from;
      if (version.writing) Object.assign(version, { writing: false, notice: CUT_SHORT });
    }
    return state;
  }

  /** @param {string | null} conversationId */
  static forget(conversationId) {
    storage.write("sessionStorage", keyOf(conversationId), "");
  }

  save() {
    if (this.isDeleted) return;
    const { isOpen, message, notes, from, versions, at } = this;
    const isEmpty = !isOpen && message === "" && notes === "" && versions.length === 0;
    storage.write("sessionStorage", keyOf(this.conversationId), isEmpty ? "" : JSON.stringify({ isOpen, message, notes, from, versions, at }));
  }

  /** A new chat has become a conversation. @param {string} conversationId */
  moveTo(conversationId) {
    DraftState.forget(this.conversationId);
    this.conversationId = conversationId;
    this.save();
  }

  /** @returns {Version | null} the version that is shown */
  get version() {
    return this.versions[this.at] ?? null;
  }

  /** Whether the version that is shown answers another message than `message`. */
  get isForAnother() {
    return this.version !== null && this.version.message.trim() !== this.message.trim();
  }

  /** Adds a version and shows it. Of very many, the oldest is dropped. @param {Version} version */
  add(version) {
    this.versions = [...this.versions, version].slice(-MAX_VERSIONS);
    this.at = this.versions.length - 1;
  }

  /** Takes a version back. If it was shown, the newest of the others is shown. @param {Version} version */
  remove(version) {
    const shown = this.version;
    this.versions = this.versions.filter((each) => each !== version);
    const at = this.versions.findIndex((each) => each === shown);
    this.at = at === -1 ? this.versions.length - 1 : at;
  }

  /**
   * Shows another version with the message that it answers. A message that the user has changed since is not replaced.
   * @param {number} by  1: the next version, -1: the one before
   */
  step(by) {
    const isChanged = this.from === "panel" && this.isForAnother;
    this.at = Math.min(Math.max(this.at + by, 0), this.versions.length - 1);
    if (this.version && !isChanged) ({ message: this.message, from: this.from } = this.version);
  }
}
