// The settings panel: shows the settings of the open chat in Gradio's controls, and takes what the user changes there.
// settings_rules.js says what settings mean, settings_state.js saves them; preset_setting.js and prompt_setting.js are the
// two choices that a listener in Python answers.

import { debounce, storage, uniqueId, waitForElement } from "../../shared/dom.js";
import { PresetSetting } from "./preset_setting.js";
import { PromptSetting } from "./prompt_setting.js";
import { Resets } from "./resets.js";
import { SettingPictures } from "./setting_pictures.js";
import { SettingsRules } from "./settings_rules.js";
import { SettingsState } from "./settings_state.js";

/** @import { PageOptions } from "../../shared/page_options.js" */
/** @import { FoundPrompt } from "./prompt_setting.js" */
/** @import { Values } from "./settings_rules.js" */

/** What has a control and can be reset, besides the sampling parameters. */
const OTHER_SETTINGS = [
  { name: "max_thinking_tokens", label: "Maximum thinking" },
  { name: "json_schema", label: "JSON schema" },
];

/**
 * Gradio loads each kind of control separately; until it is loaded, a control can't show a conversation's settings.
 * @param {PageOptions} options
 */
export const waitForSettings = ({ parameters }) =>
  Promise.all(
    [".dm-preset", ".dm-prompt input", ".dm-prompt-text textarea"]
      .concat(parameters.map(({ name }) => `.dm-control-${name} :is(input, textarea)`))
      .map(waitForElement),
  );

export class Settings {
  #choicesShown = false;

  /**
   * Called with a sentence that the loaded model is too small for the chat's prompt; empty: it is not.
   * @type {(sentence: string) => void}
   */
  onModelTooSmall = () => undefined;

  /** Resolves to why the listener in Python did not answer, as a sentence. */
  explain = async () => "The server did not answer. Try again.";

  /** Called when the settings have changed, or another chat's are shown. */
  changed = () => {};

