// Details of the selected system prompt: description, variables to fill in and recommended sampling.

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
  #renderedKey = ""; // key of what is rendered; fields with the focus are not rebuilt for the same key

  // `filled(values)` is called when variables change, `recommended(settings)` when the user chooses the recommended
  // sampling.
  constructor({ filled, recommended }) {
    this.filled = filled;
    this.recommended = recommended;
  }

  // `prompt`: one of the page's options, or undefined. `used`: whether its recommended sampling is already in use.
  show(prompt, values, used) {
    const place = byId("dm-prompt-about");
    if (!place) return;
    const key = JSON.stringify([prompt ?? null, used]);
    const focused = place.contains(document.activeElement) && document.activeElement.tagName === "INPUT";
    if (key === this.#renderedKey && focused) return;
    this.#renderedKey = key;
    if (!prompt) {
      place.replaceChildren();
      return;
    }
    const fields = prompt.variables.map((variable) => this.#field(variable, values));
    const wanted = Object.entries(prompt.recommended);
    const parts = [make("p", {}, prompt.description), ...fields];
    if (wanted.length) {
      const use = make("button", { type: "button", class: "dm-chip", onclick: () => this.recommended(prompt.recommended) }, "Use these");
      const text = make("p", {}, `Recommended: ${wanted.map(shown).join(", ")}.`);
      parts.push(make("div", { class: "dm-prompt-recommended" }, text, used ? make("p", {}, "Already in use.") : use));
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
