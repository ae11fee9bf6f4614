// The settings panel: syncs Gradio's controls with the settings saved in the conversation.
// A control at the model's default is saved as null, "the model decides".

import { api } from "../../shared/api.js";
import { byId, debounce, waitForElement, storage } from "../../shared/dom.js";
import { PromptDetails } from "./prompt_details.js";

const NEW_CHAT_KEY = "deskmate.new-chat-settings";
const OWN_TEXT = "own";
const NO_PROMPT = "none";
const SAVING = "Saving …";
const PRESET_MS = 5000; // how long a turn waits for a preset that was chosen before it
const MODEL_DEFAULT = "default";

const NO_NAMED_PROMPT = Object.freeze({ system_prompt_name: null, system_prompt_variables: {}, system_prompt: "" });

// Gradio loads each kind of control separately; until it is loaded, a control can't show a conversation's settings.
export const waitForSettings = ({ parameters }) =>
  Promise.all(
    ["#dm-preset", "#dm-prompt input", "#dm-prompt-text textarea"]
      .concat(parameters.map(({ name }) => `#dm-control-${name} :is(input, textarea)`))
      .map(waitForElement),
  );

export class Settings {
  #conversationId = null;
  #choicesShown = false;
  #saveQueue = Promise.resolve(); // one save at a time: with two in flight, the older one might arrive last
  #pendingSaves = new Map(); // conversation id -> settings not yet confirmed by the server
  #failedSaves = new Map(); // conversation id -> settings that failed to save; retried when the conversation is opened
  #confirmedSaves = new Map(); // conversation id -> {value, when} of the last confirmed save
  #presetWish = null; // the preset that was chosen and not confirmed yet: {name, done, resolve, error}
  #filledPrompt = null; // the selected prompt with its variables filled in: {key, text}

  // Resolves to why the listener in Python did not answer, as a sentence.
  explain = async () => "The server did not answer. Try again.";

