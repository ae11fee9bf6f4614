// The settings panel: what Gradio's controls show, and what is saved with the conversation.
// A control that stands at the model's own default is saved as null, "the model decides".

import { api } from "./api.js";
import { byId, debounce, waitForElement, storage } from "./dom.js";
import { LABELS } from "./labels.js";
import { PromptDetails } from "./prompt_details.js";

const NEW_CHAT_KEY = "deskmate.new-chat-settings";
const SAMPLING = ["temperature", "top_p", "top_k", "min_p", "repetition_penalty"];
const OWN_TEXT = "own";
const NO_PROMPT = "none";
const SAVING = "Saving …";
const MODEL_DEFAULT = "default";

const EMPTY = Object.freeze({
  preset: null,
  ...Object.fromEntries(SAMPLING.map((name) => [name, null])),
  max_tokens: null,
  stop: [],
  seed: null,
  system_prompt_name: null,
  system_prompt_variables: {},
  system_prompt: "",
});

const NO_NAMED_PROMPT = Object.freeze({ system_prompt_name: null, system_prompt_variables: {}, system_prompt: "" });

// Gradio loads each kind of control by itself; what one shows before it is told a conversation's settings is its own.
export const waitForSettings = () =>
  Promise.all(
    ["#dm-preset", "#dm-prompt input", "#dm-prompt-text textarea", "#dm-control-stop textarea"]
      .concat([...SAMPLING, "max_tokens", "seed"].map((name) => `#dm-control-${name} input`))
      .map(waitForElement),
  );

const newChatSettings = () => {
  try {
    return { ...EMPTY, ...JSON.parse(storage.read("localStorage", NEW_CHAT_KEY) ?? "{}") };
  } catch {
    return EMPTY; // what is stored there is not ours
  }
};

export class Settings {
  #conversationId = null;
  #choicesShown = false;
  #saveQueue = Promise.resolve(); // one at a time: of two under way, the older one might arrive last
  #pendingSaves = new Map(); // conversation id -> its settings that the server has not confirmed yet
  #failedSaves = new Map(); // conversation id -> its settings that could not be saved: tried again when it is opened
  #confirmedSaves = new Map(); // conversation id -> {value, when} of the last that it has
  #filledPrompt = null; // the chosen prompt with its variables: {key, text}

