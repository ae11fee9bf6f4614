// Whether the server answers and its model is ready, as the header says it. While it does not, it is asked again:
// nothing else tells a page at rest that it is back.

import { api } from "./api.js";
import { byId } from "./dom.js";

const FIRST_PAUSE_MS = 1000;
const MAX_PAUSE_MS = 10_000;

export class Readiness {
  #state = "";
  #lastCheck = 0; // only the newest answer counts
  #timer = null;
  #pauseMs = FIRST_PAUSE_MS;
  #shownError = null; // what the page says of a server that cannot be reached, or is not ready
  #wasDown = false; // seen since: the complaint is about more than one request, and over once the server is back

  // `modelName()`, `isReplying()`; `onReconnect()`: the server can be reached again.
  constructor({ modelName, isReplying, onReconnect }) {
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

  // A request failed, and the page says so: perhaps because there is no server, or its model cannot answer now.
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

  // Another model is loaded: its name stands beside the state.
  refreshName() {
    this.#write(this.#state);
  }

  #write(state) {
    this.#state = state;
    const status = byId("dm-status");
    status.textContent = `${this.modelName()} · ${state}`;
    status.dataset.state = state;
  }

  #clearShownError() {
    const alert = byId("dm-alert");
    if (this.#wasDown && alert.textContent === this.#shownError) alert.textContent = "";
    this.#shownError = null;
    this.#wasDown = false;
  }

  #scheduleCheck() {
    if (this.#timer !== null || document.hidden) return; // the page asks when it is seen again
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
