// The settings of the open chat, and the saves of all chats: which are under way, have failed or are confirmed.

import { debounce } from "../../shared/dom.js";

/** @import { Values } from "./settings_rules.js" */

const NEW_CHAT_KEY = "deskmate.new-chat-settings";
const UNSAVED_KEY = "deskmate.unsaved-settings";
/** A page that loads later takes the server's settings: other tabs may have changed them meanwhile. */
const UNSAVED_MAX_AGE_MS = 30_000;
const SAVE_AFTER_MS = 400;
export const SAVING = "Saving …";
export const SAVED = "Saved with this conversation.";

/** @typedef {"localStorage" | "sessionStorage"} StorageArea */

/**
 * What the state needs from the page.
 * @typedef {object} Page
 * @property {Readonly<Values>} empty  the settings of a chat for which nothing was chosen
 * @property {(conversationId: string, settings: Values, keepalive?: boolean) => Promise<unknown>} save
 *     sends settings to the server; `keepalive`: the page is being unloaded
 * @property {(error: Error) => void} onSaveFailed  saving failed for a conversation that is no longer shown
 * @property {{textContent: string | null}} note  shows how saving goes
 * @property {{read: (area: StorageArea, key: string) => string | null, write: (area: StorageArea, key: string, value: string | null) => void}} storage
 * @property {() => number} [now]  as performance.now()
 */

export class SettingsState {
  /** @type {string | null} null is a new chat */
  #conversationId = null;
  /** One save at a time: with two in flight, the older one might arrive last. @type {Promise<void>} */
  #queue = Promise.resolve();
  /** @type {Map<string, Values>} by conversation: not yet confirmed by the server */
  #pending = new Map();
  /** @type {Map<string, Values>} by conversation: failed to save; retried when the conversation is opened */
  #failed = new Map();
  /** @type {Map<string, {value: Values, when: number}>} by conversation: the last confirmed save */
  #confirmed = new Map();

