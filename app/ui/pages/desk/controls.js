// Shared by the sections: a date range, labelled fields, buttons, and formatting of numbers and times.

import { make, storage } from "../../shared/dom.js";

export const zone = Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";

/** @param {number} number */
const two = (number) => String(number).padStart(2, "0");
/** @param {Date} date */
export const isoDay = (date) => `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;

const whole = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const moments = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });

/** @param {number} number */
export const count = (number) => whole.format(number);
/** @param {number} number */
export const compact = (number) => (number < 10_000 ? whole.format(number) : short.format(number));
/** @param {string} iso */
export const moment = (iso) => moments.format(new Date(iso));
/** @param {number} number @param {string} word */
export const plural = (number, word, words = `${word}s`) => `${count(number)} ${number === 1 ? word : words}`;

/** @param {number | null} milliseconds */
export function seconds(milliseconds) {
  if (milliseconds === null) return "–";
  return milliseconds < 1000 ? `${Math.round(milliseconds)} ms` : `${(milliseconds / 1000).toFixed(2)} s`;
}

let fields = 0;
/**
 * A labelled field. Gives `input` an id if it has none.
 * @param {string} name
 * @param {HTMLElement} input
 * @param {string | null} hint
 */
export function field(name, input, hint = null) {
  input.id ||= `dk-field-${++fields}`;
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

// A date range with presets, kept in sessionStorage.
export class DayRange {
  /** @param {(days: {first: string, last: string}) => unknown} changed  called on every change */
  constructor(changed) {
    const today = new Date();
    this.first = make("input", { type: "date", max: isoDay(today) });
    this.last = make("input", { type: "date", max: isoDay(today) });
    const kept = (storage.read("sessionStorage", "deskmate.desk.days") ?? "").split(" ");
    if (kept.length === 2) [this.first.value, this.last.value] = kept;
    if (!this.first.value || !this.last.value) this.#lately(30);
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
        this.#lately(days);
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
  #lately(days) {
    const today = new Date();
    this.last.value = isoDay(today);
    this.first.value = isoDay(new Date(today.getFullYear(), today.getMonth(), today.getDate() - days + 1));
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
