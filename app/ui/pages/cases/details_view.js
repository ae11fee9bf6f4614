// Beside the case: the contact, priority, tags, the rating, and the contact's other cases.

import { make } from "../../shared/dom.js";
import { moment } from "../../shared/formats.js";
import { field, problem } from "./controls.js";
import { SUGGESTIONS } from "./known_tags.js";
import { ago } from "./times.js";
import { hashOf } from "./views.js";

/** @import { CaseDetail, CaseRow, Inbox, Priority } from "./types.js" */

/** @type {[Priority, string][]} */
const PRIORITIES = [["low", "Low"], ["normal", "Normal"], ["high", "High"], ["urgent", "Urgent"]];
/** @type {Record<string, string>} */
export const STATUS_NAMES = { bot: "With the assistant", open: "Open", snoozed: "Snoozed", resolved: "Resolved" };

/**
 * @typedef {object} DetailsHost
 * @property {Inbox[]} inboxes
 * @property {boolean} mayChange
 * @property {(change: {priority?: Priority, tags?: string[]}) => Promise<unknown>} change
 * @property {(caseId: string) => string} hash
 */

export class DetailsView {
  /** @type {CaseRow | null} */
  #row = null;

  /** @param {DetailsHost} host */
  constructor(host) {
    this.host = host;
    this.contact = make("div");
    this.facts = make("dl", { class: "cs-facts" });
    this.trouble = make("div");
    this.priority = make("select", {}, ...PRIORITIES.map(([value, name]) => make("option", { value }, name)));
    this.priority.addEventListener("change", () => this.#change({ priority: /** @type {Priority} */ (this.priority.value) }));
    this.tags = make("ul", { class: "cs-tags", "aria-label": "Tags" });
    this.newTag = make("input", { type: "text", list: SUGGESTIONS, maxlength: "50", autocomplete: "off", placeholder: "Add a tag" });
    const form = make("form", { class: "cs-new-tag" }, field("New tag", this.newTag));
    form.querySelector("label")?.classList.add("dm-hidden");
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#addTag();
    });
    this.others = make("ul", { class: "cs-others", "aria-label": "Other cases of this contact" });
    this.othersTitle = make("h3", {}, "Other cases");
    this.element = make(
      "details",
      { class: "cs-details", open: matchMedia("(min-width: 75rem)").matches },
      make("summary", {}, "Contact and details"),
      this.contact,
      this.facts,
      make("div", { class: "cs-change" }, host.mayChange ? field("Priority", this.priority) : null, make("h3", {}, "Tags"), this.tags, host.mayChange ? form : null, this.trouble),
      this.othersTitle,
      this.others,
    );
  }

  /** @param {CaseDetail} detail */
  show({ case: row, other_cases: others, rating }) {
    this.rating = rating;
    this.update(row);
    this.othersTitle.textContent = others.length ? `Other cases (${others.length})` : "No other cases";
    this.others.replaceChildren(
      ...others.map((other) =>
        make("li", {}, make("a", { href: this.host.hash(other.id), dir: "auto" }, other.subject || other.preview || "(no subject)"), make("span", { class: "dm-hint" }, `${STATUS_NAMES[other.status]} · ${ago(other.updated_at)}`)),
      ),
    );
  }

  /** @param {CaseRow} row */
  update(row) {
    this.#row = row;
    const { contact, priority, tags } = row;
    this.contact.replaceChildren(
      make("h3", { dir: "auto" }, contact.name || "Visitor without a name"),
      contact.email ? make("p", { class: "cs-email", dir: "ltr" }, contact.email) : make("p", { class: "dm-hint" }, "No e-mail address"),
      make("p", { class: "dm-hint" }, contact.verified ? "Signed in on the website: the name is proven." : "Not signed in on the website: name and address are the visitor’s own words."),
    );
    this.facts.replaceChildren(...this.#facts(row));
    if (document.activeElement !== this.priority) this.priority.value = priority;
    this.tags.replaceChildren(
      ...tags.map((tag) =>
        make("li", {}, make("a", { href: hashOf("all", null, { tag }), title: "Cases with this tag", dir: "auto" }, tag), this.host.mayChange ? make("button", { type: "button", class: "dm-action", "aria-label": `Remove the tag ${tag}`, onclick: () => this.#change({ tags: tags.filter((each) => each !== tag) }) }, "×") : null),
      ),
    );
  }

  /** @param {CaseRow} row */
  #facts(row) {
    const inbox = this.host.inboxes.find(({ id }) => id === row.inbox_id)?.name ?? "";
    /** @type {[string, string | null][]} */
    const facts = [
      ["Status", row.status === "snoozed" && row.snoozed_until ? `Snoozed until ${moment(row.snoozed_until)}` : STATUS_NAMES[row.status]],
      ["Inbox", inbox],
      ["Priority", this.host.mayChange ? null : (PRIORITIES.find(([value]) => value === row.priority)?.[1] ?? row.priority)],
      ["Opened", moment(row.created_at)],
      ["First reply", row.first_reply_at && moment(row.first_reply_at)],
      ["Waits since", row.waiting_since && moment(row.waiting_since)],
      ["Resolved", row.resolved_at && moment(row.resolved_at)],
      ["Rating", this.rating ? `${this.rating.score} of 5${this.rating.comment ? `: “${this.rating.comment}”` : ""}` : null],
    ];
    return facts.filter(([, value]) => value).map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", { dir: "auto" }, value)));
  }

  async #addTag() {
    const tag = this.newTag.value.trim();
    const tags = this.#row?.tags ?? [];
    if (tag === "" || tags.includes(tag)) {
      this.newTag.value = "";
      return;
    }
    if (await this.#change({ tags: [...tags, tag] })) this.newTag.value = "";
  }

  /** @param {{priority?: Priority, tags?: string[]}} change */
  async #change(change) {
    this.trouble.replaceChildren();
    try {
      await this.host.change(change);
      return true;
    } catch (error) {
      this.trouble.replaceChildren(problem(error));
      if (this.#row) this.priority.value = this.#row.priority; // as it still is
      return false;
    }
  }
}

