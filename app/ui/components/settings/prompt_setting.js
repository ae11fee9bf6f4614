// The choice of a system prompt: one of the desk's, with its variables filled in, a text of the user's own, or none.

import { api } from "../../shared/api.js";
import { debounce } from "../../shared/dom.js";
import { PendingChoice } from "./pending_choice.js";
import { PromptDetails } from "./prompt_details.js";
import { tooSmallText } from "./prompt_size.js";
import { NO_PROMPT, OWN_TEXT } from "./settings_rules.js";

/** @import { PromptOptions } from "../../shared/page_options.js" */
/** @import { Settings } from "./settings.js" */
/** @import { Values } from "./settings_rules.js" */

/**
 * What the listener in Python answers to the choice of a system prompt: the prompt as it is now, or why there is none.
 * @typedef {{name: string, prompt?: PromptOptions, error?: string}} FoundPrompt
 */

export class PromptSetting {
  #choice = new PendingChoice("system prompt");
  /** @type {{key: string, text: string} | null} the selected prompt with its variables filled in */
  #filled = null;

  /**
   * @param {Settings} panel
   * @param {object} page
   * @param {HTMLElement} page.place  for the details of the selected prompt
   * @param {(settings: Partial<Values>) => void} page.recommended  the user chose the sampling that it recommends
   * @param {() => void} page.focusText  puts the focus on the text
   * @param {() => void} page.onListChanged  the list to choose from may be another now
   */
  constructor(panel, { place, recommended, focusText, onListChanged }) {
    this.panel = panel;
    this.focusText = focusText;
    this.onListChanged = onListChanged;
    this.details = new PromptDetails(place, { filled: (values) => this.#fillIn(values), recommended });
    this.fillSoon = debounce(400, () => this.#fill());
  }

  /** The prompt that was chosen and has no answer yet; null if there is none. */
  get pending() {
    return this.#choice.name;
  }

  /** The selected prompt as the model gets it; undefined if none is selected. */
  get text() {
    if (this.#filled?.key === this.#fillKey()) return this.#filled.text;
    return this.#named(this.panel.value.system_prompt_name)?.text;
  }

  /** @returns {[string, string][]} */
  get choices() {
    /** @type {[string, string][]} */
    const prompts = this.panel.options.prompts.map(({ name, title }) => [title, name]);
    return [["None", NO_PROMPT], ...prompts, ["Custom", OWN_TEXT]];
  }

  wait() {
    return this.#choice.wait();
  }

  end() {
    this.#choice.end();
  }

  /** Shows the details of the selected prompt. Returns that the model is too small for it, as a sentence; empty: it is not. */
  show() {
    const { rules, options, value } = this.panel;
    const prompt = this.#named(value.system_prompt_name);
    const used = rules.usesRecommended(value, prompt);
    const warning = options.model.is_loading ? "" : tooSmallText(prompt, options.model);
    this.details.show(prompt, value.system_prompt_variables, used, options.parameters, warning);
    if (prompt) this.onChange();
    return warning;
  }

  /** The settings have changed: the variables may be other ones. */
  onChange() {
    if (this.panel.value.system_prompt_name !== null && this.#filled?.key !== this.#fillKey()) this.fillSoon();
  }

  /**
   * The user chose a system prompt: the listener in Python answers with what it is now, then found() is called.
   * No prompt, and the user's own text, hold at once.
   * @param {string} name
   */
  choose(name) {
    const { panel } = this;
    panel.note.textContent = "";
    if (name !== OWN_TEXT && name !== NO_PROMPT) {
      this.#choice.make(name);
      return;
    }
    this.#choice.end();
    if (name === OWN_TEXT) {
      panel.change(panel.rules.withOwnText(panel.value, this.text ?? panel.value.system_prompt));
      this.focusText();
      return;
    }
    panel.change(panel.rules.withNamedPrompt(panel.value, null));
    panel.show();
  }

  /**
   * The listener in Python has found a system prompt. Returns whether the controls are to show the settings: not if
   * nothing was asked for, nor while the answer to a later choice is to come.
   * @param {FoundPrompt | null} found
   */
  found(found) {
    const { panel } = this;
    const pending = this.#choice.name;
    if (!found?.prompt && !found?.error) return false; // no prompt, or an own text: it holds since it was chosen
    if (found.prompt) this.#keep(found.prompt);
    if (pending !== null && pending !== found.name) return false;
    if (pending !== null && found.prompt) panel.change(panel.rules.withNamedPrompt(panel.value, pending));
    if (pending !== null && found.error) {
      panel.note.textContent = found.error;
      this.#choice.fail()(new Error(found.error));
    }
    this.#choice.end();
    panel.showPrompt();
    return true;
  }

  /** The listener failed. Returns the function to call with the reason; null: nothing was to come of it. */
  fail() {
    return this.#choice.name === null ? null : this.#choice.fail();
  }

  /** @param {string} text */
  write(text) {
    const { panel } = this;
    const isChosen = this.#choice.name !== null || panel.rules.choosesOwnText(panel.value, text);
    this.#choice.end(); // the text was written since
    panel.change(panel.rules.withOwnText(panel.value, text));
    if (isChosen) panel.show();
  }

  /** @param {string | null} name */
  #named(name) {
    return this.panel.options.prompts.find((prompt) => prompt.name === name);
  }

  #fillKey() {
    const { system_prompt_name: name, system_prompt_variables: values } = this.panel.value;
    return JSON.stringify([name, values]);
  }

  async #fill() {
    const key = this.#fillKey();
    const { system_prompt_name: name, system_prompt_variables: values } = this.panel.value;
    if (name === null || Object.keys(values).length === 0) return;
    try {
      const { text } = await api.fillPrompt(name, values);
      if (key !== this.#fillKey()) return;
      this.#filled = { key, text };
    } catch (error) {
      this.panel.note.textContent = error instanceof Error ? error.message : String(error);
      return;
    }
    this.panel.show();
  }

  /** The user filled in variables of the selected prompt. @param {Record<string, string>} values */
  #fillIn(values) {
    const other = this.#choice.name;
    this.#choice.end(); // the selected prompt was used since
    this.panel.change({ ...this.panel.value, system_prompt_variables: values });
    if (other !== null) this.panel.show();
  }

  /** Keeps a prompt as it is now, which may differ from what the page has loaded. @param {PromptOptions} prompt */
  #keep(prompt) {
    const known = this.#named(prompt.name);
    if (JSON.stringify(known) === JSON.stringify(prompt)) return;
    if (known) Object.assign(known, prompt);
    else this.panel.options.prompts.push(prompt);
    this.onListChanged(); // its title may have changed
    this.#filled = null;
  }
}
