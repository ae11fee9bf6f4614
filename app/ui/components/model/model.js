// The model section of the settings panel: the loaded model, its state, sleep and wake, and loading another model.

import { Component } from "../../shared/component.js";
import { withLabels } from "../../shared/labels.js";
import { describeEngine, describeState, isMoving, isResting } from "./model_text.js";

/** @typedef {import("./model_text.js").EngineState} EngineState */

const POLL_MS = 1000;

export class Model extends Component {
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #timer;
  #lastRequest = 0;
  /** @type {number | null} number of the user's request that has no answer yet */
  #pending = null;
  /** @type {EngineState | null} */
  #engine = null;
  #shown = "";

  isOpen = () => this.element.checkVisibility();
  canChange = () => Boolean(this.props.can_change);
  /** Resolves to why no listener could answer, as a sentence. */
  explain = async () => "The server did not answer. Try again.";

  /** @param {import("../../shared/component.js").Context} context */
  constructor(context) {
    super(context);
    this.state = this.find("#dm-model-state");
    this.about = this.find("#dm-model-about");
    /** @type {HTMLProgressElement} */
    this.progress = this.find("#dm-model-progress");
    this.life = this.find("#dm-model-life");
    /** @type {HTMLInputElement} */
    this.input = this.find("#dm-model-name");
    /** @type {HTMLButtonElement} */
    this.loadButton = this.find("#dm-model-load");
    /** @type {HTMLButtonElement} */
    this.sleepButton = this.find("#dm-model-rest");
    this.error = this.find("#dm-model-error");
    this.loadButton.addEventListener("click", () => this.#swap());
    this.sleepButton.addEventListener("click", () => this.#ask(this.#engine && isResting(this.#engine) ? "wake" : "sleep"));
    this.input.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.isComposing) return;
      event.preventDefault();
      this.#swap();
    });
    this.watch("value", () => this.#answered());
    this.watch("can_change", () => this.#showProps());
    this.#answered();
  }

  // Asks for the state, and keeps asking while the panel is visible or a model is loading.
  refresh() {
    this.emit("refresh");
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#tick(), POLL_MS);
  }

  #tick() {
    const isNeeded = this.isOpen() && !document.hidden;
    if (isNeeded || this.#pending !== null || (this.#engine && isMoving(this.#engine))) this.refresh();
  }

  #swap() {
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
    this.#ask("swap", { model: name });
  }

  /** @param {string} event @param {object} detail */
  #ask(event, detail = {}) {
    this.#complain("");
    this.#pending = ++this.#lastRequest;
    this.#enable();
    this.emit(event, { ...detail, request: this.#pending });
    this.refresh();
  }

  // The value is a new one.
  #answered() {
    const { value } = this.props;
    if (!value) return;
    this.#engine = value;
    const ended = this.#pending !== null && value.request === this.#pending;
    if (ended) this.#pending = null;
    this.#showProps();
    if (!ended) return;
    if (value.error) this.#complain(withLabels(value.error)); // last, when the buttons work again
    else this.input.value = "";
    this.refresh();
  }

  /** Says what the field takes. @param {string} placeholder @param {string} hint */
  describeField(placeholder, hint) {
    this.input.placeholder = placeholder;
    this.find("#dm-model-info").textContent = hint;
  }

  /** A listener in Python failed, or did not reach the server. */
  async failed() {
    const sentence = await this.explain();
    if (this.#pending !== null) this.#complain(sentence);
    else if (this.#engine === null || sentence !== "") this.#write(this.state, sentence);
    this.props.value = null; // the next value may be the last one again, which Gradio would not bring
    this.#pending = null;
    this.#enable();
  }

  /** @param {string} sentence */
  #complain(sentence) {
    this.error.textContent = sentence;
    if (sentence !== "") this.error.scrollIntoView({ block: "nearest" });
  }

  #enable() {
    this.loadButton.disabled = this.#pending !== null || this.#engine === null || isMoving(this.#engine);
    this.sleepButton.disabled = this.loadButton.disabled;
  }

  #showProps() {
    const engine = this.#engine;
    if (engine === null) return;
    this.life.hidden = engine.remote || !this.canChange(); // managed by its own server, or by admins
    this.#write(this.state, describeState(engine));
    this.#write(this.about, describeEngine(engine));
    this.progress.hidden = engine.remote || !engine.stage;
    this.progress.value = engine.progress ?? 0;
    this.sleepButton.textContent = isResting(engine) ? "Wake up" : "Sleep";
    this.#enable();
    const shown = [engine.source, engine.model.name, ...(engine.model.adapters ?? []), engine.state].join(" ");
    if (this.#shown !== "" && shown !== this.#shown) this.emit("another_state");
    this.#shown = shown;
  }

  // Writes only changes: screen readers announce every write to a status element, even of the same text.
  /** @param {HTMLElement} element @param {string} text */
  #write(element, text) {
    if (element.textContent !== text) element.textContent = text;
  }
}

/** @param {import("../../shared/component.js").Context} context */
export const mount = (context) => new Model(context);
