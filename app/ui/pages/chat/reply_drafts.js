// Drafts of replies to customers: writes them, keeps their versions per conversation, and takes them to where they are
// used. Nothing here sends a message to the model's chat.

import { ApiError, conversationDrafts, errorMessage } from "../../shared/api.js";
import { DraftPanel } from "./draft_panel.js";
import { DraftState } from "./draft_state.js";
import { withSourceList, withoutCitations } from "./draft_text.js";

/** @import { Citation } from "../../components/chat/types.js" */
/** @import { ReplyDraftEvent } from "../../shared/api.js" */
/** @import { Version } from "./draft_state.js" */

const SAVE_MS = 500;
const WAITING = "Reading the message and its sources …";
const WRITING = "Writing the draft …";

/**
 * The box where a reply goes.
 * @typedef {object} ReplyTarget
 * @property {string} text  what the user has typed as the customer's message
 * @property {(text: string) => unknown} fill
 * @property {(text: string) => unknown} insert
 * @property {() => unknown} focusAfterDraft  takes the focus of a draft that is closed
 * @property {(text: string) => boolean} insertElsewhere  takes a canned reply, if a draft is open
 */

/**
 * @typedef {object} DraftsHost
 * @property {() => string | null} lastMessage  the user's last message in it
 * @property {(id: string | null, text: string, onCreated: (id: string) => void) => Promise<string>} prepare
 *   resolves to the open chat's id once its settings are saved; makes a conversation of a new chat, named after `text`
 * @property {() => string} rests  a sentence about what drafts of it rest on
 * @property {import("./draft_state.js").MessageFrom} [from]  where `lastMessage` is; default: the chat
 * @property {typeof conversationDrafts} [routes]  default: of conversations
 * @property {(text: string) => unknown} notify
 */

/** What a running request writes. @typedef {{state: DraftState, version: Version, controller: AbortController, stopped: boolean}} Run */

export class ReplyDrafts {
  #state = new DraftState(null);
  /** @type {Map<DraftState, Run>} */
  #runs = new Map();
  #starting = false; // a double click must not make two conversations
  /** @type {ReturnType<typeof setTimeout> | null} */
  #saveTimer = null;

