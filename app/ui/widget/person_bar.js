// What stands between the messages and the message box: the way to a person, the e-mail address for a late answer and
// the rating.

import { make } from "../shared/dom.js";
import { errorText } from "./api.js";
import { t } from "./texts.js";

/** @import { TalkState } from "./types.js" */

/** @typedef {{askForPerson: () => Promise<void>, leaveEmail: (email: string) => Promise<void>, rate: (score: number, comment: string) => Promise<void>}} Actions */

export class PersonBar {
  #isAsking = false;
  #isChangingEmail = false;
  #hasRated = false;

  /** @param {Actions} actions */
  constructor(actions) {
    this.actions = actions;
    this.ask = make("button", { type: "button", class: "dm-button dm-small", onclick: () => this.#ask() }, t("Talk to a person"));
    this.state = make("p", { class: "dw-person-state", dir: "auto" });
    this.problem = make("p", { class: "dm-alert", role: "alert" });
    this.email = this.#emailForm();
    this.rating = this.#ratingForm();
    this.thanks = make("p", { class: "dm-notice", role: "status" });
    this.element = make("section", { class: "dw-person", "aria-label": t("Your team") }, this.rating, this.thanks, this.email, this.problem, make("div", { class: "dw-person-row" }, this.state, this.ask));
  }

  /** @param {TalkState} state */
  show({ case: current, contact, inbox }) {
    const isWithPeople = current?.status === "open" || current?.status === "snoozed";
    this.ask.hidden = isWithPeople;
    this.ask.disabled = this.#isAsking || inbox === null;
    this.state.textContent = isWithPeople ? this.#personText(current?.agent?.name ?? null) : "";
    const email = contact?.email || "";
    this.email.hidden = !isWithPeople || (email !== "" && !this.#isChangingEmail);
    if (isWithPeople && email !== "" && !this.#isChangingEmail) {
      const change = make("button", { type: "button", class: "dm-action", onclick: () => this.#changeEmail(email) }, t("Change"));
      this.state.append(" ", t("We also answer to {email}.", { email }), contact?.verified ? "" : " ", contact?.verified ? "" : change);
    }
    if (!current?.rating || current.status !== "resolved") this.#hasRated = false;
    this.rating.hidden = !current?.rating || this.#hasRated;
  }

  /** @param {string | null} name */
  #personText(name) {
    return name === null ? t("A person from our team will answer you here.") : t("{name} is with you.", { name });
  }

  async #ask() {
    this.#isAsking = true;
    this.ask.disabled = true;
    await this.#try(() => this.actions.askForPerson());
    this.#isAsking = false;
    this.ask.disabled = false;
  }

  /** @param {string} email */
  #changeEmail(email) {
    this.#isChangingEmail = true;
    this.email.hidden = false;
    const field = /** @type {HTMLInputElement} */ (this.email.elements.namedItem("email"));
    field.value = email;
    field.focus();
  }

  #emailForm() {
    const field = make("input", { id: "dw-email", name: "email", type: "email", class: "dm-input", autocomplete: "email", maxlength: "320", required: true, dir: "ltr" });
    const send = make("button", { type: "submit", class: "dm-button dm-small" }, t("Save"));
    const form = make(
      "form",
      { class: "dw-email", hidden: true },
      make("label", { class: "dm-label", for: "dw-email" }, t("Your e-mail address, for an answer when you're away")),
      make("div", { class: "dw-row" }, field, send),
    );
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      send.disabled = true;
      const isSaved = await this.#try(() => this.actions.leaveEmail(field.value.trim()));
      send.disabled = false;
      if (!isSaved) return;
      this.#isChangingEmail = false;
      form.hidden = true;
    });
    return form;
  }

  #ratingForm() {
    const names = [t("Very bad"), t("Bad"), t("Neither good nor bad"), t("Good"), t("Very good")];
    const stars = names.map((name, index) =>
      make(
        "label",
        { class: "dw-star" },
        make("input", { type: "radio", name: "score", value: String(index + 1), required: true, "aria-label": name }),
        make("span", { "aria-hidden": "true", title: name }, "★"),
      ),
    );
    const comment = make("input", { id: "dw-comment", name: "comment", class: "dm-input", maxlength: "2000", dir: "auto" });
    const send = make("button", { type: "submit", class: "dm-button dm-small dm-primary" }, t("Send rating"));
    const form = make(
      "form",
      { class: "dw-rating", hidden: true },
      make("fieldset", {}, make("legend", { class: "dm-label" }, t("How was our help?")), make("div", { class: "dw-stars" }, ...stars)),
      make("label", { class: "dm-label", for: "dw-comment" }, t("Anything to add? (optional)")),
      make("div", { class: "dw-row" }, comment, send),
    );
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      const score = Number(new FormData(form).get("score"));
      send.disabled = true;
      const isSent = await this.#try(() => this.actions.rate(score, comment.value.trim()));
      send.disabled = false;
      if (!isSent) return;
      this.#hasRated = true;
      form.reset();
      form.hidden = true;
      this.thanks.textContent = t("Thank you for your rating.");
    });
    return form;
  }

  /** @param {() => Promise<void>} action  whose failure is shown */
  async #try(action) {
    this.problem.textContent = "";
    try {
      await action();
      return true;
    } catch (error) {
      this.problem.textContent = errorText(error);
      return false;
    }
  }
}