  // `save(conversationId, settings, keepalive)` sends settings to the server; `keepalive`: the page is being unloaded.
  // `onSaveFailed(error)` is called when saving fails for a conversation that is no longer shown.
  constructor(options, save, { onSaveFailed }) {
    this.options = options;
    this.save = save;
    this.onSaveFailed = onSaveFailed;
    this.parameters = new Map(options.parameters.map((each) => [each.name, each]));
    this.sliders = options.parameters.filter((each) => each.is_slider).map(({ name }) => name); // what presets set
    this.lists = options.parameters.filter(({ kind }) => kind === "strings").map(({ name }) => name); // a string per line
    this.empty = Object.freeze({
      preset: null,
      ...Object.fromEntries(options.parameters.map(({ name, unset }) => [name, unset])),
      ...NO_NAMED_PROMPT,
    });
    this.note = byId("dm-settings-note");
    this.value = this.empty;
    this.unsaved = false;
    this.saveSoon = debounce(400, () => this.#save());
    this.promptDetails = new PromptDetails({
      filled: (values) => this.#change({ ...this.value, system_prompt_variables: values }),
      recommended: (settings) => this.#recommend(settings),
    });
    this.fillSoon = debounce(400, () => this.#fill());
    this.showSoon = debounce(600, () => this.#show()); // not while a number is being typed
    byId("dm-advanced-toggle").addEventListener("click", () => this.#toggleAdvanced());
    addEventListener("pagehide", () => {
      if (this.unsaved && this.#conversationId) this.#failedSaves.set(this.#conversationId, this.value);
      for (const [id, value] of this.#failedSaves) this.save(id, value, true).catch(() => {}); // no page to show the error
    });
  }

  // Shows the settings of a conversation; id null is a new chat. `requestedAt`: performance.now() when `settings` were
  // requested.
  open(conversationId, settings = null, requestedAt = performance.now()) {
    this.#endPresetWish(); // it was for the conversation that is left
    if (this.unsaved && this.#conversationId) this.#save(); // before switching away from it
    this.saveSoon.cancel();
    this.#conversationId = conversationId;
    const unanswered = this.#pendingSaves.get(conversationId); // newer than the server's response
    const confirmed = this.#confirmedSaves.get(conversationId); // newer, if confirmed after the request
    const newer = unanswered ?? (confirmed?.when >= requestedAt ? confirmed.value : undefined);
    const failed = unanswered === undefined ? this.#failedSaves.get(conversationId) : undefined;
    this.value = conversationId === null ? this.#newChatSettings() : (failed ?? newer ?? { ...this.empty, ...settings });
    this.unsaved = unanswered !== undefined || failed !== undefined;
    this.note.textContent = this.unsaved ? SAVING : "";
    if (failed !== undefined) this.saveSoon();
    this.#show();
  }

  // Resolves once a preset chosen before is part of the settings; null if none is to come. Rejects if that failed.
  pendingChoice() {
    if (this.#presetWish === null) return null;
    const late = new Promise((_, reject) => {
      setTimeout(() => reject(new Error("The preset has not been applied yet. Send again in a moment.")), PRESET_MS);
    });
    return Promise.race([this.#presetWish.done, late]);
  }

  // The settings to send with a new turn: always for a new chat, otherwise only if they are unsaved; else null.
  settingsForTurn() {
    this.saveSoon.cancel();
    return this.#conversationId === null || this.unsaved ? this.value : null;
  }

  // The server accepted a turn. `carried`: what settingsForTurn() returned for it.
  onTurnAccepted(conversationId, carried) {
    if (this.#conversationId === null) storage.write("localStorage", NEW_CHAT_KEY, null);
    this.#conversationId = conversationId;
    if (carried === null) return; // nothing was unsaved then; later changes are already being saved
    // A save in flight may be older than the turn's settings and arrive after them.
    this.unsaved = carried !== this.value || this.#pendingSaves.has(conversationId);
    this.note.textContent = this.unsaved ? SAVING : "";
    if (this.unsaved) this.saveSoon();
  }

  // The server refused a turn: its settings still have to be saved.
  onTurnRefused() {
    if (this.unsaved) this.saveSoon();
  }

  // Another model was loaded, with other defaults.
  useOptions(options) {
    this.options = options;
    this.#choicesShown = false; // the prompts may have changed
    this.#show();
  }

  reset() {
    this.#endPresetWish();
    this.#change({ ...this.empty });
    this.#show();
  }

  // The user changed the control `name`. `values`: the values of all controls, in the order of `names`.
  controlChanged(name, names, ...values) {
    const shown = Object.fromEntries(names.map((each, i) => [each, values[i]]));
    const isWish = name === "preset" && this.#presetWish !== null; // back to the one that the settings still have
    if (!isWish && (shown[name] ?? "") === (this.#shown()[name] ?? "")) return; // changed by code, not by the user
    if (name === "preset") this.#wishPreset(shown.preset);
    else if (name === "system_prompt_name") this.#choosePrompt(shown.system_prompt_name);
    else if (name === "system_prompt") this.#writePrompt(shown.system_prompt ?? "");
    else this.#setParameter(name, shown);
  }

  // The values, and where needed the choices, for Gradio to set on the controls.
  controlValues(names) {
    const shown = this.#shown();
    const choices = this.#choicesShown ? {} : this.#choices();
    this.#choicesShown = true;
    return names.map((name) => (choices[name] ? { __type__: "update", choices: choices[name], value: shown[name] } : shown[name]));
  }

  // The settings as the controls show them.
  #shown() {
    const shown = {
      ...this.value,
      preset: this.value.preset ?? (this.#allDefault() ? MODEL_DEFAULT : null),
      ...Object.fromEntries(this.lists.map((name) => [name, this.value[name].join("\n")])),
      system_prompt_name: this.value.system_prompt_name ?? (this.value.system_prompt ? OWN_TEXT : NO_PROMPT),
      system_prompt: this.#promptText() ?? this.value.system_prompt,
    };
    for (const name of this.sliders) shown[name] ??= this.options.defaults[name];
    return shown;
  }

  #newChatSettings() {
    try {
      return { ...this.empty, ...JSON.parse(storage.read("localStorage", NEW_CHAT_KEY) ?? "{}") };
    } catch {
      return this.empty; // not JSON that this page wrote
    }
  }

  #choices() {
    const prompts = this.options.prompts.map(({ name, title }) => [title, name]);
    return {
      preset: this.options.presets.map(({ name, title }) => [title, name]),
      system_prompt_name: [["None", NO_PROMPT], ...prompts, ["Custom", OWN_TEXT]],
    };
  }

  #toggleAdvanced() {
    const isOpen = byId("dm-advanced").classList.toggle("dm-open");
    byId("dm-advanced-toggle").setAttribute("aria-expanded", String(isOpen));
  }

  // Says how many of the parameters that may be hidden are not at the model's default.
  #showChanged() {
    const changed = this.options.parameters.filter(({ name, is_advanced: isAdvanced }) => isAdvanced && this.value[name] !== null);
    byId("dm-advanced-changed").textContent = changed.length ? `${changed.length} changed` : "";
  }

  #show() {
    byId("dm-show-settings").click();
    this.#showPrompt();
  }

  #showPrompt() {
    this.#showChanged();
    const prompt = this.#prompt(this.value.system_prompt_name);
    const wanted = Object.entries(prompt?.recommended ?? {});
    const used = wanted.every(([name, value]) => JSON.stringify(this.value[name]) === JSON.stringify(value));
    this.promptDetails.show(prompt, this.value.system_prompt_variables, used, this.options.parameters);
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
      this.note.textContent = error.message;
      return;
    }
    this.#show();
  }

  #recommend(settings) {
    this.#endPresetWish();
    const sampling = Object.fromEntries(this.sliders.map((name) => [name, null]));
    this.#change({ ...this.value, ...sampling, preset: null, ...settings });
    this.#show();
  }

  #prompt(name) {
    return this.options.prompts.find((prompt) => prompt.name === name);
  }

  #allDefault() {
    return this.sliders.every((name) => this.value[name] === null);
  }

  // Out of range, a slider shows its nearest value but reports the typed one, which is ignored. A plain number field
  // shows the typed value, so that is kept, and messages with it are refused until it is corrected.
  #setParameter(name, shown) {
    const rangeError = this.#rangeError(name, shown[name]);
    if (rangeError !== null && this.sliders.includes(name)) {
      this.note.textContent = `${rangeError} ${shown[name]} was not applied.`;
      this.showSoon();
      return;
    }
    if (this.sliders.includes(name)) this.#endPresetWish(); // moved since: the sampling is by hand
    this.#change({ ...this.value, ...this.#parseControl(name, shown[name]), preset: this.#presetAfter(name) });
    if (rangeError !== null) this.note.textContent = rangeError;
    if (this.#shown().preset !== shown.preset) this.#show();
  }

  // An error message if a value is outside its control's range, else null.
  #rangeError(name, value) {
    const control = byId(`dm-control-${name}`);
    const input = control?.querySelector("input[type=range]") ?? control?.querySelector("input[type=number]");
    if (!input || value === null || value === undefined || value === "") return null;
    const [min, max] = [input.min, input.max].map((bound) => (bound === "" ? null : Number(bound)));
    if ((min === null || value >= min) && (max === null || value <= max)) return null;
    return `${this.parameters.get(name).label} must be ${max === null ? `at least ${min}` : `between ${min} and ${max}`}.`;
  }

  // Changing a sampling parameter deselects the preset. Length, stop strings and seed aren't part of one.
  #presetAfter(name) {
    return this.sliders.includes(name) ? null : this.value.preset;
  }

  #parseControl(name, value) {
    if (this.lists.includes(name)) return { [name]: (value ?? "").split("\n").filter((line) => line !== "") };
    if (this.sliders.includes(name)) return { [name]: value === this.options.defaults[name] ? null : value };
    return { [name]: value ?? null };
  }

