// Client of /api/widget. Every failure is a WidgetError whose message can be shown to the visitor.

import { t } from "./texts.js";

/** @import { CaseState, Contact, Message, Session, StoredFile } from "./types.js" */

export class WidgetError extends Error {
  /** @param {string} message @param {number} status  0: there was no response @param {string} code @param {number | null} retryAfterS */
  constructor(message, status, code, retryAfterS = null) {
    super(message);
    this.status = status;
    this.code = code;
    this.retryAfterS = retryAfterS;
  }

  /** Whether the same request may succeed later. */
  get isTemporary() {
    return this.status === 0 || this.status === 401 || this.status === 429 || this.status >= 500;
  }
}

/** The error in words for the visitor. @param {unknown} error */
export const errorText = (error) => (error instanceof WidgetError ? error.message : t("Something went wrong here. Reload the page."));

export class WidgetApi {
  /** The visitor's token; null before the session has begun. @type {string | null} */
  token = null;

  /** @param {string} inbox  its public token @param {typeof fetch} fetcher */
  constructor(inbox, fetcher = (...request) => fetch(...request)) {
    this.inbox = inbox;
    this.fetcher = fetcher;
  }

  /** @param {{token: string | null, identity: string | null, language: string, time_zone: string}} visitor @returns {Promise<Session>} */
  async startSession(visitor) {
    const response = await this.#send("POST", `${encodeURIComponent(this.inbox)}/sessions`, JSON.stringify(visitor));
    return response.json();
  }

  /** @param {{text: string, client_id: string, attachments: string[]}} message @returns {Promise<{message: Message, case: CaseState}>} */
  async write(message) {
    return (await this.#send("POST", "messages", JSON.stringify(message))).json();
  }

  /** @returns {Promise<{case: CaseState}>} */
  async askForPerson() {
    return (await this.#send("POST", "hand-off", "{}")).json();
  }

  /** @param {string} messageId  the last message that the visitor sees */
  async markRead(messageId) {
    await this.#send("POST", "read", JSON.stringify({ message_id: messageId }));
  }

  /** @param {number} score  1 to 5 @param {string} comment */
  async rate(score, comment) {
    await this.#send("POST", "rating", JSON.stringify({ score, comment }));
  }

  /** @param {{name: string, email: string}} contact @returns {Promise<Contact>} */
  async changeContact(contact) {
    const response = await this.#send("PUT", "contact", JSON.stringify(contact));
    return response.status === 204 ? { ...contact, verified: false } : response.json();
  }

  /** @param {File} file @returns {Promise<StoredFile>} */
  async upload(file) {
    const form = new FormData();
    form.append("file", file);
    return (await this.#send("POST", "attachments", form)).json();
  }

  /** @param {string} id */
  async attachment(id) {
    return (await this.#send("GET", `attachments/${encodeURIComponent(id)}`)).blob();
  }

  async transcript() {
    return (await this.#send("GET", "transcript")).blob();
  }

  /** The response whose body is the stream of events. @param {string | null} lastEventId @param {AbortSignal} signal */
  events(lastEventId, signal) {
    /** @type {Record<string, string>} */
    const headers = lastEventId === null ? {} : { "Last-Event-ID": lastEventId };
    return this.#send("GET", "events", undefined, { signal, headers });
  }

  /** @param {string} method @param {string} path @param {string | FormData} [body] @param {RequestInit} options */
  async #send(method, path, body, options = {}) {
    /** @type {Record<string, string>} */
    const headers = { .../** @type {Record<string, string>} */ (options.headers) };
    if (this.token !== null && !path.endsWith("/sessions")) headers.Authorization = `Bearer ${this.token}`;
    if (typeof body === "string") headers["Content-Type"] = "application/json";
    let response;
    try {
      response = await this.fetcher(`/api/widget/${path}`, { ...options, method, headers, body, cache: "no-store", credentials: "omit" });
    } catch {
      throw new WidgetError(t("There is no connection at the moment."), 0, "unreachable");
    }
    if (response.ok) return response;
    const answer = await response.json().catch(() => null);
    const retryAfter = Number.parseInt(response.headers.get("Retry-After") ?? "", 10);
    throw new WidgetError(
      answer?.error?.message ?? t("That did not work. Try again."),
      response.status,
      answer?.error?.code ?? "unknown",
      Number.isNaN(retryAfter) ? null : retryAfter,
    );
  }
}
