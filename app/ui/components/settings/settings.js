// The settings panel: shows the settings of the open chat in Gradio's controls, and takes what the user changes there.
// settings_rules.js says what settings mean, settings_state.js saves them.

import { api } from "../../shared/api.js";
import { debounce, storage, uniqueId, waitForElement } from "../../shared/dom.js";
import { PendingChoice } from "./pending_choice.js";
import { PromptDetails } from "./prompt_details.js";
import { tooSmallText } from "./prompt_size.js";
import { NO_PROMPT, OWN_TEXT, SettingsRules } from "./settings_rules.js";
import { SettingsState } from "./settings_state.js";

/** @import { PageOptions, PromptOptions } from "../../shared/page_options.js" */
/** @import { Values } from "./settings_rules.js" */

/**
 * What the listener in Python answers to the choice of a system prompt: the prompt as it is now, or why there is none.
 * @typedef {{name: string, prompt?: PromptOptions, error?: string}} FoundPrompt
 */

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
  #presetChoice = new PendingChoice("preset");
  #promptChoice = new PendingChoice("system prompt");
  /** @type {{key: string, text: string} | null} the selected prompt with its variables filled in */
  #filledPrompt = null;

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
    this.promptDetails = new PromptDetails(this.#find(".dm-prompt-about"), {
      filled: (values) => this.#fillIn(values),
      recommended: (settings) => this.#recommend(settings),
    });
    this.fillSoon = debounce(400, () => this.#fill());
    this.showSoon = debounce(600, () => this.#show()); // not while a number is being typed
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
    this.#show();
  }

  /** Resolves once what was chosen before is part of the settings; null if nothing is to come. Rejects if that failed. */
  pendingChoice() {
    const waits = [this.#presetChoice.wait(), this.#promptChoice.wait()].filter((each) => each !== null);
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
    this.#choicesShown = false; // the prompts may have changed
    this.#show();
  }

  reset() {
    this.#endChoices();
    this.#change({ ...this.rules.empty });
    this.#show();
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
    if (name === "preset") this.#choosePreset(shown.preset);
    else if (name === "system_prompt_name") this.#choosePrompt(shown.system_prompt_name);
    else if (name === "system_prompt") this.#writePrompt(shown.system_prompt ?? "");
    else this.#setParameter(name, shown);
  }

  /**
   * The values, and where needed the choices, for Gradio to set on the controls.
   * @param {string[]} names
   */
  controlValues(names) {
    const shown = this.#shown();
    const choices = this.#choicesShown ? {} : this.#choices();
    choices.adapter = this.#adapterChoices(); // depend on the chat, too
    choices.collections = this.#collectionChoices();
    this.#choicesShown = true;
    return names.map((name) => (choices[name] ? { __type__: "update", choices: choices[name], value: shown[name] } : shown[name]));
  }

  // The settings as the controls show them, with a choice that has no answer yet.
  #shown() {
    const { defaults } = this.options;
    const chosen = { preset: this.#presetChoice.name, prompt: this.#promptChoice.name };
    return this.rules.shown(this.value, { defaults, promptText: this.#promptText(), ...chosen });
  }

  /** @returns {Record<string, [string, string][]>} */
  #choices() {
    /** @type {[string, string][]} */
    const prompts = this.options.prompts.map(({ name, title }) => [title, name]);
    return {
      preset: this.options.presets.map(({ name, title }) => [title, name]),
      system_prompt_name: [["None", NO_PROMPT], ...prompts, ["Custom", OWN_TEXT]],
    };
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

  /** Takes collections that the user can no longer use out of the chat's sources. */
  removeGoneSources() {
    const usable = this.options.collections.map(({ id }) => id);
    this.#change({ ...this.value, collections: (this.value.collections ?? []).filter((id) => usable.includes(id)) });
    this.#show();
  }

  #toggleAdvanced() {
    const isOpen = this.advanced.classList.toggle("dm-open");
    this.advancedToggle.setAttribute("aria-expanded", String(isOpen));
  }

  #endChoices() {
    this.#presetChoice.end();
    this.#promptChoice.end();
  }

  // Says how many of the parameters that may be hidden are not at the model's default.
  #showChanged() {
    const changed = this.rules.countChangedAdvanced(this.value);
    this.#find(".dm-advanced-changed").textContent = changed ? `${changed} changed` : "";
    this.changed();
  }

  #show() {
    this.root.classList.toggle("dm-cannot-think", !this.options.model.can_think);
    this.root.classList.toggle("dm-has-no-adapters", this.#adapterChoices().length === 0);
    this.root.classList.toggle("dm-has-no-collections", this.#collectionChoices().length === 0);
    this.root.classList.toggle("dm-cannot-call-tools", !this.options.model.can_call_tools);
    this.#find(".dm-show-settings").click();
    this.#showPrompt();
  }

  #showPrompt() {
    this.#showChanged();
    const prompt = this.#prompt(this.value.system_prompt_name);
    const used = this.rules.usesRecommended(this.value, prompt);
    const warning = this.options.model.is_loading ? "" : tooSmallText(prompt, this.options.model);
    this.promptDetails.show(prompt, this.value.system_prompt_variables, used, this.options.parameters, warning);
    this.onModelTooSmall(warning);
    if (prompt && this.#filledPrompt?.key !== this.#fillKey()) this.fillSoon();
  }

  // The selected prompt as the model gets it; undefined if none is selected.
  #promptText() {
    if (this.#filledPrompt?.key === this.#fillKey()) return this.#filledPrompt.text;
    return this.#prompt(this.value.system_prompt_name)?.text;
  }

  #fillKey() {
    return JSON.stringify([this.value.system_prompt_name, this.value.system_prompt_variables]);
  }

  async #fill() {
    const key = this.#fillKey();
    const { system_prompt_name: name, system_prompt_variables: values } = this.value;
    if (name === null || Object.keys(values).length === 0) return;
    try {
      const { text } = await api.fillPrompt(name, values);
      if (key !== this.#fillKey()) return;
      this.#filledPrompt = { key, text };
    } catch (error) {
      this.note.textContent = error instanceof Error ? error.message : String(error);
      return;
    }
    this.#show();
  }

  /** The user filled in variables of the selected prompt. @param {Record<string, string>} values */
  #fillIn(values) {
    const other = this.#promptChoice.name;
    this.#promptChoice.end(); // the selected prompt was used since
    this.#change({ ...this.value, system_prompt_variables: values });
    if (other !== null) this.#show();
  }

  /** @param {Partial<Values>} settings */
  #recommend(settings) {
    this.#presetChoice.end();
    this.#change(this.rules.withRecommended(this.value, settings));
    this.#show();
  }

  /** @param {string | null} name */
  #prompt(name) {
    return this.options.prompts.find((prompt) => prompt.name === name);
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
    if (isSlider) this.#presetChoice.end(); // moved since: the sampling is by hand
    this.#change(this.rules.withParameter(this.value, name, shown[name], this.options.defaults));
    if (rangeError !== null) this.note.textContent = rangeError;
    if (this.#shown().preset !== shown.preset) this.#show();
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

  /**
   * The user chose a preset: the listener in Python (settings.py) sets the sliders, then presetApplied() is called.
   * @param {string} name
   */
  #choosePreset(name) {
    this.note.textContent = "";
    this.#presetChoice.make(name);
  }

  /**
   * The listener in Python has set the sliders to this preset. Returns what the controls are to show: the settings, if
   * that preset is no longer wanted, because another was chosen, another control moved or another chat opened.
   * @param {string[]} names
   * @param {string} name
   */
  presetApplied(names, name) {
    const pending = this.#presetChoice.name;
    if (pending !== null && pending !== name) return undefined; // the answer to the one chosen last is to come
    if (pending !== null) this.#applyPreset(name);
    this.#presetChoice.end();
    return this.controlValues(names);
  }

  /**
   * The listener failed, or the server was not reached: the controls show the settings as they still are.
   * @param {string[]} names
   */
  presetFailed(names) {
    return this.#choiceFailed(this.#presetChoice, names);
  }

  /** @param {string} name */
  #applyPreset(name) {
    this.#change(this.rules.withPreset(this.value, name, this.options.presets));
    this.#showPrompt();
  }

  /**
   * The user chose a system prompt: the listener in Python answers with what it is now, then promptFound() is called.
   * No prompt, and the user's own text, hold at once.
   * @param {string} name
   */
  #choosePrompt(name) {
    this.note.textContent = "";
    if (name !== OWN_TEXT && name !== NO_PROMPT) {
      this.#promptChoice.make(name);
      return;
    }
    this.#promptChoice.end();
    if (name === OWN_TEXT) {
      this.#change(this.rules.withOwnText(this.value, this.#promptText() ?? this.value.system_prompt));
      this.#find(".dm-prompt-text textarea").focus();
      return;
    }
    this.#change(this.rules.withNamedPrompt(this.value, null));
    this.#show();
  }

  /**
   * The listener in Python has found a system prompt. Returns what the controls are to show: the settings, if that
   * prompt is no longer wanted, because another was chosen, a text was written or another chat opened.
   * @param {string[]} names
   * @param {FoundPrompt | null} found
   */
  promptFound(names, found) {
    const pending = this.#promptChoice.name;
    if (!found?.prompt && !found?.error) return undefined; // no prompt, or an own text: it holds since it was chosen
    if (found.prompt) this.#keepPrompt(found.prompt);
    if (pending !== null && pending !== found.name) return undefined; // the answer to the one chosen last is to come
    if (pending !== null && found.prompt) this.#change(this.rules.withNamedPrompt(this.value, pending));
    if (pending !== null && found.error) {
      this.note.textContent = found.error;
      this.#promptChoice.fail()(new Error(found.error));
    }
    this.#promptChoice.end();
    this.#showPrompt();
    return this.controlValues(names);
  }

  /**
   * The listener failed, or the server was not reached: the controls show the settings as they still are.
   * @param {string[]} names
   */
  async promptFailed(names) {
    if (this.#promptChoice.name === null) return undefined; // nothing was to come of it
    return this.#choiceFailed(this.#promptChoice, names);
  }

  /** @param {PendingChoice} choice @param {string[]} names */
  async #choiceFailed(choice, names) {
    const fail = choice.fail();
    const message = await this.explain();
    this.note.textContent = message;
    fail(new Error(message));
    return this.controlValues(names);
  }

  /** Keeps a prompt as it is now, which may differ from what the page has loaded. @param {PromptOptions} prompt */
  #keepPrompt(prompt) {
    const known = this.#prompt(prompt.name);
    if (JSON.stringify(known) === JSON.stringify(prompt)) return;
    if (known) Object.assign(known, prompt);
    else this.options.prompts.push(prompt);
    this.#choicesShown = false; // its title may have changed
    this.#filledPrompt = null;
  }

  /** @param {string} text */
  #writePrompt(text) {
    const isChosen = this.#promptChoice.name !== null || this.rules.choosesOwnText(this.value, text);
    this.#promptChoice.end(); // the text was written since
    this.#change(this.rules.withOwnText(this.value, text));
    if (isChosen) this.#show();
  }

  /** @param {Values} value */
  #change(value) {
    this.state.change(value);
    this.#showChanged();
    if (value.system_prompt_name !== null && this.#filledPrompt?.key !== this.#fillKey()) this.fillSoon();
  }
}

/** Whether a control shows a value; nothing is as good as an empty text. @param {any} shown @param {any} value */
const isEqual = (shown, value) => JSON.stringify(shown ?? "") === JSON.stringify(value ?? "");
