// What a chosen system prompt comes with: its description, variables to fill in, the sampling that suits it.

import { byId, make } from "./dom.js";

const NAMES = {
  temperature: "temperature",
  top_p: "top-p",
  top_k: "top-k",
  min_p: "min-p",
  repetition_penalty: "repetition penalty",
  max_tokens: "at most",
  seed: "seed",
  stop: "stop strings",
};

const shown = ([name, value]) =>
  name === "max_tokens" ? `at most ${value} tokens` : `${NAMES[name] ?? name} ${Array.isArray(value) ? value.join(", ") : value}`;

export class PromptDetails {
  #drawn = ""; // what for: fields in which somebody writes stay

  // `filled(values)` hears of variables, `recommended(settings)` that the sampling is wanted.
  constructor({ filled, recommended }) {
    this.filled = filled;
    this.recommended = recommended;
  }

  // `prompt`: of the options, or undefined. `used`: whether its sampling is chosen already.
  show(prompt, values, used) {
    const place = byId("dm-prompt-about");
    if (!place) return;
    const key = JSON.stringify([prompt ?? null, used]);
    const focused = place.contains(document.activeElement) && document.activeElement.tagName === "INPUT";
    if (key === this.#drawn && focused) return;
    this.#drawn = key;
    if (!prompt) {
      place.replaceChildren();
      return;
    }
    const fields = prompt.variables.map((variable) => this.#field(variable, values));
    const wanted = Object.entries(prompt.recommended);
    const parts = [make("p", {}, prompt.description), ...fields];
    if (wanted.length) {
      const use = make("button", { type: "button", class: "dm-chip", onclick: () => this.recommended(prompt.recommended) }, "Use it");
      const text = make("p", {}, `Recommended: ${wanted.map(shown).join(", ")}.`);
      parts.push(make("div", { class: "dm-prompt-recommended" }, text, used ? make("p", {}, "It is in use.") : use));
    }
    place.replaceChildren(...parts);
  }

  #field({ name, description, default: value }, values) {
    const input = make("input", { type: "text", id: `dm-prompt-variable-${name}`, "data-variable": name, maxlength: "2000", autocomplete: "off", placeholder: value ?? "" });
    input.value = values[name] ?? "";
    input.addEventListener("input", () => {
      const given = [...byId("dm-prompt-about").querySelectorAll("[data-variable]")].filter((each) => each.value !== "");
      this.filled(Object.fromEntries(given.map((each) => [each.dataset.variable, each.value])));
    });
    return make("div", {}, make("label", { for: input.id }, description), input);
  }
}