  /**
   * @param {PageOptions} options
   * @param {(conversationId: string, settings: Values, keepalive?: boolean) => Promise<unknown>} save
   *     sends settings to the server; `keepalive`: the page is being unloaded
   * @param {object} page
   * @param {HTMLElement} page.root  has the controls of one panel
   * @param {(error: Error) => void} page.onSaveFailed  saving failed for a conversation that is no longer shown
   */
  constructor(options, save, { root, onSaveFailed }) {
    this.options = options;
    this.root = root;
    this.rules = new SettingsRules(options.parameters);
    this.note = this.#find(".dm-settings-note");
    this.state = new SettingsState({ empty: this.rules.empty, save, onSaveFailed, note: this.note, storage });
    this.prompt = new PromptSetting(this, {
      place: this.#find(".dm-prompt-about"),
      recommended: (settings) => this.#recommend(settings),
      focusText: () => this.#find(".dm-prompt-text textarea").focus(),
      onListChanged: () => (this.#choicesShown = false),
    });
    this.pictures = new SettingPictures(root, [...options.parameters, ...OTHER_SETTINGS].map(({ name }) => name));
    this.resets = new Resets(root, [...options.parameters, ...OTHER_SETTINGS], (name) => {
      this.#endChoices();
      this.change(this.rules.withDefault(this.value, name));
      this.show();
    });
    this.state.newChats = options.new_chat_settings;
    this.preset = new PresetSetting(this, this.#find(".dm-own-presets"));
    this.showSoon = debounce(600, () => this.show()); // not while a number is being typed
    this.advanced = this.#find(".dm-advanced");
    this.advanced.id ||= uniqueId("dm-advanced");
    this.advancedToggle = this.#find(".dm-advanced-toggle");
    this.advancedToggle.setAttribute("aria-controls", this.advanced.id);
    this.advancedToggle.addEventListener("click", () => this.#toggleAdvanced());
    addEventListener("pagehide", () => this.state.onPageHide());
  }

  /** The part of the panel that matches. @param {string} selector @returns {HTMLElement} */
  #find(selector) {
    return /** @type {HTMLElement} */ (this.root.querySelector(selector));
  }

  /** The settings of the open chat. */
  get value() {
    return this.state.value;
  }

  set value(value) {
    this.state.value = value;
  }

  /**
   * Shows the settings of a conversation; id null is a new chat.
   * @param {string | null} conversationId
   * @param {Partial<Values> | null} settings
   * @param {number} requestedAt  performance.now() when `settings` were requested
   */
  open(conversationId, settings = null, requestedAt = performance.now()) {
    this.#endChoices(); // they were for the conversation that is left
    this.state.open(conversationId, settings, requestedAt);
    this.show();
  }

  /** Resolves once what was chosen before is part of the settings; null if nothing is to come. Rejects if that failed. */
  pendingChoice() {
    const waits = [this.preset.wait(), this.prompt.wait()].filter((each) => each !== null);
    return waits.length === 0 ? null : Promise.all(waits);
  }

  /** The settings to send with a new turn: always for a new chat, otherwise only if they are unsaved; else null. */
  settingsForTurn() {
    return this.state.settingsForTurn();
  }

  /**
   * The server accepted a turn.
   * @param {string} conversationId
   * @param {Values | null} carried  what settingsForTurn() returned for it
   */
  onTurnAccepted(conversationId, carried) {
    this.state.onTurnAccepted(conversationId, carried);
  }

  /** The server refused a turn: its settings still have to be saved. */
  onTurnRefused() {
    this.state.onTurnRefused();
  }

  /** Another model was loaded, with other defaults. @param {PageOptions} options */
  useOptions(options) {
    this.options = options;
    this.state.newChats = options.new_chat_settings;
    this.#choicesShown = false; // the prompts may have changed
    this.show();
  }

  reset() {
    this.#endChoices();
    this.change({ ...this.rules.empty });
    this.show();
  }

  /** Takes the settings that a reply was written with. @param {Partial<Values>} settings */
  use(settings) {
    this.#endChoices();
    this.change({ ...this.rules.empty, ...settings });
    this.show();
  }

  /** The presets and the system prompts that can be chosen, with the controls' defaults. */
  get choices() {
    return { presets: this.preset.all, prompts: this.options.prompts, defaults: this.options.defaults };
  }

  /**
   * The user changed the control `name`.
   * @param {string} name
   * @param {string[]} names
   * @param {any[]} values  the values of all controls, in the order of `names`
   */
  controlChanged(name, names, ...values) {
    const shown = Object.fromEntries(names.map((each, i) => [each, values[i]]));
    if (isEqual(shown[name], this.#shown()[name])) return; // changed by code, not by the user
    if (name === "preset") this.preset.choose(shown.preset);
    else if (name === "system_prompt_name") this.prompt.choose(shown.system_prompt_name);
    else if (name === "system_prompt") this.prompt.write(shown.system_prompt ?? "");
    else this.#setParameter(name, shown);
  }

  /**
   * The values, and where needed the choices, for Gradio to set on the controls.
   * @param {string[]} names
   */
  controlValues(names) {
    const shown = this.#shown();
    /** @type {Record<string, [string, string][]>} */
    const choices = this.#choicesShown ? {} : { system_prompt_name: this.prompt.choices };
    choices.preset = this.preset.choices(shown.preset);
    choices.adapter = this.#adapterChoices(); // depend on the chat, too
    choices.collections = this.#collectionChoices();
    this.#choicesShown = true;
    return names.map((name) => (choices[name] ? { __type__: "update", choices: choices[name], value: shown[name] } : shown[name]));
  }

  // The settings as the controls show them, with a choice that has no answer yet.
  #shown() {
    const { defaults } = this.options;
    const chosen = { preset: this.preset.pending, prompt: this.prompt.pending };
    return this.rules.shown(this.value, { defaults, presets: this.preset.all, promptText: this.prompt.text, ...chosen });
  }

  #adapterChoices() {
    return this.rules.adapterChoices(this.value, this.options.model.adapters);
  }

  #collectionChoices() {
    return this.rules.collectionChoices(this.value, this.options.collections);
  }

  /** Puts the focus on the choice of sources. */
  focusSources() {
    const control = this.root.querySelector(".dm-control-collections");
    control?.scrollIntoView({ block: "center" });
    control?.querySelector("input")?.focus();
  }

  /** Shows the control that matches `selector`, and focuses it. @param {string} selector */
  focusControl(selector) {
    const control = this.root.querySelector(selector);
    if (control === null) return;
    if (this.advanced.contains(control) && !this.advanced.classList.contains("dm-open")) this.#toggleAdvanced();
    control.scrollIntoView({ block: "center" });
    const field = /** @type {HTMLElement | null} */ (control.matches("input, textarea") ? control : control.querySelector("input, textarea, button"));
    field?.focus({ preventScroll: true });
  }

  /** Makes a system prompt the chat's, as the page last loaded it. @param {string} name */
  usePrompt(name) {
    if (!this.options.prompts.some((each) => each.name === name)) return;
    this.prompt.end();
    this.change(this.rules.withNamedPrompt(this.value, name));
    this.show();
  }

  /** Takes collections that the user can no longer use out of the chat's sources. */
  removeGoneSources() {
    const usable = this.options.collections.map(({ id }) => id);
    this.change({ ...this.value, collections: (this.value.collections ?? []).filter((id) => usable.includes(id)) });
    this.show();
  }

  #toggleAdvanced() {
    const isOpen = this.advanced.classList.toggle("dm-open");
    this.advancedToggle.setAttribute("aria-expanded", String(isOpen));
  }