  // `save(conversationId, settings, keepalive)` sends them to the server; `keepalive`: the page goes away behind it.
  // `onSaveFailed(error)`: those of a conversation that is not shown any more could not be saved.
  constructor(options, save, { onSaveFailed }) {
    this.options = options;
    this.save = save;
    this.onSaveFailed = onSaveFailed;
    this.note = byId("dm-settings-note");
    this.value = EMPTY;
    this.unsaved = false;
    this.saveSoon = debounce(400, () => this.#save());
    this.about = new PromptDetails({
      filled: (values) => this.#change({ ...this.value, system_prompt_variables: values }),
      recommended: (settings) => this.#recommend(settings),
    });
    this.fillSoon = debounce(400, () => this.#fill());
    this.showSoon = debounce(600, () => this.#show()); // not while a number is being typed
    addEventListener("pagehide", () => {
      if (this.unsaved && this.#conversationId) this.#failedSaves.set(this.#conversationId, this.value);
      for (const [id, value] of this.#failedSaves) this.save(id, value, true).catch(() => {}); // there is nobody left to tell
    });
  }

  // Shows the settings of a conversation, which the server was `asked` for then; null is a chat that does not exist yet.
  open(conversationId, settings = null, asked = performance.now()) {
    if (this.unsaved && this.#conversationId) this.#save(); // before it is forgotten
    this.saveSoon.cancel();
    this.#conversationId = conversationId;
    const unanswered = this.#pendingSaves.get(conversationId); // newer than what the server said
    const confirmed = this.#confirmedSaves.get(conversationId); // perhaps while it said something older
    const newer = unanswered ?? (confirmed?.when >= asked ? confirmed.value : undefined);
    const failed = unanswered === undefined ? this.#failedSaves.get(conversationId) : undefined;
    this.value = conversationId === null ? newChatSettings() : (failed ?? newer ?? { ...EMPTY, ...settings });
    this.unsaved = unanswered !== undefined || failed !== undefined;
    this.note.textContent = this.unsaved ? SAVING : "";
    if (failed !== undefined) this.saveSoon();
    this.#show();
  }

  // What a new turn must carry: for a new chat all of it, otherwise only what is not saved yet.
  settingsForTurn() {
    this.saveSoon.cancel();
    return this.#conversationId === null || this.unsaved ? this.value : null;
  }

  // The turn was accepted, and with it the settings it carried: what settingsForTurn() had returned.
  onTurnAccepted(conversationId, carried) {
    if (this.#conversationId === null) storage.write("localStorage", NEW_CHAT_KEY, null);
    this.#conversationId = conversationId;
    if (carried === null) return; // nothing was unsaved then; what is now is being saved
    // A save that is under way may be older than what the turn carried, and arrive after it.
    this.unsaved = carried !== this.value || this.#pendingSaves.has(conversationId);
    this.note.textContent = this.unsaved ? SAVING : "";
    if (this.unsaved) this.saveSoon();
  }

  // The turn was not accepted: what it carried still wants saving.
  onTurnRefused() {
    if (this.unsaved) this.saveSoon();
  }

  // Another model is loaded, with other defaults.
  useOptions(options) {
    this.options = options;
    this.#choicesShown = false; // the prompts may be others by now
    this.#show();
  }

  reset() {
    this.#change({ ...EMPTY });
    this.#show();
  }

  // A person changed the control `name`; `values` are those of all controls, in the order of `names`.
  controlChanged(name, names, values) {
    const shown = Object.fromEntries(names.map((each, i) => [each, values[i]]));
    if ((shown[name] ?? "") === (this.#shown()[name] ?? "")) return; // it was changed by code
    if (name === "preset") this.#choosePreset(shown.preset);
    else if (name === "system_prompt_name") this.#choosePrompt(shown.system_prompt_name);
    else if (name === "system_prompt") this.#writePrompt(shown.system_prompt ?? "");
    else this.#setNumber(name, shown);
  }

  // What Gradio puts into the controls.
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
      stop: this.value.stop.join("\n"),
      system_prompt_name: this.value.system_prompt_name ?? (this.value.system_prompt ? OWN_TEXT : NO_PROMPT),
      system_prompt: this.#promptText() ?? this.value.system_prompt,
    };
    for (const name of SAMPLING) shown[name] ??= this.options.defaults[name];
    return shown;
  }

  #choices() {
    const prompts = this.options.prompts.map(({ name, title }) => [title, name]);
    return {
      preset: this.options.presets.map(({ name, title }) => [title, name]),
      system_prompt_name: [["None", NO_PROMPT], ...prompts, ["Own text", OWN_TEXT]],
    };
  }

  #show() {
    byId("dm-show-settings").click();
    const prompt = this.#prompt(this.value.system_prompt_name);
    const wanted = Object.entries(prompt?.recommended ?? {});
    const used = wanted.every(([name, value]) => JSON.stringify(this.value[name]) === JSON.stringify(value));
    this.about.show(prompt, this.value.system_prompt_variables, used);
    if (prompt && this.#filledPrompt?.key !== this.#fillKey()) this.fillSoon();
  }

  // The chosen prompt as the model is told it; undefined where none is chosen.
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
    const sampling = Object.fromEntries(SAMPLING.map((name) => [name, null]));
    this.#change({ ...this.value, ...sampling, preset: null, ...settings });
    this.#show();
  }

  #prompt(name) {
    return this.options.prompts.find((prompt) => prompt.name === name);
  }

  #allDefault() {
    return SAMPLING.every((name) => this.value[name] === null);
  }

  // A slider shows the nearest value it has, but reports what was typed, which is then not taken. A plain field shows
  // what was typed: that is kept, and a message with it is refused, until it is mended.
  #setNumber(name, shown) {
    const complaint = this.#rangeError(name, shown[name]);
    if (complaint !== null && SAMPLING.includes(name)) {
      this.note.textContent = `${complaint} ${shown[name]} was not taken.`;
      this.showSoon();
      return;
    }
    this.#change({ ...this.value, ...this.#parseControl(name, shown[name]), preset: this.#presetAfter(name) });
    if (complaint !== null) this.note.textContent = complaint;
    if (this.#shown().preset !== shown.preset) this.#show();
  }

  // A sentence where a value is out of its control's range, else null.
  #rangeError(name, value) {
    const control = byId(`dm-control-${name}`);
    const input = control?.querySelector("input[type=range]") ?? control?.querySelector("input[type=number]");
    if (!input || value === null || value === undefined || value === "") return null;
    const [min, max] = [input.min, input.max].map((bound) => (bound === "" ? null : Number(bound)));
    if ((min === null || value >= min) && (max === null || value <= max)) return null;
    return `${LABELS[name]} must be ${max === null ? `at least ${min}` : `between ${min} and ${max}`}.`;
  }

  // Length, stop strings and seed are no part of a preset.
  #presetAfter(name) {
    return SAMPLING.includes(name) ? null : this.value.preset;
  }

  #parseControl(name, value) {
    if (name === "stop") return { stop: (value ?? "").split("\n").filter((line) => line !== "") };
    if (SAMPLING.includes(name)) return { [name]: value === this.options.defaults[name] ? null : value };
    return { [name]: value ?? null };
  }

  #choosePreset(name) {
    const preset = this.options.presets.find((each) => each.name === name);
    const sampling = Object.fromEntries(SAMPLING.map((each) => [each, preset?.[each] ?? null]));
    this.#change({ ...this.value, ...sampling, preset: name === MODEL_DEFAULT ? null : name });
    this.#show();
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
    if (this.#pendingSaves.get(conversationId) !== value) return; // a newer one waits behind it
    try {
      await this.save(conversationId, value);
      this.#confirmedSaves.set(conversationId, { value, when: performance.now() });
    } catch (error) {
      if (conversationId === this.#conversationId) this.note.textContent = error.message;
      else if (error.status !== 404 && this.#pendingSaves.get(conversationId) === value) {
        this.#failedSaves.set(conversationId, value); // a deleted conversation needs no settings
        this.onSaveFailed(error);
      }
      return;
    } finally {
      if (this.#pendingSaves.get(conversationId) === value) this.#pendingSaves.delete(conversationId);
    }
    if (value !== this.value) return; // changed again meanwhile, or another conversation's by now
    this.unsaved = false;
    // A complaint that came meanwhile stays.
    if (this.note.textContent === SAVING) this.note.textContent = "Saved with this conversation.";
  }
}