  // The user chose a preset: the listener in Python (settings.py) sets the sliders, then presetApplied() is called.
  #wishPreset(name) {
    this.note.textContent = "";
    if (this.#presetWish !== null) {
      this.#presetWish.name = name; // Gradio runs the listener once more, with this one
      return;
    }
    const wish = { name };
    wish.done = new Promise((resolve, reject) => Object.assign(wish, { resolve, reject }));
    wish.done.catch(() => {}); // told in the note; only a turn waits for it
    this.#presetWish = wish;
  }

  #endPresetWish(error = null) {
    const wish = this.#presetWish;
    this.#presetWish = null;
    if (error === null) wish?.resolve();
    else wish?.reject(error);
  }

  // The listener in Python has set the sliders to this preset. Returns what the controls are to show: the settings, if
  // that preset is no longer wanted, because another was chosen, another control moved or another chat opened.
  presetApplied(names, name) {
    const wish = this.#presetWish;
    if (wish !== null && wish.name !== name) return undefined; // the answer to the one chosen last is to come
    if (wish !== null) this.#choosePreset(name);
    this.#endPresetWish();
    return this.controlValues(names);
  }

  // The listener failed, or the server was not reached: the controls show the settings as they still are.
  async presetFailed(names) {
    const wish = this.#presetWish;
    this.#presetWish = null;
    const message = await this.explain();
    this.note.textContent = message;
    wish?.reject(new Error(message));
    return this.controlValues(names);
  }

  #choosePreset(name) {
    const preset = this.options.presets.find((each) => each.name === name);
    const sampling = Object.fromEntries(this.sliders.map((each) => [each, preset?.[each] ?? null]));
    this.#change({ ...this.value, ...sampling, preset: name === MODEL_DEFAULT ? null : name });
    this.#showPrompt();
  }

  #choosePrompt(name) {
    if (name === OWN_TEXT) {
      const text = this.#promptText() ?? this.value.system_prompt;
      this.#change({ ...this.value, ...NO_NAMED_PROMPT, system_prompt: text });
      byId("dm-prompt-text").querySelector("textarea").focus();
      return;
    }
    this.#change({ ...this.value, ...NO_NAMED_PROMPT, system_prompt_name: name === NO_PROMPT ? null : name });
    this.#show();
  }

  #writePrompt(text) {
    const wasChosen = this.value.system_prompt_name !== null || (this.value.system_prompt === "") !== (text === "");
    this.#change({ ...this.value, ...NO_NAMED_PROMPT, system_prompt: text });
    if (wasChosen) this.#show();
  }

  #change(value) {
    this.value = value;
    this.unsaved = true;
    this.#showChanged();
    if (value.system_prompt_name !== null && this.#filledPrompt?.key !== this.#fillKey()) this.fillSoon();
    if (this.#conversationId === null) {
      storage.write("localStorage", NEW_CHAT_KEY, JSON.stringify(value));
      this.unsaved = false;
      return;
    }
    this.note.textContent = SAVING;
    this.saveSoon();
  }

  #save() {
    const value = this.value;
    const conversationId = this.#conversationId;
    this.#pendingSaves.set(conversationId, value);
    this.#failedSaves.delete(conversationId);
    this.#saveQueue = this.#saveQueue.then(() => this.#send(conversationId, value));
  }

  async #send(conversationId, value) {
    if (this.#pendingSaves.get(conversationId) !== value) return; // superseded by a newer save in the queue
    try {
      await this.save(conversationId, value);
      this.#confirmedSaves.set(conversationId, { value, when: performance.now() });
    } catch (error) {
      if (conversationId === this.#conversationId) this.note.textContent = error.message;
      else if (error.status !== 404 && this.#pendingSaves.get(conversationId) === value) {
        this.#failedSaves.set(conversationId, value); // not on 404: a deleted conversation needs no settings
        this.onSaveFailed(error);
      }
      return;
    } finally {
      if (this.#pendingSaves.get(conversationId) === value) this.#pendingSaves.delete(conversationId);
    }
    if (value !== this.value) return; // changed again meanwhile, or another conversation is shown
    this.unsaved = false;
    // Don't overwrite an error shown meanwhile.
    if (this.note.textContent === SAVING) this.note.textContent = "Saved with this conversation.";
  }
}
