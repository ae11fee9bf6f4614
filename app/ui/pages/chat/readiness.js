// The server and model state shown in the header. While the server is unreachable or not ready, or its model is loading,
// it is polled: an idle page has no other way to notice a change.

import { ApiError, api } from "../../shared/api.js";

const FIRST_PAUSE_MS = 1000;
const MAX_PAUSE_MS = 10_000;
const LOADING = "loading";

/** @param {unknown} error */
const isUnreachable = (error) => error instanceof ApiError && error.status === 0;

export class Readiness {
  #state = "";
  #lastCheck = 0; // sequence number; responses to older requests are dropped
  /** @type {ReturnType<typeof setTimeout> | null} */
  #timer = null;
  #pauseMs = FIRST_PAUSE_MS;
  /** @type {ApiError | null} */
  #shownError = null; // the error on the page about a server that is unreachable or not ready
  #wasDown = false; // a check has failed since, so the error is about the server and is cleared once the server is back
  #isAway = false; // the server was unreachable, and has not answered a check since

  /**
   * @param {{showStatus(text: string, state: string): void}} header
   * @param {object} page
   * @param {() => string} page.modelName
   * @param {() => boolean} page.isReplying
   * @param {() => boolean} page.isLoading  the page was opened before the first model was loaded
   * @param {() => void} page.onLoaded  called when that model is loaded
   * @param {() => void} page.onReconnect  called when the server is reachable again, whether its model is loaded or not
   * @param {(message: string) => void} page.withdrawError  hides an error, if it is still the one shown
   */
  constructor(header, { modelName, isReplying, isLoading, onLoaded, onReconnect, withdrawError }) {
    this.header = header;
    this.modelName = modelName;
    this.isReplying = isReplying;
    this.isLoading = isLoading;
    this.onLoaded = onLoaded;
    this.onReconnect = onReconnect;
    this.withdrawError = withdrawError;
    addEventListener("online", () => {
      this.#cancelCheck();
      this.check();
    });
  }

  async check() {
    const mine = ++this.#lastCheck;
    try {
      await api.ready();
      if (mine !== this.#lastCheck) return;
      const wasAway = this.#isAway;
      this.#isAway = false;
      this.connected();
      this.#clearShownError();
      if (wasAway) this.onReconnect();
      else if (this.isLoading()) this.onLoaded();
    } catch (error) {
      if (mine !== this.#lastCheck) return;
      this.#wasDown = true;
      if (isUnreachable(error)) {
        this.show("not reachable");
        return;
      }
      const wasAway = this.#isAway;
      this.#isAway = false;
      this.show(this.#notReady());
      if (!wasAway) return;
      if (isUnreachable(this.#shownError)) this.#clearShownError();
      this.onReconnect(); // it has been started again, and loads its model
    }
  }

  connected() {
    this.show(this.isReplying() ? "replying" : "ready");
  }

  /**
   * Called when a request failed and its error is shown. Starts polling if the server is unreachable or its model is
   * unavailable.
   * @param {unknown} error
   */
  recordFailure(error) {
    if (!(error instanceof ApiError)) return;
    if (error.status !== 0 && error.code !== "engine_unavailable") return;
    this.#shownError = error;
    this.#wasDown ||= error.status === 0;
    this.show(error.status === 0 ? "not reachable" : this.#notReady());
  }

  #notReady() {
    return this.isLoading() ? LOADING : "not ready";
  }

  /** @param {string} state  begins with "not" if it is a problem */
  show(state) {
    if (state === "not reachable") this.#isAway = true;
    else if (this.#isAway && !state.startsWith("not ")) {
      this.check(); // only its answer tells whether the server is back, and what to do then
      if (state === "ready") return;
    }
    if (state === "ready" && this.isLoading()) state = LOADING;
    if (state === LOADING || state.startsWith("not ")) this.#scheduleCheck();
    else this.#cancelCheck();
    if (state !== this.#state) this.#write(state);
  }

  // Writes the status again with the current model name.
  refreshName() {
    this.#write(this.#state);
  }

  /** @param {string} state */
  #write(state) {
    this.#state = state;
    this.header.showStatus(`${this.modelName()} · ${state}`, state);
  }

  #clearShownError() {
    if (this.#wasDown && this.#shownError !== null) this.withdrawError(this.#shownError.message);
    this.#shownError = null;
    this.#wasDown = false;
  }

  #scheduleCheck() {
    if (this.#timer !== null || document.hidden) return; // a hidden page checks when it becomes visible
    this.#timer = setTimeout(() => {
      this.#timer = null;
      this.check();
    }, this.#pauseMs);
    if (!this.isLoading()) this.#pauseMs = Math.min(this.#pauseMs * 2, MAX_PAUSE_MS);
  }

  #cancelCheck() {
    if (this.#timer !== null) clearTimeout(this.#timer);
    this.#timer = null;
    this.#pauseMs = FIRST_PAUSE_MS;
  }
}