  #endChoices() {
    this.preset.end();
    this.prompt.end();
  }

  // Says how many of the parameters that may be hidden are not at the model's default.
  #showChanged() {
    const changed = this.rules.countChangedAdvanced(this.value);
    this.#find(".dm-advanced-changed").textContent = changed ? `${changed} changed` : "";
    this.pictures.show(this.#shown());
    this.resets.show((name) => this.rules.isChanged(this.value, name));
    this.showOwnPresets();
    this.changed();
  }

  /** Sets the controls to the settings. */
  show() {
    this.root.classList.toggle("dm-cannot-think", !this.options.model.can_think);
    this.root.classList.toggle("dm-has-no-adapters", this.#adapterChoices().length === 0);
    this.root.classList.toggle("dm-has-no-collections", this.#collectionChoices().length === 0);
    this.root.classList.toggle("dm-cannot-call-tools", !this.options.model.can_call_tools);
    this.#find(".dm-show-settings").click();
    this.showPrompt();
  }

  /** Shows what is said about the system prompt and the presets, but sets no control. */
  showPrompt() {
    this.#showChanged();
    this.onModelTooSmall(this.prompt.show());
  }

  showOwnPresets() {
    this.preset.show(this.#shown().preset);
  }

  /** A listener in Python (settings.py) answered. Returns what the controls are to show. @param {string[]} names @param {string} name */
  presetApplied(names, name) {
    return this.preset.applied(name) ? this.controlValues(names) : undefined;
  }

  /** @param {string[]} names */
  presetFailed(names) {
    return this.#choiceFailed(this.preset.fail(), names);
  }

  /** @param {string[]} names @param {FoundPrompt | null} found */
  promptFound(names, found) {
    return this.prompt.found(found) ? this.controlValues(names) : undefined;
  }

  /** @param {string[]} names */
  async promptFailed(names) {
    const fail = this.prompt.fail();
    return fail ? this.#choiceFailed(fail, names) : undefined;
  }

  /**
   * A listener failed, or the server was not reached: the controls show the settings as they still are.
   * @param {(reason: Error) => void} fail
   * @param {string[]} names
   */
  async #choiceFailed(fail, names) {
    const message = await this.explain();
    this.note.textContent = message;
    fail(new Error(message));
    return this.controlValues(names);
  }

  /** @param {Partial<Values>} settings */
  #recommend(settings) {
    this.preset.end();
    this.change(this.rules.withRecommended(this.value, settings));
    this.show();
  }

  /**
   * Out of range, a slider shows its nearest value but reports the typed one, which is ignored. A plain number field
   * shows the typed value, so that is kept, and messages with it are refused until it is corrected.
   * @param {string} name
   * @param {Record<string, any>} shown
   */
  #setParameter(name, shown) {
    const isSlider = this.rules.sliders.includes(name);
    const range = this.#range(name);
    const rangeError = range && this.rules.rangeError(name, shown[name], range);
    if (rangeError !== null && isSlider) {
      this.note.textContent = `${rangeError} ${shown[name]} was not applied.`;
      this.showSoon();
      return;
    }
    if (isSlider) this.preset.end(); // moved since: the sampling is by hand
    this.change(this.rules.withParameter(this.value, name, shown[name], this.options.defaults));
    if (rangeError !== null) this.note.textContent = rangeError;
    if (this.#shown().preset !== shown.preset) this.show();
  }

  /** The range of a control; null if it has none. @param {string} name */
  #range(name) {
    /** @type {HTMLElement | null} */
    const control = this.root.querySelector(`.dm-control-${name}`);
    /** @type {HTMLInputElement | null | undefined} */
    const input = control?.querySelector("input[type=range]") ?? control?.querySelector("input[type=number]");
    if (!input) return null;
    /** @param {string} limit */
    const bound = (limit) => (limit === "" ? null : Number(limit));
    return { min: bound(input.min), max: bound(input.max) };
  }

  /** Takes what the user has changed, and saves it. @param {Values} value */
  change(value) {
    this.state.change(value);
    this.#showChanged();
    this.prompt.onChange();
  }
}

/** Whether a control shows a value; nothing is as good as an empty text. @param {any} shown @param {any} value */
const isEqual = (shown, value) => JSON.stringify(shown ?? "") === JSON.stringify(value ?? "");
