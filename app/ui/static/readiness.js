// Whether the server answers and its model is ready, as the header says it. While it does not, it is asked again:
// nothing else tells a page at rest that it is back.

import { api } from "./api.js";
import { byId } from "./dom.js";

const FIRST_PAUSE_MS = 1000;
const MAX_PAUSE_MS = 10_000;

export class Readiness {
  #state = "";
  #newest = 0; // only the newest answer counts
  #timer = null;
  #pause = FIRST_PAUSE_MS;
  #complaint = null; // what the page says of a server that cannot be reached, or is not ready
  #wasDown = false; // seen since: the complaint is about more than one request, and over once the server is back

  // `modelName()`, `isReplying()`; `back()`: the server can be reached again.
  constructor({ modelName, isReplying, back }) {
    this.modelName = modelName;
    this.isReplying = isReplying;
    this.back = back;
    addEventListener("online", () => {
      this.#stopAsking();
      this.check();
    });
  }

  async check() {
    const mine = ++this.#newest;
    try {
      await api.ready();
      if (mine !== this.#newest) return;
      const wasAway = this.#state === "not reachable";
      this.connected();
      this.#withdrawComplaint();
      if (wasAway) this.back();
    } catch (error) {
      if (mine !== this.#newest) return;
      this.#wasDown = true;
      this.show(error.status === 0 ? "not reachable" : "not ready");
    }
  }

  connected() {
    this.show(this.isReplying() ? "replying" : "ready");
  }

  // A request failed, and the page says so: perhaps because there is no server, or its model cannot answer now.
  failed(error) {
    if (error.status !== 0 && error.code !== "engine_unavailable") return;
    this.#complaint = error.message;
    this.#wasDown ||= error.status === 0;
    this.show(error.status === 0 ? "not reachable" : "not ready");
  }

  show(state) {
    if (state.startsWith("not ")) this.#askAgain();
    else this.#stopAsking();
    if (state !== this.#state) this.#write(state);
  }

  // Another model is loaded: its name stands beside the state.
  nameAgain() {
    this.#write(this.#state);
  }

  #write(state) {
    this.#state = state;
    const status = byId("dm-status");
    status.textContent = `${this.modelName()} · ${state}`;
    status.dataset.state = state;
  }

  #withdrawComplaint() {
    const alert = byId("dm-alert");
    if (this.#wasDown && alert.textContent === this.#complaint) alert.textContent = "";
    this.#complaint = null;
    this.#wasDown = false;
  }

  #askAgain() {
    if (this.#timer !== null || document.hidden) return; // the page asks when it is seen again
    this.#timer = setTimeout(() => {
      this.#timer = null;
      this.check();
    }, this.#pause);
    this.#pause = Math.min(this.#pause * 2, MAX_PAUSE_MS);
  }

  #stopAsking() {
    clearTimeout(this.#timer);
    this.#timer = null;
    this.#pause = FIRST_PAUSE_MS;
  }
}
