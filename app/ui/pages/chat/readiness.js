// The server and model state shown in the header. While the server is unreachable or not ready, it is polled: an idle
// page has no other way to notice that it is back.

import { api } from "../../shared/api.js";
import { byId } from "../../shared/dom.js";

const FIRST_PAUSE_MS = 1000;
const MAX_PAUSE_MS = 10_000;

export class Readiness {
  #state = "";
  #lastCheck = 0; // sequence number; responses to older requests are dropped
  #timer = null;
  #pauseMs = FIRST_PAUSE_MS;
  #shownError = null; // the error on the page about a server that is unreachable or not ready
  #wasDown = false; // a check has failed since, so the error is about the server and is cleared once the server is back

  // `modelName()` and `isReplying()` return the state to show; `onReconnect()` is called when the server is reachable
  // again.
  constructor(header, { modelName, isReplying, onReconnect }) {
    this.header = header;
    this.modelName = modelName;
    this.isReplying = isReplying;
    this.onReconnect = onReconnect;
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
      const wasAway = this.#state === "not reachable";
      this.connected();
      this.#clearShownError();
      if (wasAway) this.onReconnect();
    } catch (error) {
      if (mine !== this.#lastCheck) return;
      this.#wasDown = true;
      this.show(error.status === 0 ? "not reachable" : "not ready");
    }
  }

  connected() {
    this.show(this.isReplying() ? "replying" : "ready");
  }

  // Called when a request failed and its error is shown. Starts polling if the server is unreachable or its model is
  // unavailable.
  recordFailure(error) {
    if (error.status !== 0 && error.code !== "engine_unavailable") return;
    this.#shownError = error.message;
    this.#wasDown ||= error.status === 0;
    this.show(error.status === 0 ? "not reachable" : "not ready");
  }

  show(state) {
    if (state.startsWith("not ")) this.#scheduleCheck();
    else this.#cancelCheck();
    if (state !== this.#state) this.#write(state);
  }

  // Writes the status again with the current model name.
  refreshName() {
    this.#write(this.#state);
  }

  #write(state) {
    this.#state = state;
    this.header.showStatus(`${this.modelName()} · ${state}`, state);
  }

  #clearShownError() {
    const alert = byId("dm-alert");
    if (this.#wasDown && alert.textContent === this.#shownError) alert.textContent = "";
    this.#shownError = null;
    this.#wasDown = false;
  }

  #scheduleCheck() {
    if (this.#timer !== null || document.hidden) return; // a hidden page checks when it becomes visible
    this.#timer = setTimeout(() => {
      this.#timer = null;
      this.check();
    }, this.#pauseMs);
    this.#pauseMs = Math.min(this.#pauseMs * 2, MAX_PAUSE_MS);
  }

  #cancelCheck() {
    clearTimeout(this.#timer);
    this.#timer = null;
    this.#pauseMs = FIRST_PAUSE_MS;
  }
}
