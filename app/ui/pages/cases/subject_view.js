// The subject of the open case in its head, and the form that changes it.

import { icon, make } from "../../shared/dom.js";
import { button, problem } from "./controls.js";

const MAX_CHARS = 200;

export class SubjectView {
  #subject = "";
  #isEditing = false;
  #mayEdit = false;

  /** @param {HTMLElement} subtitle  below the subject @param {((subject: string) => Promise<unknown>) | null} save  null: the user may not */
  constructor(subtitle, save) {
    this.save = save;
    this.title = make("h2", { dir: "auto" });
    this.edit = make("button", { type: "button", class: "dm-icon-button dm-small", "aria-label": "Edit the subject", title: "Edit the subject", onclick: () => this.#open() }, icon("rename"));
    this.field = make("input", { class: "dm-input", "aria-label": "Subject", maxlength: MAX_CHARS, required: true, autocomplete: "off", dir: "auto" });
    this.trouble = make("div");
    this.form = make("form", { class: "cs-subject-form", hidden: true }, this.field, make("button", { type: "submit", class: "dm-button dm-small dm-primary" }, "Save"), button("Cancel", () => this.#close()), this.trouble);
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#submit();
    });
    this.form.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || event.isComposing) return;
      event.preventDefault(); // it must not leave the case
      this.#close();
    });
    this.element = make("div", { class: "cs-head-text" }, make("div", { class: "cs-subject" }, this.title, save ? this.edit : ""), this.form, subtitle);
  }

  /** @param {string} subject @param {string} instead  what is shown without one @param {boolean} mayEdit */
  show(subject, instead, mayEdit) {
    this.#subject = subject;
    this.title.textContent = subject || instead;
    this.title.title = this.title.textContent; // a long one is cut
    this.#mayEdit = mayEdit;
    if (!mayEdit || !this.#isEditing) this.#hide();
  }

  #open() {
    this.#isEditing = true;
    this.title.classList.add("dm-hidden"); // still the heading, for screen readers
    this.edit.hidden = true;
    this.form.hidden = false;
    this.field.value = this.#subject;
    this.field.select();
    this.field.focus();
  }

  #hide() {
    this.#isEditing = false;
    this.title.classList.remove("dm-hidden");
    this.edit.hidden = !this.#mayEdit;
    this.form.hidden = true;
    this.trouble.replaceChildren();
  }

  #close() {
    this.#hide();
    this.edit.focus();
  }

  async #submit() {
    const subject = this.field.value.trim();
    if (!this.save || subject === this.#subject) {
      this.#close();
      return;
    }
    this.trouble.replaceChildren();
    try {
      await this.save(subject);
      if (this.#isEditing) this.#close();
    } catch (error) {
      this.trouble.replaceChildren(problem(error));
      this.field.focus();
    }
  }
}
