// The model in the settings panel: what is loaded, what it is doing, and another one to load.

import { api } from "./api.js";
import { byId } from "./dom.js";

const POLL_MS = 1000;

const STATES = {
  stopped: "stopped",
  starting: "loading",
  ready: "ready",
  draining: "finishing its replies",
  asleep: "asleep",
  swapping: "loading another model",
  restarting: "starting again after a failure",
  failed: "failed",
};
const REMOTE_STATES = { starting: "waiting for its server", failed: "cannot be reached" };
const RESTING = new Set(["asleep", "failed"]);
const STEADY = new Set(["ready", ...RESTING]);

// A model that is fetched from the hub is on its way while the old one is still ready.
const isMoving = ({ state, stage }) => stage !== null || !STEADY.has(state);

const number = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const percent = (share) => `${Math.round(100 * share)} %`;

export class Model {
  #timer = null;
  #lastLook = null; // only the newest look is shown
  #isRequestPending = false; // a button of this tab was pressed and has no answer yet
  #shown = "";

  // `isOpen()`: the panel can be seen; `canChange()`: this person may load another model; `changed()`: the model or its
  // state is another than before.
  constructor({ isOpen, canChange, changed }) {
    this.isOpen = isOpen;
    this.canChange = canChange;
    this.changed = changed;
    this.input = byId("dm-model-name");
    this.load = byId("dm-model-load");
    this.rest = byId("dm-model-rest");
    this.error = byId("dm-model-error");
    this.load.addEventListener("click", () => this.#swap());
    this.rest.addEventListener("click", () => this.#ask(() => (this.resting ? api.wake() : api.sleep())));
    this.input.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.isComposing) return;
      event.preventDefault();
      this.#swap();
    });
  }

  // Shows how it is now, and goes on looking while somebody can see it or something is being loaded.
  // Resolves when it is shown; should another look begin meanwhile, with that one, which sees what is newer.
  refresh() {
    clearTimeout(this.#timer);
    const look = {};
    this.#lastLook = look;
    look.shown = this.#look(look);
    return look.shown;
  }

  async #look(look) {
    let engine = null;
    let sentence = "";
    try {
      engine = await api.engine();
    } catch (error) {
      sentence = error.message;
    }
    if (look !== this.#lastLook) {
      await this.#lastLook.shown;
      return;
    }
    if (engine) this.#show(engine);
    else this.#write("dm-model-state", sentence);
    const moving = this.#isRequestPending || (engine && isMoving(engine));
    if (moving || (this.isOpen() && !document.hidden)) this.#timer = setTimeout(() => this.refresh(), POLL_MS);
  }

  async #swap() {
    const name = this.input.value.trim();
    if (name === "") {
      this.#complain("Write a folder or a hub id first.");
      this.input.focus();
      return;
    }
    if (this.load.disabled) {
      this.#complain("Wait until the model is ready, then load another one.");
      return;
    }
    if (await this.#ask(() => api.swap(name))) this.input.value = "";
  }

  async #ask(question) {
    this.#complain("");
    this.#isRequestPending = true;
    this.#enable(false);
    const answer = question();
    this.refresh();
    let sentence = "";
    try {
      await answer;
    } catch (error) {
      sentence = error.message;
    }
    this.#isRequestPending = false;
    await this.refresh();
    this.#complain(sentence); // last: whoever reads it can act on it at once
    return sentence === "";
  }

  #complain(sentence) {
    this.error.textContent = sentence;
    if (sentence !== "") this.error.scrollIntoView({ block: "nearest" });
  }

  #enable(steady) {
    this.load.disabled = !steady || this.#isRequestPending;
    this.rest.disabled = this.load.disabled;
  }

  #show({ state, reason, stage, progress, source, remote, model, stats }) {
    this.resting = RESTING.has(state);
    byId("dm-model-life").hidden = remote || !this.canChange(); // another server decides about it, or an admin
    if (remote) {
      const elsewhere = `It runs on another server: ${source} (${model.attention}), context of ${model.max_model_len.toLocaleString("en")} tokens. Settings left at the model's default are that server's to choose.`;
      this.#write("dm-model-state", `${model.name} · ${REMOTE_STATES[state] ?? STATES[state] ?? state}`);
      this.#write("dm-model-about", state === "ready" ? elsewhere : (reason ?? ""));
      this.#notifyIfChanged(`${source} ${model.name} ${state}`);
      return;
    }
    this.#write("dm-model-state", `${model.name} · ${STATES[state] ?? state}`);
    const about = `${number.format(model.num_parameters)} parameters, ${model.dtype} on ${model.device}, context of ${model.max_model_len.toLocaleString("en")} tokens.`;
    const plain = model.has_chat_template ? "" : "It has no chat template: it reads a plain dialogue, and may answer poorly.";
    const adapter = model.has_unused_adapter ? "The LoRA adapter in its folder is not applied. Merge it into the weights to use it." : "";
    const used = stats.utilisation;
    const work = `In the last minute it computed ${percent(used.device_busy)} of the time, ${Math.round(used.generation_tokens_per_second * 60)} tokens.`;
    const doing = stage ? `${stage} …` : null;
    this.#write("dm-model-about", doing ?? (state === "ready" ? [about, plain, adapter, work].filter(Boolean).join(" ") : (reason ?? "")));
    byId("dm-model-progress").hidden = doing === null;
    byId("dm-model-progress").value = progress ?? 0;
    this.rest.textContent = this.resting ? "Wake up" : "Sleep";
    this.#enable(!isMoving({ state, stage }));
    this.#notifyIfChanged(`${source} ${model.name} ${state}`);
  }

  #notifyIfChanged(shown) {
    if (this.#shown !== "" && shown !== this.#shown) this.changed();
    this.#shown = shown;
  }

  // A screen reader hears what is written into a status, also where it is the same.
  #write(id, text) {
    if (byId(id).textContent !== text) byId(id).textContent = text;
  }
}