  /** @param {ReplyTarget} composer @param {DraftsHost} host @param {DraftPanel} [panel] */
  constructor(composer, host, panel) {
    this.composer = composer;
    this.host = host;
    this.routes = host.routes ?? conversationDrafts;
    this.panel = panel ?? new DraftPanel({
      write: (change) => this.write(change),
      stop: () => this.stop(),
      copy: (withSources) => this.copy(withSources),
      insert: () => this.insert(),
      step: (by) => this.step(by),
      close: () => this.close(),
      changed: () => this.saveSoon(),
    }, { isInsertFirst: host.from === "case" });
    composer.insertElsewhere = (text) => this.panel.insert(text);
    addEventListener("pagehide", () => this.#save());
  }

  /** Another chat is shown, with the draft that this tab has of it. @param {string | null} conversationId */
  use(conversationId) {
    this.#state.save();
    this.#state = this.#stateOf(conversationId);
    this.#show();
  }

  /** A message has made a conversation of the new chat: the chat's draft is of it now. @param {string} conversationId */
  keepFor(conversationId) {
    if (this.#state.conversationId !== null) return;
    if (this.#runs.has(this.#state)) this.use(conversationId); // the draft is making a conversation of its own
    else this.#state.moveTo(conversationId);
  }

  /** A conversation was deleted. @param {string} conversationId */
  forget(conversationId) {
    const isIts = (/** @type {DraftState} */ state) => state.conversationId === conversationId;
    for (const state of [this.#state, ...this.#runs.keys()].filter(isIts)) state.isDeleted = true; // nothing saves it again
    for (const [state, run] of this.#runs) if (isIts(state)) run.controller.abort();
    DraftState.forget(conversationId);
    if (isIts(this.#state)) this.use(null);
  }

  /** @param {string | null} conversationId */
  #stateOf(conversationId) {
    const running = [...this.#runs.keys()].find((state) => state.conversationId === conversationId && !state.isDeleted);
    return running ?? DraftState.read(conversationId);
  }

  /**
   * The user wants a draft. The customer's message is the text in the message box; if that is empty, the user's last
   * message in the chat. A draft of the same message that is there already is shown again, and so is one of a message
   * that the user pasted or changed. While one is being written, no other is begun, whatever it answers.
   */
  open() {
    const state = this.#state;
    const typed = this.composer.text.trim();
    const isOwn = state.message.trim() !== "" && (state.from === "box" || state.from === "panel");
    const isWriting = this.#runs.has(state);
    const found = isWriting ? state.message : typed !== "" ? typed : isOwn ? state.message : (this.host.lastMessage()?.trim() ?? state.message);
    if (found !== state.message) {
      state.message = found;
      state.from = typed === "" ? (this.host.from ?? "chat") : "box";
    }
    const isChanged = state.from === "panel" && state.versions.length > 0; // the user decides when it is answered
    const answer = state.versions.findLastIndex(({ message }) => message.trim() === found.trim());
    if (state.isForAnother && answer !== -1) state.at = answer;
    state.isOpen = true;
    this.#show();
    state.save();
    const written = answer === -1 && found !== "" && !isWriting && !isChanged ? this.write(null) : undefined;
    this.panel.focus(); // on the text, which there is by now
    return written;
  }

  /** The customer has written: the draft may answer an earlier message by now. */
  messagesChanged() {
    this.panel.showIsLast(this.#isLast);
  }

  close() {
    this.#state.isOpen = false;
    this.#state.save();
    this.#show();
    this.composer.focusAfterDraft();
  }

  /** Writes a draft, or a change of the one that is shown, as a new version. @param {"shorter" | "friendlier" | null} change */
  async write(change) {
    const state = this.#state;
    if (this.#starting || this.#runs.has(state)) return;
    this.#starting = true;
    const { message, from, notes } = state;
    const draft = change === null ? "" : (state.version?.text ?? "");
    /** @type {Version} */
    const version = { id: null, text: "", sources: [], notice: "", writing: true, message, from };
    const run = { state, version, controller: new AbortController(), stopped: false };
    this.#runs.set(state, run);
    state.add(version);
    this.#show({ status: WAITING });
    try {
      const conversationId = await this.host.prepare(state.conversationId, message, (id) => state.moveTo(id));
      this.#starting = false;
      if (run.stopped) throw new DOMException("stopped", "AbortError");
      await this.routes.write(conversationId, { text: message, notes, draft, change, stream: true }, run.controller.signal, (event) => this.#onEvent(run, event));
      this.#ended(run, version.notice === "" ? "The draft is ready." : "");
    } catch (error) {
      if (run.controller.signal.aborted || run.stopped) {
        if (version.text !== "") version.notice = "You stopped this draft.";
        this.#ended(run, "Stopped.");
      } else this.#ended(run, "", errorMessage(error instanceof DOMException ? new ApiError(error.message, 0, "unreachable") : error));
    } finally {
      this.#starting = false;
    }
  }

  stop() {
    const run = this.#runs.get(this.#state);
    if (!run) return;
    run.stopped = true;
    run.controller.abort();
  }

  /** Copies the draft and keeps what the user made of it. @param {boolean} withSources */
  async copy(withSources) {
    const { version } = this.#state;
    if (!version) return;
    const text = withSources ? withSourceList(version.text, version.sources) : withoutCitations(version.text, version.sources);
    let said = withSources ? "Copied with its sources." : "Copied without the numbers of its sources. Paste it where you answer the customer.";
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      this.panel.select();
      said = "This browser doesn’t let the page copy. The text is selected: copy it with the keyboard.";
    }
    await this.#keep(version, "copied", said);
  }

  /** Puts the draft into the message box, in place of the customer's message that it was written from. */
  async insert() {
    const { version } = this.#state;
    if (!version) return;
    const text = withoutCitations(version.text, version.sources);
    if (this.composer.text.trim() === version.message.trim()) this.composer.fill(text);
    else this.composer.insert(text);
    const said = "Inserted into the message box. Nothing was sent.";
    if (!(await this.#keep(version, "inserted", said))) return;
    this.close();
    this.host.notify(said);
  }

  /** Shows another version. @param {number} by */
  step(by) {
    this.#state.step(by);
    this.#state.save();
    this.#show();
  }

  /** Keeps what was used for a review. Resolves to whether it was kept. @param {Version} version @param {"copied" | "inserted"} usedAs @param {string} said */
  async #keep(version, usedAs, said) {
    const state = this.#state;
    state.save();
    let error = "";
    try {
      if (version.id !== null && state.conversationId !== null) {
        await this.routes.use(state.conversationId, version.id, { text: version.text, used_as: usedAs });
      }
    } catch (problem) {
      error = `${said} It could not be kept for a review: ${errorMessage(problem)}`;
    }
    if (state !== this.#state) return false;
    this.#show({ status: error === "" ? said : "", error });
    return error === "";
  }

  /** @param {Run} run @param {ReplyDraftEvent} event */
  #onEvent({ state, version }, event) {
    if (event.name === "draft") Object.assign(version, { id: event.data.id, sources: event.data.sources });
    if (event.name === "text") version.text += event.data.text;
    if (event.name === "end") {
      const { id, text, citations, notice } = event.data;
      if (id === null) version.sources = /** @type {Citation[]} */ (citations);
      Object.assign(version, { id, text, notice: notice ?? "", writing: false });
    }
    this.saveSoon();
    if (state === this.#state) this.#show({ status: version.writing ? WRITING : "" });
  }

  /** @param {Run} run @param {string} status @param {string} error */
  #ended({ state, version }, status, error = "") {
    this.#runs.delete(state);
    version.writing = false;
    if (version.text === "" && version.notice === "") state.remove(version);
    else if (error !== "" && version.notice === "") version.notice = "This draft is not complete.";
    state.save();
    if (state !== this.#state) return;
    this.#show({ status, error });
  }

  /** Saves what has changed. Not a debounce: a draft that is being written would put off what the user types in another. */
  saveSoon() {
    this.#saveTimer ??= setTimeout(() => this.#save(), SAVE_MS);
  }

  #save() {
    if (this.#saveTimer !== null) clearTimeout(this.#saveTimer);
    this.#saveTimer = null;
    for (const state of new Set([this.#state, ...this.#runs.keys()])) state.save();
  }

  get #isLast() {
    const message = this.#state.message.trim();
    return (this.host.lastMessage()?.trim() ?? message) === message;
  }

  /** @param {{status?: string, error?: string}} shown */
  #show(shown = {}) {
    const run = this.#runs.get(this.#state);
    const status = shown.status ?? (run ? (run.version.text === "" ? WAITING : WRITING) : "");
    this.panel.show(this.#state, { ...shown, status, rests: this.host.rests(), isLast: this.#isLast });
  }
}
