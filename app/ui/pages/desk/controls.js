// Shared by the sections: labelled fields, buttons, texts to copy, a date range.

import { make, storage, uniqueId } from "../../shared/dom.js";
import { dayOf, lastDays } from "./days.js";

/**
 * A labelled field. Gives `input` an id if it has none.
 * @param {string} name
 * @param {HTMLElement} input
 * @param {string | null} hint
 */
export function field(name, input, hint = null) {
  input.id ||= uniqueId("dk-field");
  input.classList.add("dm-input");
  const parts = [make("label", { class: "dm-label", for: input.id }, name), input];
  if (hint) {
    parts.push(make("p", { class: "dm-hint", id: `${input.id}-hint` }, hint));
    input.setAttribute("aria-describedby", `${input.id}-hint`);
  }
  return make("div", { class: "dm-field" }, ...parts);
}

/** @param {string} name @param {() => unknown} onclick @param {{kind?: string} & Record<string, unknown>} options  attributes */
export function button(name, onclick, { kind = "", ...attributes } = {}) {
  return make("button", { type: "button", class: `dm-button ${kind}`.trim(), onclick, ...attributes }, name);
}

/** A text to copy. @param {string} label @param {string} text */
export function copyField(label, text) {
  const shown = make("input", { class: "dm-input", readonly: true, "aria-label": label });
  shown.value = text;
  const said = make("p", { class: "dm-hint", role: "status" });
  const copy = button("Copy", async () => {
    try {
      await navigator.clipboard.writeText(text);
      said.textContent = "Copied.";
    } catch {
      shown.focus();
      shown.select();
      said.textContent = "This browser doesn’t let the page copy. The text is selected: copy it with the keyboard.";
    }
  });
  return make("div", {}, make("div", { class: "dk-people-link" }, shown, copy), said);
}

/** A box to check, with its label. @param {string} name @param {boolean} checked @param {{type?: string, value?: string, name?: string}} attributes */
export function check(name, checked, attributes = {}) {
  const input = make("input", { type: "checkbox", id: uniqueId("dk-check"), ...attributes });
  input.checked = checked;
  return { input, element: make("label", { class: "dk-check", for: input.id }, input, make("span", { dir: "auto" }, name)) };
}

// A date range with presets, kept in sessionStorage.
export class DayRange {
  /** @param {(days: {first: string, last: string}) => unknown} changed  called on every change */
  constructor(changed) {
    const today = dayOf(new Date());
    this.first = make("input", { type: "date", max: today });
    this.last = make("input", { type: "date", max: today });
    const kept = (storage.read("sessionStorage", "deskmate.desk.days") ?? "").split(" ");
    if (kept.length === 2) [this.first.value, this.last.value] = kept;
    if (!this.first.value || !this.last.value) this.#setRecent(30);
    const tell = () => {
      if (!this.first.value || !this.last.value) return; // a date is being typed
      storage.write("sessionStorage", "deskmate.desk.days", `${this.first.value} ${this.last.value}`);
      changed(this.value);
    };
    this.first.addEventListener("change", tell);
    this.last.addEventListener("change", tell);
    /** @param {number} days */
    const preset = (days) =>
      button(`${days} days`, () => {
        this.#setRecent(days);
        tell();
      });
    this.element = make(
      "div",
      { class: "dk-filters" },
      field("From", this.first),
      field("To", this.last),
      make("div", { class: "dm-buttons", role: "group", "aria-label": "Recent days" }, preset(7), preset(30), preset(90)),
    );
  }

  get value() {
    return { first: this.first.value, last: this.last.value };
  }

  /** @param {number} days */
  #setRecent(days) {
    const { first, last } = lastDays(days);
    this.first.value = first;
    this.last.value = last;
  }
}

// Returns a function that runs async calls and drops the result of every call but the latest.
export function latest() {
  let last = 0;
  /**
   * @template Answer
   * @param {() => Promise<Answer>} call
   * @param {(answer: Answer) => void} use
   * @param {(error: unknown) => void} failed
   */
  return async (call, use, failed) => {
    const number = ++last;
    try {
      const answer = await call();
      if (number === last) use(answer);
    } catch (error) {
      if (number !== last) return;
      failed(error);
    }
  };
}
