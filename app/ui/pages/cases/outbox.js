// What an agent writes in a case: a text for each mode, kept over reloads until it has surely arrived.

import { ApiError, errorMessage, randomId } from "../../shared/api.js";
import { storage } from "../../shared/dom.js";

/** @import { CaseMessage, CaseRow, Mode } from "./types.js" */

/**
 * A text that was not sent yet. `clientId`: under which it was sent, if it may have arrived: the server stores it once.
 * @typedef {{text: string, clientId: string | null}} Unsent
 */

/** @typedef {{message: CaseMessage, case: CaseRow}} Sent */

/** @param {string} caseId */
const keyOf = (caseId) => `deskmate.case.${caseId}`;

export class Outbox {
  /** @type {Mode} */
  mode = "reply";
  /** @type {Record<Mode, Unsent>} */
  unsent = { reply: { text: "", clientId: null }, note: { text: "", clientId: null } };
  /** @type {Mode | null} what is being sent */
  sending = null;
  /** @type {Record<Mode, string>} why it was not sent */
  error = { reply: "", note: "" };
  /** @type {string} what another agent has done since the reply was begun; empty: nothing */
  warning = "";
  #isWarned = false;

  /**
   * @param {string} caseId
   * @param {(mode: Mode, body: {text: string, client_id: string, epoch: number}) => Promise<Sent>} send
   */
  constructor(caseId, send) {
    this.caseId = caseId;
    this.send = send;
    try {
      const { mode, reply, note } = JSON.parse(storage.read("sessionStorage", keyOf(caseId)) ?? "{}");
      if (mode === "reply" || mode === "note") this.mode = mode;
      for (const [name, kept] of /** @type {[Mode, any][]} */ ([["reply", reply], ["note", note]])) {
        if (typeof kept?.text === "string") this.unsent[name] = { text: kept.text, clientId: kept.clientId ?? null };
      }
    } catch {
      // written by another version of this page
    }
  }

  get text() {
    return this.unsent[this.mode].text;
  }

  /** @param {Mode} mode */
  setMode(mode) {
    this.mode = mode;
    this.#save();
  }

  /** @param {string} text */
  setText(text) {
    const unsent = this.unsent[this.mode];
    if (unsent.text === text) return;
    unsent.text = text;
    unsent.clientId = null; // a changed text is another message
    if (text === "") this.warning = "";
    this.#save();
  }

  /**
   * Sends the text of the mode that is chosen now. Resolves to what was sent; null: there is nothing to send, or what went
   * wrong is in `error`, and the text stays. Rejects with the error of a stale case only.
   * @param {number} epoch  of the case as the user sees it
   * @returns {Promise<Sent | null>}
   */
  async submit(epoch) {
    const { mode } = this;
    const unsent = this.unsent[mode];
    const { text } = unsent;
    if (this.sending !== null || text.trim() === "") return null;
    if (mode === "reply" && this.warning !== "" && !this.#isWarned) {
      this.#isWarned = true;
      this.warning += " Send again to send it all the same.";
      return null;
    }
    unsent.clientId ??= randomId();
    this.sending = mode;
    this.error[mode] = "";
    this.#save(); // with its id: after a reload, sending it again is safe
    try {
      const sent = await this.send(mode, { text, client_id: unsent.clientId, epoch });
      this.#clear(mode);
      return sent;
    } catch (error) {
      this.error[mode] = errorMessage(error);
      if (error instanceof ApiError && error.status === 409) throw error;
      return null;
    } finally {
      this.sending = null;
    }
  }

  /** Messages have arrived at the server: what was waiting for an answer was among them, perhaps. @param {CaseMessage[]} messages */
  confirm(messages) {
    const arrived = new Set(messages.map(({ client_id: id }) => id).filter((id) => id !== null));
    let found = false;
    for (const mode of /** @type {Mode[]} */ (["reply", "note"])) {
      const { clientId } = this.unsent[mode];
      if (clientId === null || !arrived.has(clientId)) continue;
      this.#clear(mode);
      found = true;
    }
    return found;
  }

  /** Another agent has done something that the reply crosses. @param {string} what  such as "Ben has replied" */
  warn(what) {
    if (this.unsent.reply.text.trim() === "") return;
    this.warning = `${what}, while you were writing. Look at that first.`;
    this.#isWarned = false;
  }

  /** @param {Mode} mode */
  #clear(mode) {
    this.unsent[mode] = { text: "", clientId: null };
    this.error[mode] = "";
    if (mode === "reply") this.warning = "";
    this.#save();
  }

  #save() {
    const { mode, unsent } = this;
    const isEmpty = mode === "reply" && unsent.reply.text === "" && unsent.note.text === "";
    storage.write("sessionStorage", keyOf(this.caseId), isEmpty ? "" : JSON.stringify({ mode, ...unsent }));
  }
}
