// What the settings of a chat mean: defaults, presets, system prompts, and what the controls show of them.
// A control at the model's default is saved as null, "the model decides".

/** @import { ChatSettings, OwnPreset } from "../../shared/api_types.js" */
/** @import { ParameterOptions, PresetOptions, PromptOptions } from "../../shared/page_options.js" */

/** Settings with every field. @typedef {Required<ChatSettings> & Record<string, any>} Values */

export const OWN_TEXT = "own";
export const NO_PROMPT = "none";
export const OWN_PRESET = "own:"; // begins the name of a preset that the user has saved
export const CUSTOM = "custom"; // no preset has these values
export const NO_ADAPTER = ""; // no adapter has this name
const MODEL_DEFAULT = "default";

/** @type {Map<boolean | null, string>} what the control of thinking shows */
const THINKING = new Map([[null, "default"], [true, "on"], [false, "off"]]);
const OTHERS = Object.freeze({
  thinking: null,
  max_thinking_tokens: null,
  use_tools: null,
  adapter: null,
  json_schema: null,
  collections: /** @type {string[]} */ ([]),
});

const NO_NAMED_PROMPT = Object.freeze({ system_prompt_name: null, system_prompt_variables: {}, system_prompt: "" });

export class SettingsRules {
  /** @param {ParameterOptions[]} parameters */
  constructor(parameters) {
    this.parameters = parameters;
    this.sliders = parameters.filter((each) => each.is_slider).map(({ name }) => name); // what presets set
    this.lists = parameters.filter(({ kind }) => kind === "strings" || kind === "words").map(({ name }) => name); // a string per line
    /** @type {Readonly<Values>} */
    this.empty = Object.freeze(
      /** @type {Values} */ ({
        preset: null,
        ...Object.fromEntries(parameters.map(({ name, unset }) => [name, unset])),
        ...NO_NAMED_PROMPT,
        ...OTHERS,
      }),
    );
  }

  /**
   * The settings as the controls show them.
   * @param {Values} value
   * @param {object} known
   * @param {Record<string, number>} known.defaults  the model's
   * @param {string} [known.promptText]  the text of the named prompt
   * @param {PresetOptions[]} [known.presets]
   * @param {string | null} [known.preset]  chosen, and not part of the settings yet
   * @param {string | null} [known.prompt]  chosen, and not part of the settings yet
   * @returns {Record<string, any>}
   */
  shown(value, { defaults, promptText, presets = [], preset = null, prompt = null }) {
    /** @type {Record<string, any>} */
    const shown = {
      ...value,
      preset: preset ?? value.preset ?? this.#fittingPreset(value, presets),
      ...Object.fromEntries(this.lists.map((name) => [name, value[name].join("\n")])),
      system_prompt_name: prompt ?? value.system_prompt_name ?? (value.system_prompt ? OWN_TEXT : NO_PROMPT),
      system_prompt: promptText ?? value.system_prompt,
      thinking: THINKING.get(value.thinking ?? null),
      use_tools: value.use_tools !== false,
      adapter: value.adapter ?? NO_ADAPTER,
      json_schema: value.json_schema ?? "",
      collections: value.collections ?? [],
    };
    for (const name of this.sliders) shown[name] ??= defaults[name];
    return shown;
  }

