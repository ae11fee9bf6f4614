// Feedback on a reply: a thumb, reasons and a comment. Every change is saved at once.

import { debounce, icon, make } from "../../shared/dom.js";

/** @typedef {import("./types.js").MessageFeedback} MessageFeedback */

/** @type {Record<MessageFeedback["rating"], Record<string, string>>} */
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

/** @param {MessageFeedback["rating"]} rating @param {string} reason */
export const reasonName = (rating, reason) => REASONS[rating][reason] ?? reason;

/** @param {Partial<MessageFeedback> | null | undefined} feedback @returns {MessageFeedback | null} */
const withEveryField = (feedback) =>
  feedback?.rating ? { rating: feedback.rating, reasons: feedback.reasons ?? [], comment: feedback.comment ?? "" } : null;

export class Feedback {
  /** @type {MessageFeedback | null} the feedback that is saved */
  #saved;
  /** @type {MessageFeedback | null} the feedback on the page */
  #shown;
  #saving = false;
  #keepComment = () => {}; // saves the comment as typed so far
  #isWriting = false; // a comment is not saved yet

  /**
   * Place `buttons` in the row under the reply and `details` below that row.
   * @param {import("./types.js").Message} message
   * @param {import("./types.js").Actions} actions
   */
  constructor({ id, feedback }, actions) {
    this.id = id;
    this.actions = actions;
    this.#saved = this.#shown = withEveryField(feedback);
    this.note = make("span", { class: "dm-feedback-note", role: "status" });
    this.up = this.#thumb("up", "Good reply");
    this.down = this.#thumb("down", "Bad reply");
    this.why = make("button", { type: "button", class: "dm-action dm-why", "aria-expanded": "false", onclick: () => this.#toggle() });
    this.buttons = make("span", { class: "dm-thumbs", role: "group", "aria-label": "Your feedback" }, this.up, this.down, this.why);
    this.details = make("div", { class: "dm-card dm-feedback", hidden: true });
    this.#draw();
  }

  /** Shows feedback that was changed elsewhere. @param {Partial<MessageFeedback> | null | undefined} feedback */
  show(feedback) {
    const changed = withEveryField(feedback);
    if (this.#saving || this.#isWriting || JSON.stringify(changed) === JSON.stringify(this.#shown)) return;
    this.#saved = this.#shown = changed;
    this.details.hidden = true;
    this.#draw();
  }

  /** @param {MessageFeedback["rating"]} rating @param {string} label */
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

  /** @param {MessageFeedback["rating"]} rating */
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
    if (this.#shown === null) return;
    const { rating, comment } = this.#shown;
    /** @param {[string, string]} entry */
    const chip = ([reason, name]) => {
      const button = make("button", {
        type: "button",
        class: "dm-chip",
        "data-reason": reason,
        onclick: () => {
          if (this.#shown === null) return;
          const reasons = this.#shown.reasons;
          const others = reasons.filter((each) => each !== reason);
          this.#give({ ...this.#shown, reasons: others.length < reasons.length ? others : [...reasons, reason] });
        },
      });
      button.append(name);
      return button;
    };
    const box = make("textarea", { class: "dm-input", "aria-label": "Comment", rows: "2", maxlength: String(MAX_COMMENT), placeholder: "What should it have said? (optional)" });
    box.value = comment;
    this.#keepComment = () => {
      if (!this.#isWriting) return;
      keep.cancel();
      this.#isWriting = false;
      if (this.#shown && box.value.trim() !== this.#shown.comment) this.#give({ ...this.#shown, comment: box.value.trim() });
      else if (!this.#saving) this.#say("Saved.");
    };
    const keep = debounce(600, this.#keepComment);
    box.addEventListener("change", this.#keepComment); // leaving the box may be followed by leaving the page
    box.addEventListener("input", () => {
      this.#isWriting = true;
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
    this.note.textContent = "";
    this.details.replaceChildren(
      make("p", { class: "dm-feedback-question" }, question),
      make("div", { class: "dm-chips", role: "group", "aria-label": question }, ...Object.entries(REASONS[rating]).map(chip)),
      box,
      this.note,
    );
    this.details.hidden = false;
    this.#draw();
  }

  /** Shows new feedback and saves it; null removes it. @param {MessageFeedback | null} feedback */
  #give(feedback) {
    this.#shown = feedback;
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
        await this.actions.rate(this.id, wanted);
      } catch (error) {
        this.#say("");
        this.#shown = this.#saved;
        if (this.#saved === null || this.#saved.rating !== wanted?.rating) this.details.hidden = true;
        this.#draw();
        this.actions.onError(error);
        break;
      }
      this.#saved = wanted;
      if (!this.#isWriting) this.#say("Saved.");
    }
    this.#saving = false;
    this.buttons.dataset.saved = String(this.#saved?.rating ?? "none"); // the saved rating, read by tests
  }

  /** @param {string} text */
  #say(text) {
    this.note.textContent = text;
  }

  #draw() {
    const rating = this.#shown?.rating ?? null;
    this.up.setAttribute("aria-pressed", String(rating === "up"));
    this.down.setAttribute("aria-pressed", String(rating === "down"));
    const open = !this.details.hidden;
    this.why.hidden = rating === null;
    this.why.setAttribute("aria-expanded", String(open));
    const said = this.#shown?.reasons.map((reason) => reasonName(rating ?? "up", reason)) ?? [];
    if (this.#shown?.comment) said.push("comment");
    this.why.textContent = open ? "Close" : said.join(", ") || "Say why";
    /** @type {NodeListOf<HTMLElement>} */
    const chips = this.details.querySelectorAll("[data-reason]");
    for (const chip of chips) {
      chip.setAttribute("aria-pressed", String(this.#shown?.reasons.includes(chip.dataset.reason ?? "") ?? false));
    }
  }
}
