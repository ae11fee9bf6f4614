// The model section of the settings panel: the loaded model, its state, sleep and wake, and loading another model.

import { Component } from "../../shared/component.js";
import { api } from "../../shared/api.js";
import { byId } from "../../shared/dom.js";

const POLL_MS = 1000;

const STATES = {
  stopped: "stopped",
  starting: "loading",
  ready: "ready",
  draining: "finishing its replies",
  asleep: "asleep",
  swapping: "loading another model",
  restarting: "restarting after a failure",
  failed: "failed",
};
const REMOTE_STATES = { starting: "waiting for the server", failed: "cannot be reached" };
const RESTING = new Set(["asleep", "failed"]);
const STEADY = new Set(["ready", ...RESTING]);

// While a model is downloaded from the hub, the state is still "ready": the old model keeps serving.
const isMoving = ({ state, stage }) => stage !== null || !STEADY.has(state);

const number = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const percent = (share) => `${Math.round(100 * share)} %`;

export class Model extends Component {
  #timer = null;
  #lastPoll = null; // the latest poll; results of older ones are dropped
  #isRequestPending = false; // a request made in this tab has no response yet
  #shown = "";

  isOpen = () => true; // whether the panel is visible
  canChange = () => false; // whether this user may load another model

  constructor(context) {
    super(context);
    this.input = byId("dm-model-name");
    this.loadButton = byId("dm-model-load");
    this.sleepButton = byId("dm-model-rest");
    this.error = byId("dm-model-error");
    this.loadButton.addEventListener("click", () => this.#swap());
    this.sleepButton.addEventListener("click", () => this.#ask(() => (this.resting ? api.wake() : api.sleep())));
    this.input.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.isComposing) return;
      event.preventDefault();
      this.#swap();
    });
  }

  // Shows the current state, and keeps polling while the panel is visible or a model is loading.
  // Resolves once the state is shown; if a newer poll starts meanwhile, resolves with that one.
  refresh() {
    clearTimeout(this.#timer);
    const poll = {};
    this.#lastPoll = poll;
    poll.shown = this.#poll(poll);
    return poll.shown;
  }

  async #poll(poll) {
    let engine = null;
    let sentence = "";
    try {
      engine = await api.engine();
    } catch (error) {
      sentence = error.message;
    }
    if (poll !== this.#lastPoll) {
      await this.#lastPoll.shown;
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
      this.#complain("Enter a folder or a hub ID first.");
      this.input.focus();
      return;
    }
    if (this.loadButton.disabled) {
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
    this.#complain(sentence); // last, when the buttons work again
    return sentence === "";
  }

  #complain(sentence) {
    this.error.textContent = sentence;
    if (sentence !== "") this.error.scrollIntoView({ block: "nearest" });
  }

  #enable(steady) {
    this.loadButton.disabled = !steady || this.#isRequestPending;
    this.sleepButton.disabled = this.loadButton.disabled;
  }

  #show({ state, reason, stage, progress, source, remote, model, stats }) {
    this.resting = RESTING.has(state);
    byId("dm-model-life").hidden = remote || !this.canChange(); // managed by its own server, or by admins
    if (remote) {
      const elsewhere = `Runs on another server: ${source} (${model.attention}), context of ${model.max_model_len.toLocaleString("en")} tokens. That server chooses the settings left at the model's default.`;
      this.#write("dm-model-state", `${model.name} · ${REMOTE_STATES[state] ?? STATES[state] ?? state}`);
      this.#write("dm-model-about", state === "ready" ? elsewhere : (reason ?? ""));
      this.#notifyIfChanged(`${source} ${model.name} ${state}`);
      return;
    }
    this.#write("dm-model-state", `${model.name} · ${STATES[state] ?? state}`);
    const about = `${number.format(model.num_parameters)} parameters, ${model.dtype} on ${model.device}, context of ${model.max_model_len.toLocaleString("en")} tokens.`;
    const plain = model.has_chat_template ? "" : "It has no chat template, so it gets a plain dialogue and may answer poorly.";
    const adapter = model.has_unused_adapter ? "The LoRA adapter in its folder is not applied. Merge it into the weights to use it." : "";
    const used = stats.utilisation;
    const work = `In the last minute it was busy ${percent(used.device_busy)} of the time and generated ${Math.round(used.generation_tokens_per_second * 60)} tokens.`;
    const doing = stage ? `${stage} …` : null;
    this.#write("dm-model-about", doing ?? (state === "ready" ? [about, plain, adapter, work].filter(Boolean).join(" ") : (reason ?? "")));
    byId("dm-model-progress").hidden = doing === null;
    byId("dm-model-progress").value = progress ?? 0;
    this.sleepButton.textContent = this.resting ? "Wake up" : "Sleep";
    this.#enable(!isMoving({ state, stage }));
    this.#notifyIfChanged(`${source} ${model.name} ${state}`);
  }

  #notifyIfChanged(shown) {
    if (this.#shown !== "" && shown !== this.#shown) this.emit("changed");
    this.#shown = shown;
  }

  // Writes only changes: screen readers announce every write to a status element, even of the same text.
  #write(id, text) {
    if (byId(id).textContent !== text) byId(id).textContent = text;
  }
}

export const mount = (context) => new Model(context);