  /**
   * The preset with these values, chosen or set one by one.
   * @param {Values} value
   * @param {PresetOptions[]} presets
   */
  #fittingPreset(value, presets) {
    if (this.sliders.every((name) => value[name] === null)) return MODEL_DEFAULT;
    return presets.find((preset) => this.sliders.every((name) => value[name] === preset[name]))?.name ?? CUSTOM;
  }

  /**
   * Whether a setting is not at the model's default.
   * @param {Values} value
   * @param {string} name
   */
  isChanged(value, name) {
    /** @param {any} each */
    const written = (each) => JSON.stringify(each === "" ? null : (each ?? null));
    return written(value[name]) !== written(this.empty[name]);
  }

  /**
   * A setting back at its default. A preset that set it is left.
   * @param {Values} value
   * @param {string} name
   * @returns {Values}
   */
  withDefault(value, name) {
    return { ...value, [name]: this.empty[name], preset: this.sliders.includes(name) ? null : value.preset };
  }

  /**
   * How many of the parameters that may be hidden are not at the model's default.
   * @param {Values} value
   */
  countChangedAdvanced(value) {
    const changed = this.parameters.filter(({ name, is_advanced: isAdvanced }) => isAdvanced && this.isChanged(value, name));
    return changed.length + Number(this.isChanged(value, "json_schema"));
  }

  /**
   * A parameter was set by hand. Changing a sampling parameter deselects the preset; length, stop strings and seed are
   * not part of one.
   * @param {Values} value
   * @param {string} name
   * @param {any} shown  the control's value
   * @param {Record<string, number>} defaults  the model's
   * @returns {Values}
   */
  withParameter(value, name, shown, defaults) {
    const preset = this.sliders.includes(name) ? null : value.preset;
    return { ...value, [name]: this.#parse(name, shown, defaults), preset };
  }

  /** @param {string} name @param {any} shown @param {Record<string, number>} defaults */
  #parse(name, shown, defaults) {
    if (name === "thinking") return [...THINKING].find(([, each]) => each === shown)?.[0] ?? null;
    if (name === "use_tools") return shown ? null : false;
    if (this.lists.includes(name)) return (shown ?? "").split("\n").filter((/** @type {string} */ line) => line !== "");
    if (this.sliders.includes(name)) return shown === defaults[name] ? null : shown;
    if (name === "adapter") return shown || null;
    if (name === "collections") return shown ?? [];
    if (name === "json_schema") return shown?.trim() ? shown : null;
    return shown ?? null;
  }

  /**
   * What the control of the adapter offers: none, the loaded ones, and the chosen one if it is no longer loaded. Empty if
   * there is nothing to choose.
   * @param {Values} value
   * @param {string[]} loaded
   * @returns {[string, string][]}
   */
  adapterChoices({ adapter }, loaded) {
    /** @type {[string, string][]} */
    const choices = loaded.map((name) => [name, name]);
    if (adapter && !loaded.includes(adapter)) choices.push([`${adapter} (not loaded)`, adapter]);
    return choices.length === 0 ? [] : [["None", NO_ADAPTER], ...choices];
  }

  /**
   * What the control of the sources offers: the collections with documents, and chosen ones, also if the user can no
   * longer use them. Empty if there is nothing to choose.
   * @param {Values} value
   * @param {{id: string, name: string, is_empty: boolean}[]} usable
   * @returns {[string, string][]}
   */
  collectionChoices({ collections }, usable) {
    const chosen = collections ?? [];
    const offered = usable.filter(({ id, is_empty: isEmpty }) => !isEmpty || chosen.includes(id));
    const gone = chosen.filter((id) => !usable.some((each) => each.id === id));
    return [
      ...offered.map(({ id, name }) => /** @type {[string, string]} */ ([name, id])),
      ...gone.map((id) => /** @type {[string, string]} */ (["A collection that is gone", id])),
    ];
  }

  /**
   * An error message if a value is outside its control's range, else null.
   * @param {string} name
   * @param {any} value
   * @param {{min: number | null, max: number | null}} range
   */
  rangeError(name, value, { min, max }) {
    if (value === null || value === undefined || value === "") return null;
    if ((min === null || value >= min) && (max === null || value <= max)) return null;
    const label = this.parameters.find((each) => each.name === name)?.label ?? "Maximum thinking";
    return `${label} must be ${max === null ? `at least ${min}` : `between ${min} and ${max}`}.`;
  }

  /**
   * The presets of all users, and those that this one has saved.
   * @param {PresetOptions[]} presets
   * @param {OwnPreset[]} own
   * @returns {PresetOptions[]}
   */
  allPresets(presets, own) {
    const saved = own.map(({ id, name, values }) => {
      const sampling = Object.fromEntries(this.sliders.map((each) => [each, values[each] ?? null]));
      return { name: `${OWN_PRESET}${id}`, title: name, description: "", ...sampling };
    });
    return [...presets, ...saved];
  }

  /**
   * A preset sets every slider: what it leaves open is the model's default.
   * @param {Values} value
   * @param {string} name
   * @param {PresetOptions[]} presets
   * @returns {Values}
   */
  withPreset(value, name, presets) {
    const preset = presets.find((each) => each.name === name);
    const sampling = Object.fromEntries(this.sliders.map((each) => [each, preset?.[each] ?? null]));
    return { ...value, ...sampling, preset: name === MODEL_DEFAULT || name.startsWith(OWN_PRESET) ? null : name };
  }

  /**
   * The sampling that a prompt recommends, the rest of the sliders at the model's defaults.
   * @param {Values} value
   * @param {Partial<ChatSettings>} recommended
   * @returns {Values}
   */
  withRecommended(value, recommended) {
    const sampling = Object.fromEntries(this.sliders.map((name) => [name, null]));
    return { ...value, ...sampling, preset: null, ...recommended };
  }

  /**
   * Whether the sampling that a prompt recommends is in use already.
   * @param {Values} value
   * @param {PromptOptions | undefined} prompt
   */
  usesRecommended(value, prompt) {
    const wanted = Object.entries(prompt?.recommended ?? {});
    return wanted.every(([name, each]) => JSON.stringify(value[name]) === JSON.stringify(each));
  }

  /** @param {Values} value @param {string | null} name  null: no prompt @returns {Values} */
  withNamedPrompt(value, name) {
    return { ...value, ...NO_NAMED_PROMPT, system_prompt_name: name };
  }

  /** @param {Values} value @param {string} text @returns {Values} */
  withOwnText(value, text) {
    return { ...value, ...NO_NAMED_PROMPT, system_prompt: text };
  }

  /**
   * Whether an own text changes what the dropdown shows.
   * @param {Values} value
   * @param {string} text
   */
  choosesOwnText(value, text) {
    return value.system_prompt_name !== null || (value.system_prompt === "") !== (text === "");
  }
}
