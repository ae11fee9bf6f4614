// Messages on their way. Each is stored before it is sent, under a key and with an id of its own: tabs cannot overwrite
// one another's, one tab sends at a time, and the server stores an id once.

import { WidgetError, errorText } from "./api.js";

/** @import { Pending, StoredFile } from "./types.js" */
/** @import { Store } from "./store.js" */

const FIRST_RETRY_MS = 2000;
const MAX_RETRY_MS = 60_000;

// Not crypto.randomUUID: browsers offer it only in secure contexts.
const randomId = () => [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");

export class Outbox {
  #retryMs = FIRST_RETRY_MS;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #timer;
  /** @type {Promise<void>} what this tab does one after the other where there are no locks */
  #turn = Promise.resolve();
  #lastAt = 0;

  /**
   * @param {Store} store
   * @param {{request: (name: string, options: object, work: () => Promise<void>) => Promise<unknown>} | undefined} locks
   * @param {(message: Pending) => Promise<unknown>} send
   * @param {() => void} onChange
   */
  constructor(store, locks, send, onChange) {
    this.store = store;
    this.locks = locks;
    this.send = send;
    this.onChange = onChange;
  }

  /** The messages that are not sent yet, of all tabs, the oldest first. @returns {Pending[]} */
  list() {
    const found = this.store.keys("outbox:").flatMap((key) => this.#read(key) ?? []);
    return found.sort((a, b) => a.at - b.at || (a.client_id < b.client_id ? -1 : 1));
  }

  /** @param {string} text @param {StoredFile[]} files */
  add(text, files = []) {
    this.#lastAt = Math.max(Date.now(), this.#lastAt + 1); // two within a millisecond keep their order
    this.#write({ client_id: randomId(), text, files, at: this.#lastAt, problem: null });
    return this.flush();
  }

  /** Sends a message again that was refused. @param {string} id */
  retry(id) {
    const message = this.#read(`outbox:${id}`);
    if (message) this.#write({ ...message, problem: null });
    return this.flush();
  }

  /** @param {string} id */
  drop(id) {
    this.store.remove(`outbox:${id}`);
    this.onChange();
  }

  clear() {
    clearTimeout(this.#timer);
    for (const key of this.store.keys("outbox:")) this.store.remove(key);
    this.onChange();
  }

  /** Sends what waits, unless another tab is sending, which then sends this tab's, too. Resolves once that was tried. */
  async flush() {
    clearTimeout(this.#timer);
    const work = () => this.#sendAll();
    if (this.locks) {
      await this.locks.request(`${this.store.prefix}outbox`, { mode: "exclusive" }, work);
      return;
    }
    this.#turn = this.#turn.then(work);
    await this.#turn;
  }

  async #sendAll() {
    for (;;) {
      const next = this.list().find((message) => message.problem === null);
      if (next === undefined) return;
      try {
        await this.send(next);
      } catch (error) {
        if (!(error instanceof WidgetError) || error.isTemporary) {
          this.#later(error instanceof WidgetError ? error.retryAfterS : null);
          return;
        }
        if (this.#read(`outbox:${next.client_id}`)) this.#write({ ...next, problem: errorText(error) });
        continue;
      }
      this.#retryMs = FIRST_RETRY_MS;
      this.drop(next.client_id);
    }
  }

  /** @param {number | null} retryAfterS */
  #later(retryAfterS) {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.flush(), Math.max((retryAfterS ?? 0) * 1000, this.#retryMs));
    this.#retryMs = Math.min(this.#retryMs * 2, MAX_RETRY_MS);
  }

  /** @param {string} key @returns {Pending | null} */
  #read(key) {
    try {
      const { client_id, text, files, at, problem } = JSON.parse(this.store.get(key) ?? "");
      if (typeof client_id !== "string" || typeof text !== "string" || !Array.isArray(files)) return null;
      return { client_id, text, files, at: Number(at), problem: problem ?? null };
    } catch {
      return null;
    }
  }

  /** @param {Pending} message */
  #write(message) {
    this.store.set(`outbox:${message.client_id}`, JSON.stringify(message));
    this.onChange();
  }
}
