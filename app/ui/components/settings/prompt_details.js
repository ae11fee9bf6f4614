// Details of the selected system prompt: description, the size of model it needs, variables to fill in and recommended
// sampling.

import { make, uniqueId } from "../../shared/dom.js";
import { sizeText } from "./prompt_size.js";

/** @import { Variable } from "../../shared/api_types.js" */
/** @import { ParameterOptions, PromptOptions } from "../../shared/page_options.js" */
/** @import { Values } from "./settings_rules.js" */

/**
 * A setting in words: "top-p 0.9", "maximum length 300 tokens".
 * @param {[string, unknown]} setting
 * @param {ParameterOptions[]} parameters
 */
function shown([name, value], parameters) {
  const { label, unit, is_slider: isSlider } = /** @type {ParameterOptions} */ (parameters.find((each) => each.name === name));
  const words = [label.toLowerCase(), Array.isArray(value) ? value.join(", ") : value];
  return (unit && !isSlider ? [...words, unit] : words).join(" ");
}

export class PromptDetails {
  #renderedKey = ""; // key of what is rendered; fields with the focus are not rebuilt for the same key

  /**
   * @param {HTMLElement} place
   * @param {object} listeners
   * @param {(values: Record<string, string>) => void} listeners.filled  variables changed
   * @param {(settings: Partial<Values>) => void} listeners.recommended  the user chose the recommended sampling
   */
  constructor(place, { filled, recommended }) {
    this.place = place;
    this.filled = filled;
    this.recommended = recommended;
  }

  /**
   * @param {PromptOptions | undefined} prompt
   * @param {Record<string, string>} values  of its variables
   * @param {boolean} used  whether its recommended sampling is already in use
   * @param {ParameterOptions[]} parameters
   * @param {string} warning  that the loaded model is too small for it; empty: it is not
   */
  show(prompt, values, used, parameters, warning = "") {
    const { place } = this;
    const key = JSON.stringify([prompt ?? null, used, warning]);
    const focused = place.contains(document.activeElement) && document.activeElement?.tagName === "INPUT";
    if (key === this.#renderedKey && focused) return;
    this.#renderedKey = key;
    if (!prompt) {
      place.replaceChildren();
      return;
    }
    const fields = prompt.variables.map((variable) => this.#field(variable, values));
    const wanted = Object.entries(prompt.recommended);
    const size = sizeText(prompt);
    const parts = [
      make("p", { class: "dm-hint" }, prompt.description),
      warning || !size ? null : make("p", { class: "dm-hint dm-prompt-size" }, size),
      warning ? make("p", { class: "dm-notice dm-prompt-size", role: "status" }, warning) : null,
      ...fields,
    ].filter((part) => part !== null);
    if (wanted.length) {
      const use = make("button", { type: "button", class: "dm-chip", onclick: () => this.recommended(prompt.recommended) }, "Use these");
      const text = make("p", { class: "dm-hint" }, `Recommended: ${wanted.map((each) => shown(each, parameters)).join(", ")}.`);
      parts.push(make("div", { class: "dm-prompt-recommended" }, text, used ? make("p", { class: "dm-hint" }, "Already in use.") : use));
    }
    place.replaceChildren(...parts);
  }

  /** @param {Variable} variable @param {Record<string, string>} values */
  #field({ name, description, default: value }, values) {
    const input = make("input", { type: "text", class: "dm-input", id: uniqueId("dm-prompt-variable"), "data-variable": name, maxlength: "2000", autocomplete: "off", placeholder: value ?? "" });
    input.value = values[name] ?? "";
    input.addEventListener("input", () => {
      /** @type {NodeListOf<HTMLInputElement>} */
      const fields = this.place.querySelectorAll("[data-variable]");
      const given = [...fields].filter((each) => each.value !== "");
      this.filled(Object.fromEntries(given.map((each) => [each.dataset.variable, each.value])));
    });
    return make("div", { class: "dm-field" }, make("label", { class: "dm-label", for: input.id }, description), input);
  }
}
