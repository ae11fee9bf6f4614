// Drafts of replies to customers that were used: what the model wrote, and what the agents changed.

import { placeOf } from "../../components/chat/citations.js";
import { query, request } from "../../shared/api.js";
import { make } from "../../shared/dom.js";
import { moment } from "../../shared/formats.js";
import { button, latest } from "./controls.js";
import { problem } from "./desk.js";

/** @import { Citation, UsedDraft, UsedDraftPage, WordChange } from "../../shared/api_types.js" */

const PAGE = 10;
const USES = { copied: "copied", inserted: "inserted into the message box" };
const CHANGES = { shorter: "made shorter", friendlier: "made friendlier" };

/** How much of a draft was changed, in words. @param {WordChange[]} changes */
export function changesText(changes) {
  /** @param {"added" | "removed"} kind */
  const words = (kind) => changes.filter((change) => change.kind === kind).flatMap(({ text }) => text.split(/\s+/).filter(Boolean)).length;
  const [added, removed] = [words("added"), words("removed")];
  if (added === 0 && removed === 0) return "Used as the model wrote it.";
  return `Changed before it was used: ${added} ${added === 1 ? "word" : "words"} added, ${removed} removed.`;
}

/** @param {WordChange} change */
function run({ kind, text }) {
  if (kind === "added") return make("ins", {}, text);
  return kind === "removed" ? make("del", {}, text) : text;
}

/** @param {Citation} citation */
function source(citation) {
  const name = `[${citation.number}] ${placeOf(citation)}`;
  return make("details", { class: "dk-thoughts" }, make("summary", { dir: "auto" }, name), make("div", { class: "dk-said-text", dir: "auto" }, citation.text));
}

/** @param {UsedDraft} draft */
export function draftBlock(draft) {
  const { user, model, change, message, used_as: usedAs, used_at: usedAt, changes, citations, withheld } = draft;
  const who = [user, `${USES[usedAs]} ${moment(usedAt)}`, model, change ? CHANGES[change] : ""].filter(Boolean).join(" · ");
  return make(
    "div",
    { class: "dk-said dk-draft" },
    make("p", { class: "dk-said-who" }, who),
    make("p", { class: "dk-draft-message", dir: "auto" }, message),
    make("p", { class: "dm-hint" }, withheld ?? changesText(changes)),
    withheld === null ? make("div", { class: "dk-said-text dk-changes", dir: "auto" }, ...changes.map(run)) : null,
    ...citations.map(source),
  );
}

/** The list of them, below the replies to review. */
export class UsedDrafts {
  #runLatest = latest();
  /** @type {string | null} */
  #cursor = null;
  #range = {};

  constructor() {
    this.list = make("div", { class: "dk-cards" });
    this.more = button("Show more drafts", () => this.load(this.#range, true), { hidden: true });
    const hint = "What the model wrote for a customer, and what agents changed before they copied or inserted it.";
    this.element = make("section", { class: "dk-drafts" }, make("h2", {}, "Drafts that were used"), make("p", { class: "dk-lead" }, hint), this.list, this.more);
  }

  /** @param {Record<string, unknown>} range  the days @param {boolean} further  the next page */
  load(range, further = false) {
    this.#range = range;
    const parameters = query({ ...range, limit: PAGE, cursor: further ? this.#cursor : null });
    this.more.disabled = true;
    return this.#runLatest(
      () => /** @type {Promise<UsedDraftPage>} */ (request("GET", `/api/desk/drafts?${parameters}`)),
      ({ items, next_cursor: next }) => {
        const cards = items.map((draft) => make("article", { class: "dm-card dk-card", "aria-label": `Draft in “${draft.conversation_title}”` }, make("p", { class: "dk-question" }, draft.conversation_title), draftBlock(draft)));
        if (further) this.list.append(...cards);
        else this.list.replaceChildren(...cards);
        if (!this.list.children.length) this.list.replaceChildren(make("p", { class: "dk-empty" }, "No drafts were used in this date range."));
        this.#cursor = next;
        this.more.hidden = next === null;
        this.more.disabled = false;
      },
      (error) => {
        this.list.replaceChildren(problem(error));
        this.more.hidden = true;
      },
    );
  }
}
