// The choice of a preset: a listener in Python sets the sliders to a shared one, and the user's own are here already.

import { api } from "../../shared/api.js";
import { OwnPresets } from "./own_presets.js";
import { PendingChoice } from "./pending_choice.js";
import { CUSTOM, OWN_PRESET } from "./settings_rules.js";

/** @import { Settings } from "./settings.js" */

export class PresetSetting {
  #choice = new PendingChoice("preset");

  /** @param {Settings} panel @param {HTMLElement} place  for the buttons of own presets */
  constructor(panel, place) {
    this.panel = panel;
    this.own = new OwnPresets(place, {
      save: (name) => this.#save(name),
      remove: (name) => this.#remove(name),
      useForNewChats: (use) => this.#useForNewChats(use),
    });
  }

  /** The preset that was chosen and has no answer yet; null if there is none. */
  get pending() {
    return this.#choice.name;
  }

  /** The presets of all users, and this user's own. */
  get all() {
    const { presets, own_presets: own } = this.panel.options;
    return this.panel.rules.allPresets(presets, own);
  }

  /** The presets, and "Custom" while it is what is shown. @param {string} shown @returns {[string, string][]} */
  choices(shown) {
    /** @type {[string, string][]} */
    const presets = this.all.map(({ name, title }) => [title, name]);
    return shown === CUSTOM ? [...presets, ["Custom", CUSTOM]] : presets;
  }

  wait() {
    return this.#choice.wait();
  }

  end() {
    this.#choice.end();
  }

  /** Shows what can be done with own presets. @param {string} preset  that the settings fit */
  show(preset) {
    const { rules, options, value } = this.panel;
    const { new_chat_settings: newChats } = options;
    const isStart = JSON.stringify({ ...rules.empty, ...newChats }) === JSON.stringify(value);
    const own = options.own_presets.find(({ id }) => preset === `${OWN_PRESET}${id}`);
    this.own.show({ name: own?.name ?? null, isCustom: preset === CUSTOM, isStart, hasStart: newChats !== null, canSave: options.user.role !== "viewer" });
  }

  /**
   * The user chose a preset: the listener in Python (settings.py) sets the sliders, then applied() is called.
   * @param {string} name
   */
  choose(name) {
    this.panel.note.textContent = "";
    if (name.startsWith(OWN_PRESET)) {
      this.#choice.end();
      this.#apply(name);
      this.panel.show();
      return;
    }
    this.#choice.make(name);
  }

  /**
   * The listener in Python has set the sliders to this preset. Returns whether the controls are to show the settings:
   * not while the answer to a later choice is to come.
   * @param {string} name
   */
  applied(name) {
    const pending = this.#choice.name;
    if (pending !== null && pending !== name) return false;
    if (pending !== null) this.#apply(name);
    this.#choice.end();
    return true;
  }

  /** The listener failed. Returns the function to call with the reason. */
  fail() {
    return this.#choice.fail();
  }

  /** @param {string} name */
  #apply(name) {
    this.panel.change(this.panel.rules.withPreset(this.panel.value, name, this.all));
    this.panel.showPrompt();
  }

  /** @param {string} name */
  async #save(name) {
    const { panel } = this;
    const saved = await api.savePreset(name, panel.value);
    const others = panel.options.own_presets.filter((each) => each.name !== saved.name);
    panel.options.own_presets = [...others, saved].sort((a, b) => a.name.localeCompare(b.name));
    panel.change({ ...panel.value, preset: null });
    panel.show();
  }

  /** @param {string} name */
  async #remove(name) {
    const { options } = this.panel;
    const preset = options.own_presets.find((each) => each.name === name);
    if (preset) await api.deletePreset(preset.id);
    options.own_presets = options.own_presets.filter((each) => each !== preset);
    this.panel.show();
  }

  /** @param {boolean} use  false: the model's defaults again */
  async #useForNewChats(use) {
    const { panel } = this;
    const settings = use ? panel.value : null;
    await api.useForNewChats(settings);
    panel.options.new_chat_settings = settings;
    panel.state.newChats = settings;
    panel.showOwnPresets();
  }
}
