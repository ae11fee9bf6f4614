// Request ids, by which the server recognises a retry.

import { ApiError, randomId } from "../../shared/api.js";

export class Retries {
  /** @type {{key: string, id: string} | null} */
  #unconfirmed = null; // the request whose response was lost, so it may have arrived

  /**
   * Sends a message with a request id. A retry of the same message after a lost response reuses its id, because the
   * first attempt may have arrived.
   * @template Result
   * @param {object} message  what the user asks for
   * @param {(requestId: string) => Promise<Result>} call
   */
  async send(message, call) {
    const key = JSON.stringify(message);
    if (this.#unconfirmed?.key !== key) this.#unconfirmed = { key, id: randomId() };
    try {
      const result = await call(this.#unconfirmed.id);
      this.#unconfirmed = null;
      return result;
    } catch (error) {
      if (!(error instanceof ApiError) || error.status !== 0) this.#unconfirmed = null;
      throw error;
    }
  }
}
