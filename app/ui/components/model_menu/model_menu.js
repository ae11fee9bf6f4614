// The menu of models: what is loaded, what can be loaded, what can be downloaded.

import { Component } from "../../shared/component.js";
import { make, replaceChildren, uniqueId } from "../../shared/dom.js";
import { describeEngine, describeState, isMoving } from "../model/model_text.js";
import { downloadText, foundFacts, isRunning, recommendedFacts } from "./model_texts.js";

/** @import { FoundModelView, ModelsView, RecommendedModelView } from "../../shared/api_types.js" */
/** @typedef {import("../model/model_text.js").EngineState} EngineState */

export class ModelMenu extends Component {
  /** @type {EngineState | null} */
  #engine = null;
  /** @type {ModelsView | null} */
  #models = null;
  /** @type {HTMLElement | null} */
  #button = null;
  #isBusy = false; // a request of this page has no answer yet
  #shownModels = ""; // as JSON, so that the list is built again only when it changes

  /** @param {import("../../shared/component.js").Context} context */
  constructor(context) {
    super(context);
    this.popover = this.find(".dm-models");
    this.loaded = this.find(".dm-models-loaded");
    this.about = this.find(".dm-models-about");
    this.download = this.find(".dm-models-download");
    /** @type {HTMLProgressElement} */
    this.progress = this.find(".dm-models-progress");
    this.cancel = this.find(".dm-models-cancel");
    this.error = this.find(".dm-models-error");
    this.choices = this.find(".dm-models-choices");
    this.notes = this.find(".dm-models-notes");
    /** @type {HTMLInputElement} */
    this.input = this.find(".dm-models-hub");
    this.input.id = uniqueId("dm-models-hub");
    /** @type {HTMLLabelElement} */ (this.find(".dm-models-form label")).htmlFor = this.input.id;
    this.cancel.addEventListener("click", () => this.emit("cancel"));
    this.find(".dm-models-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#submit();
    });
    this.popover.addEventListener("toggle", (event) => this.#toggled(/** @type {ToggleEvent} */ (event).newState === "open"));
    this.popover.addEventListener("keydown", (event) => event.stopPropagation()); // Esc must not also stop a reply
    this.watch("value", () => this.#showValue());
    this.watch("can_change", () => this.#draw());
    this.#showValue();
  }

  get isOpen() {
    return this.popover.matches(":popover-open");
  }

  /** Opens the menu below `button`, or closes it. @param {HTMLElement} button */
  open(button) {
    this.#button = button;
    this.popover.togglePopover();
  }

  /** @param {{engine?: EngineState | null, models?: ModelsView | null}} shown */
  show({ engine = this.#engine, models = this.#models }) {
    this.#engine = engine;
    this.#models = models;
    this.#draw();
  }

  /** @param {boolean} busy  a request has no answer yet */
  setBusy(busy) {
    this.#isBusy = busy;
    this.#draw();
  }

  /** @param {string} sentence */
  showError(sentence) {
    this.error.textContent = sentence;
    if (sentence !== "") this.error.scrollIntoView({ block: "nearest" });
  }

  clearInput() {
    this.input.value = "";
  }

  #showValue() {
    const { engine = null, models = null } = this.props.value || {};
    this.show({ engine, models });
  }

  /** @param {boolean} open */
  #toggled(open) {
    this.#button?.setAttribute("aria-expanded", String(open));
    if (open) {
      this.#place();
      this.popover.focus();
    } else if (document.activeElement === document.body) {
      this.#button?.focus();
    }
    this.emit(open ? "open" : "close");
  }

  // Below the button, and within the window.
  #place() {
    if (!this.#button) return;
    const at = this.#button.getBoundingClientRect();
    const left = Math.max(8, Math.min(at.left - 16, innerWidth - this.popover.offsetWidth - 8));
    Object.assign(this.popover.style, { top: `${at.bottom + 4}px`, left: `${left}px` });
  }

  #submit() {
    const model = this.input.value.trim();
    if (model === "") {
      this.showError("Enter a hub ID first, such as Qwen/Qwen3-0.6B.");
      this.input.focus();
    } else {
      this.emit("download", { model });
    }
  }

  #draw() {
    const engine = this.#engine;
    if (engine === null) return;
    const { download = null } = engine;
    const canChange = Boolean(this.props.can_change) && !engine.remote;
    const moving = isMoving(engine);
    const running = isRunning(download);
    this.#write(this.loaded, describeState(engine));
    this.#write(this.about, (running && !moving && downloadText(download)) || describeEngine(engine) || downloadText(download));
    this.download.hidden = !running && !moving;
    this.progress.value = (moving ? engine.progress : download?.progress) ?? 0;
    this.cancel.hidden = !canChange || download?.state !== "downloading";
    this.find(".dm-models-note").hidden = canChange || engine.remote;
    this.choices.hidden = !canChange || this.#models === null;
    this.#drawModels(this.#isBusy || running || moving);
  }

  /** @param {boolean} disabled  a model is being downloaded or loaded */
  #drawModels(disabled) {
    if (this.#models === null) return;
    const { found, recommended, notes } = this.#models;
    const shown = JSON.stringify(this.#models);
    if (shown !== this.#shownModels) {
      this.#shownModels = shown;
      const loaded = new Set(found.filter((model) => model.loaded).map((model) => model.id));
      replaceChildren(this.find(".dm-models-found"), found.map((model) => this.#foundRow(model)));
      replaceChildren(this.find(".dm-models-recommended"), recommended.map((model) => this.#recommendedRow(model, loaded)));
      this.notes.textContent = notes.join(" ");
      this.notes.hidden = notes.length === 0;
    }
    /** @type {NodeListOf<HTMLButtonElement>} */
    const buttons = this.choices.querySelectorAll("button");
    for (const button of buttons) button.setAttribute("aria-disabled", String(disabled)); // it keeps the focus
  }

  /** @param {FoundModelView} model */
  #foundRow(model) {
    const act = model.problem ? null : ["Load", () => this.emit("load", { model: model.id })];
    return this.#row(model.name, foundFacts(model), model.loaded, act);
  }

  /** @param {RecommendedModelView} model @param {Set<string>} loaded  ids */
  #recommendedRow(model, loaded) {
    const { id } = model;
    const act = id ? ["Load", () => this.emit("load", { model: id })] : ["Get", () => this.emit("download", { model: model.name })];
    return this.#row(model.title, recommendedFacts(model), id !== null && loaded.has(id), act);
  }

  /** @param {string} name @param {string} facts @param {boolean} isLoaded @param {any} act  the button's name, and what it does */
  #row(name, facts, isLoaded, act) {
    return make(
      "li",
      { class: "dm-models-model" },
      make("span", { class: "dm-models-name", dir: "auto" }, name),
      make("span", { class: "dm-models-facts" }, facts),
      isLoaded ? make("span", { class: "dm-models-state" }, "Loaded") : act && this.#actButton(name, act),
    );
  }

  /** @param {string} name @param {[string, () => unknown]} act */
  #actButton(name, [label, action]) {
    const button = make("button", { type: "button", class: "dm-button dm-small dm-models-state", "aria-label": `${label} ${name}` }, label);
    button.addEventListener("click", () => {
      if (button.getAttribute("aria-disabled") !== "true") action();
    });
    return button;
  }

  // Writes only changes: screen readers announce every write to a status element, even of the same text.
  /** @param {HTMLElement} element @param {string} text */
  #write(element, text) {
    if (element.textContent !== text) element.textContent = text;
  }
}

/** @param {import("../../shared/component.js").Context} context */
export const mount = (context) => new ModelMenu(context);