  /** @param {Page} page */
  constructor({ empty, save, onSaveFailed, note, storage, now = () => performance.now() }) {
    this.empty = empty;
    this.save = save;
    this.onSaveFailed = onSaveFailed;
    this.note = note;
    this.storage = storage;
    this.now = now;
    /** @type {Values} */
    this.value = empty;
    this.unsaved = false;
    /** What the user's new chats begin with. @type {Partial<Values> | null} */
    this.newChats = null;
    this.saveSoon = debounce(SAVE_AFTER_MS, () => this.#save());
    this.#failed = this.#takeUnsaved();
  }

  /**
   * Takes the settings of a conversation; id null is a new chat.
   * @param {string | null} conversationId
   * @param {Partial<Values> | null} settings  as the server has them
   * @param {number} requestedAt  when they were requested
   */
  open(conversationId, settings, requestedAt) {
    if (this.unsaved && this.#conversationId) this.#save(); // before switching away from it
    this.saveSoon.cancel();
    this.#conversationId = conversationId;
    this.unsaved = false;
    if (conversationId === null) {
      this.value = this.#newChatSettings();
    } else {
      const unanswered = this.#pending.get(conversationId); // newer than the server's response
      const confirmed = this.#confirmed.get(conversationId); // newer, if confirmed after the request
      const newer = unanswered ?? (confirmed !== undefined && confirmed.when >= requestedAt ? confirmed.value : undefined);
      const failed = unanswered === undefined ? this.#failed.get(conversationId) : undefined;
      this.value = failed ?? newer ?? { ...this.empty, ...settings };
      this.unsaved = unanswered !== undefined || failed !== undefined;
      if (failed !== undefined) this.saveSoon();
    }
    this.note.textContent = this.unsaved ? SAVING : "";
  }

  /** The user changed the settings. @param {Values} value */
  change(value) {
    this.value = value;
    this.unsaved = this.#conversationId !== null;
    if (!this.unsaved) {
      this.storage.write("localStorage", NEW_CHAT_KEY, JSON.stringify(value));
      return;
    }
    this.note.textContent = SAVING;
    this.saveSoon();
  }

  /** The settings to send with a new turn: always for a new chat, otherwise only if they are unsaved; else null. */
  settingsForTurn() {
    this.saveSoon.cancel();
    return this.#conversationId === null || this.unsaved ? this.value : null;
  }

  /**
   * The server accepted a turn.
   * @param {string} conversationId
   * @param {Values | null} carried  what settingsForTurn() returned for it
   */
  onTurnAccepted(conversationId, carried) {
    if (this.#conversationId === null) this.storage.write("localStorage", NEW_CHAT_KEY, null);
    this.#conversationId = conversationId;
    if (carried === null) return; // nothing was unsaved then; later changes are already being saved
    // A save in flight may be older than the turn's settings and arrive after them.
    this.unsaved = carried !== this.value || this.#pending.has(conversationId);
    this.note.textContent = this.unsaved ? SAVING : "";
    if (this.unsaved) this.saveSoon();
  }

  /** The server refused a turn: its settings still have to be saved. */
  onTurnRefused() {
    if (this.unsaved) this.saveSoon();
  }

  /** The page is being unloaded: saves what is not saved, of all conversations. */
  onPageHide() {
    if (this.unsaved && this.#conversationId) this.#failed.set(this.#conversationId, this.value);
    if (this.#failed.size === 0) return;
    // A page that is reloaded may ask for the conversation before these saves arrive.
    this.storage.write("sessionStorage", UNSAVED_KEY, JSON.stringify({ when: Date.now(), settings: [...this.#failed] }));
    for (const [id, value] of this.#failed) this.save(id, value, true).catch(() => {}); // no page to show the error
  }

  /** What this tab's last page could not confirm, by conversation. @returns {Map<string, Values>} */
  #takeUnsaved() {
    const text = this.storage.read("sessionStorage", UNSAVED_KEY);
    this.storage.write("sessionStorage", UNSAVED_KEY, null);
    try {
      const { when, settings } = JSON.parse(text ?? '{"settings": []}');
      return new Map(Date.now() - when > UNSAVED_MAX_AGE_MS ? [] : settings);
    } catch {
      return new Map(); // not JSON that this page wrote
    }
  }

  /** @returns {Values} */
  #newChatSettings() {
    const start = { ...this.empty, ...this.newChats };
    try {
      return { ...start, ...JSON.parse(this.storage.read("localStorage", NEW_CHAT_KEY) ?? "{}") };
    } catch {
      return start; // not JSON that this page wrote
    }
  }

  #save() {
    const { value } = this;
    const conversationId = this.#conversationId;
    if (conversationId === null) return; // nothing is unsaved then
    this.#pending.set(conversationId, value);
    this.#failed.delete(conversationId);
    this.#queue = this.#queue.then(() => this.#send(conversationId, value));
  }

  /** @param {string} conversationId @param {Values} value */
  async #send(conversationId, value) {
    if (this.#pending.get(conversationId) !== value) return; // superseded by a newer save in the queue
    try {
      await this.save(conversationId, value);
      this.#confirmed.set(conversationId, { value, when: this.now() });
    } catch (cause) {
      const error = /** @type {Error & {status?: number}} */ (cause);
      if (conversationId === this.#conversationId) this.note.textContent = error.message;
      else if (error.status !== 404 && this.#pending.get(conversationId) === value) {
        this.#failed.set(conversationId, value); // not on 404: a deleted conversation needs no settings
        this.onSaveFailed(error);
      }
      return;
    } finally {
      if (this.#pending.get(conversationId) === value) this.#pending.delete(conversationId);
    }
    if (value !== this.value) return; // changed again meanwhile, or another conversation is shown
    this.unsaved = false;
    // Don't overwrite an error shown meanwhile.
    if (this.note.textContent === SAVING) this.note.textContent = SAVED;
  }
}
