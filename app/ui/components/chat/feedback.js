// Feedback on a reply: a thumb, reasons and a comment. Every change is saved at once.

import { api } from "../../shared/api.js";
import { debounce, icon, make } from "../../shared/dom.js";

const REASONS = {
  up: { correct: "Correct", helpful: "Helpful", clear: "Easy to follow" },
  down: {
    wrong: "Not true",
    off_topic: "Missed the question",
    incomplete: "Incomplete",
    unclear: "Hard to follow",
    too_long: "Too long",
    tone: "Wrong tone",
  },
};
const MAX_COMMENT = 2000;

export const reasonName = (rating, reason) => REASONS[rating][reason] ?? reason;

export class Feedback {
  #saved; // the feedback the server has; null: none
  #shown; // the feedback on the page
  #saving = false;
  #keepComment = () => {}; // saves the comment as typed so far

  // Place `buttons` in the row under the reply and `details` below that row. `onError(error)` is called when saving
  // fails.
  constructor({ id, feedback = null }, onError) {
    this.id = id;
    this.onError = onError;
    this.#saved = this.#shown = feedback;
    this.up = this.#thumb("up", "Good reply");
    this.down = this.#thumb("down", "Bad reply");
    this.why = make("button", { type: "button", class: "dm-action", "aria-expanded": "false", onclick: () => this.#toggle() });
    this.buttons = make("span", { class: "dm-thumbs", role: "group", "aria-label": "Your feedback" }, this.up, this.down, this.why);
    this.details = make("div", { class: "dm-feedback", hidden: true });
    this.#draw();
  }

  #thumb(rating, label) {
    return make(
      "button",
      {
        type: "button",
        class: `dm-action dm-thumb dm-thumb-${rating}`,
        "aria-label": label,
        title: label,
        onclick: () => this.#rate(rating),
      },
      icon(`thumb-${rating}`),
    );
  }

  #rate(rating) {
    this.#keepComment();
    if (this.#shown?.rating === rating) {
      this.details.hidden = true;
      this.#give(null);
      return;
    }
    this.#give({ rating, reasons: [], comment: this.#shown?.comment ?? "" });
    this.#openDetails();
  }

  #toggle() {
    this.#keepComment();
    if (this.details.hidden) this.#openDetails();
    else this.details.hidden = true;
    this.#draw();
  }

  #openDetails() {
    const { rating, comment } = this.#shown;
    const chip = ([reason, name]) => {
      const button = make("button", {
        type: "button",
        class: "dm-chip",
        "data-reason": reason,
        onclick: () => {
          const reasons = this.#shown.reasons;
          const others = reasons.filter((each) => each !== reason);
          this.#give({ ...this.#shown, reasons: others.length < reasons.length ? others : [...reasons, reason] });
        },
      });
      button.append(name);
      return button;
    };
    const box = make("textarea", { class: "dm-feedback-comment", "aria-label": "Comment", rows: "2", maxlength: String(MAX_COMMENT), placeholder: "What should it have said? (optional)" });
    box.value = comment;
    this.#keepComment = () => {
      if (!this.writing) return;
      keep.cancel();
      this.writing = false;
      if (this.#shown && box.value.trim() !== this.#shown.comment) this.#give({ ...this.#shown, comment: box.value.trim() });
      else if (!this.#saving) this.#say("Saved.");
    };
    const keep = debounce(600, this.#keepComment);
    box.addEventListener("change", this.#keepComment); // leaving the box may be followed by leaving the page
    box.addEventListener("input", () => {
      this.writing = true;
      this.#say("Saving …"); // from the first keystroke on, the comment is unsaved
      keep();
    });
    box.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || event.isComposing) return;
      event.stopPropagation(); // Esc must not also stop a reply
      event.preventDefault();
      this.#toggle();
      this.why.focus();
    });
    const question = rating === "up" ? "What was good about it?" : "What was wrong with it?";
    this.note = make("span", { class: "dm-feedback-note", role: "status" });
    this.details.replaceChildren(
      make("p", { class: "dm-feedback-question" }, question),
      make("div", { class: "dm-chips", role: "group", "aria-label": question }, ...Object.entries(REASONS[rating]).map(chip)),
      box,
      this.note,
    );
    this.details.hidden = false;
    this.#draw();
  }

  // Shows new feedback and saves it; null removes it.
  #give(opinion) {
    this.#shown = opinion;
    this.#draw();
    this.#save();
  }

  // Sends one request at a time and the latest feedback last; states in between are skipped.
  async #save() {
    if (this.#saving) return;
    this.#saving = true;
    while (this.#shown !== this.#saved) {
      const wanted = this.#shown;
      this.#say("Saving …");
      try {
        if (wanted === null) await api.unrate(this.id);
        else await api.rate(this.id, { rating: wanted.rating, reasons: wanted.reasons, comment: wanted.comment });
      } catch (error) {
        this.#say("");
        this.#shown = this.#saved;
        if (this.#saved === null || this.#saved.rating !== wanted?.rating) this.details.hidden = true;
        this.#draw();
        this.onError(error);
        break;
      }
      this.#saved = wanted;
      if (!this.writing) this.#say("Saved.");
    }
    this.#saving = false;
    this.buttons.dataset.saved = String(this.#saved?.rating ?? "none"); // the saved rating, read by tests
  }

  #say(text) {
    if (this.note) this.note.textContent = text;
  }

  #draw() {
    const rating = this.#shown?.rating ?? null;
    this.up.setAttribute("aria-pressed", String(rating === "up"));
    this.down.setAttribute("aria-pressed", String(rating === "down"));
    const open = !this.details.hidden;
    this.why.hidden = rating === null;
    this.why.setAttribute("aria-expanded", String(open));
    const said = rating ? this.#shown.reasons.map((reason) => reasonName(rating, reason)) : [];
    if (this.#shown?.comment) said.push("comment");
    this.why.textContent = open ? "Close" : said.join(", ") || "Say why";
    for (const chip of this.details.querySelectorAll("[data-reason]")) {
      chip.setAttribute("aria-pressed", String(this.#shown?.reasons.includes(chip.dataset.reason) ?? false));
    }
  }
}
