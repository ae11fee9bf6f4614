// The list of cases: views with their counts, search, and the rows that were loaded.

import { byId, debounce, make, replaceChildren } from "../../shared/dom.js";
import { count, moment } from "../../shared/formats.js";
import { button, field, problem } from "./controls.js";
import { ago } from "./times.js";
import { beginning, emptyText, hashOf, repeats, VIEWS } from "./views.js";

/** @import { Viewer } from "../../shared/api_types.js" */
/** @import { CaseRow, Counts, Inbox } from "./types.js" */
/** @import { CaseRows, Filter } from "./case_rows.js" */
/** @import { Narrowing } from "./views.js" */

const SEARCH_MS = 250;
const PRIORITIES = { low: "Low", high: "High", urgent: "Urgent" };
const STATUS = { bot: "Bot", open: "Open", snoozed: "Snoozed", resolved: "Resolved" };

/**
 * @typedef {object} ListHost
 * @property {() => unknown} more  loads the next page
 * @property {() => unknown} changed  the search has changed
 * @property {(narrowing: Narrowing) => unknown} narrowed  another inbox or tag was chosen
 */

export class ListView {
  /** @type {Map<string, {row: CaseRow, href: string, item: HTMLLIElement}>} */
  #items = new Map();
  /** @type {Filter} */
  #filter = { view: "mine", inbox: null, tag: null, q: "" };
  #isEmpty = false; // the list, as it was shown
  #hasCases = true; // the desk, as far as the user may read it

  /** @param {Viewer} viewer @param {Inbox[]} inboxes @param {ListHost} host */
  constructor(viewer, inboxes, host) {
    this.beginning = beginning(viewer.role, inboxes.length);
    this.inboxNames = new Map(inboxes.map(({ id, name }) => [id, name]));
    this.links = new Map(VIEWS.map(([view, title]) => [view, make("a", { href: hashOf(view) }, make("span", {}, title), make("span", { class: "cs-count" }))]));
    byId("cs-views").replaceChildren(...this.links.values());
    const later = debounce(SEARCH_MS, () => host.changed());
    this.search = make("input", { type: "search", class: "dm-input", id: "cs-q", "aria-label": "Search cases", placeholder: "Search cases", autocomplete: "off", maxlength: "200" });
    this.search.addEventListener("input", () => later());
    this.inbox = make("select", {}, make("option", { value: "" }, "All inboxes"), ...inboxes.map(({ id, name }) => make("option", { value: id }, name)));
    this.tag = make("select");
    for (const select of [this.inbox, this.tag]) select.addEventListener("change", () => host.narrowed(this.narrowing));
    const inboxField = field("Inbox", this.inbox);
    inboxField.hidden = inboxes.length < 2;
    this.tagField = field("Tag", this.tag);
    for (const each of [inboxField, this.tagField]) each.firstElementChild?.classList.add("dm-hidden");
    this.showTags([], null);
    const form = byId("cs-search");
    form.replaceChildren(this.search, make("div", { class: "cs-narrow" }, inboxField, this.tagField));
    form.addEventListener("submit", (/** @type {Event} */ event) => {
      event.preventDefault();
      later.cancel();
      host.changed();
    });
    this.list = make("ul", { class: "cs-rows", "aria-label": "List of cases" });
    this.note = make("div", { class: "cs-empty", role: "status" });
    this.more = button("Load more", () => host.more(), { hidden: true });
    this.trouble = byId("cs-trouble");
    byId("cs-scroll").replaceChildren(this.list, this.note, this.more);
    new IntersectionObserver(([{ isIntersecting }]) => isIntersecting && !this.more.hidden && host.more(), { root: byId("cs-scroll"), rootMargin: "200px" }).observe(this.more);
    setInterval(() => this.#tick(), 30_000);
  }

  /** What is searched for. */
  get q() {
    return this.search.value.trim();
  }

  /** What was chosen to narrow the view down. @returns {Narrowing} */
  get narrowing() {
    return { inbox: this.inbox.value || null, tag: this.tag.value || null };
  }

  /** Offers tags as a filter. @param {string[]} tags @param {string | null} chosen  perhaps one that no case has any more */
  showTags(tags, chosen) {
    const shown = chosen === null || tags.includes(chosen) ? tags : [chosen, ...tags];
    this.tag.replaceChildren(make("option", { value: "" }, "All tags"), ...shown.map((tag) => make("option", { value: tag }, tag)));
    this.tag.value = chosen ?? "";
    this.tagField.hidden = shown.length === 0;
  }

  /** @param {Counts} counts  of the inbox and the tag that were chosen */
  showCounts(counts) {
    this.#hasCases = counts.all !== 0;
    this.#showNote();
    for (const [view, link] of this.links) {
      const number = counts[view];
      const shown = link.lastElementChild;
      if (shown) shown.textContent = number === undefined ? "" : count(number);
    }
  }

  /** @param {CaseRows} cases @param {string | null} openId  of the case that is shown */
  show(cases, openId) {
    const { view } = cases.filter;
    this.#filter = cases.filter;
    for (const [id, link] of this.links) {
      link.href = hashOf(id, null, cases.filter);
      if (id === view) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    const focused = document.activeElement;
    const items = cases.rows.map((row) => this.#item(row));
    for (const id of [...this.#items.keys()]) if (!cases.find(id)) this.#items.delete(id);
    replaceChildren(this.list, items);
    if (focused instanceof HTMLElement && focused !== document.activeElement && this.list.contains(focused)) focused.focus({ preventScroll: true }); // it was moved
    this.mark(openId, false);
    this.#isEmpty = cases.rows.length === 0;
    this.#showNote();
    this.more.hidden = cases.next === null;
    this.list.removeAttribute("aria-busy");
  }

  // A desk without cases says how they come, whatever the view.
  #showNote() {
    const { inbox, tag, q } = this.#filter;
    const isNew = !this.#hasCases && inbox === null && tag === null && q === "";
    const { text, link } = isNew ? this.beginning : { text: emptyText(this.#filter), link: null };
    byId("cs-main").toggleAttribute("data-empty", this.#isEmpty);
    const parts = this.#isEmpty ? [make("p", {}, text), ...(link ? [make("a", { class: "dm-button", href: link[1] }, link[0])] : [])] : [];
    if (this.note.textContent !== parts.map((part) => part.textContent).join("")) this.note.replaceChildren(...parts); // it is announced
  }

  loading() {
    this.list.setAttribute("aria-busy", "true");
  }

  /** @param {unknown} error */
  fail(error) {
    this.trouble.replaceChildren(problem(error));
    this.list.removeAttribute("aria-busy");
  }

  /** Marks the case that is shown. @param {string | null} id @param {boolean} scroll  to it */
  mark(id, scroll = true) {
    for (const [each, { item }] of this.#items) {
      const link = item.firstElementChild;
      if (each === id) {
        link?.setAttribute("aria-current", "true");
        if (scroll) item.scrollIntoView({ block: "nearest" });
      } else link?.removeAttribute("aria-current");
    }
  }

  /** Moves the focus to a row, or out of the search if there is none. @param {string | null} id */
  focus(id) {
    const item = (id !== null && this.#items.get(id)?.item) || this.list.firstElementChild;
    if (item) /** @type {HTMLElement} */ (item.firstElementChild).focus();
    else this.search.blur();
  }

  /** @param {CaseRow} row */
  #item(row) {
    const there = this.#items.get(row.id);
    const { view } = this.#filter;
    const href = hashOf(view, row.id, this.#filter);
    if (there?.row === row && there.href === href) return there.item;
    const item = there?.item ?? make("li");
    const link = /** @type {HTMLAnchorElement} */ (item.firstElementChild ?? make("a", { class: "cs-row" }));
    link.href = href;
    link.replaceChildren(...this.#parts(row));
    if (!there) item.append(link);
    this.#items.set(row.id, { row, href, item });
    return item;
  }

  /** @param {CaseRow} row */
  #parts(row) {
    const { contact, subject, preview, priority, status, assignee, tags, updated_at: updated, waiting_since: waiting, snoozed_until: until } = row;
    /** @param {string} kind @param {string} text */
    const mark = (kind, text) => make("span", { class: `cs-mark cs-mark-${kind}` }, text);
    const { view } = this.#filter;
    const priorityName = priority === "normal" ? null : PRIORITIES[priority];
    const isPlace = view === status || view === "mine" || view === "unassigned"; // the view's name tells the status
    const marks = [
      priorityName && mark(priority, priorityName),
      waiting && status === "open" && make("span", { class: "cs-mark cs-mark-waiting", "data-since": waiting }, `Waits ${ago(waiting)}`),
      status === "snoozed" && until ? mark("snoozed", `Snoozed until ${moment(until)}`) : !isPlace && mark(status, STATUS[status]),
      ...tags.slice(0, 3).map((tag) => mark("tag", tag)),
      tags.length > 3 && mark("tag", `+${tags.length - 3}`),
    ].filter((each) => each instanceof HTMLElement);
    const place = [this.inboxNames.size > 1 ? this.inboxNames.get(row.inbox_id) : null, view === "mine" ? null : assignee?.name].filter(Boolean).join(" · ");
    return [
      make("span", { class: "cs-row-top" }, make("strong", { dir: "auto" }, contact.name || contact.email || "Visitor"), make("time", { datetime: updated, title: moment(updated), "data-at": updated }, ago(updated))),
      ...(subject ? [make("span", { class: "cs-row-subject", dir: "auto" }, subject)] : []),
      ...(subject && repeats(preview, subject) ? [] : [make("span", { class: "cs-row-preview", dir: "auto" }, preview)]),
      make("span", { class: "cs-row-marks" }, ...marks, place ? make("span", { class: "cs-row-place", dir: "auto" }, place) : null),
    ];
  }

  // Times pass while the page is open.
  #tick() {
    for (const time of this.list.querySelectorAll("time")) time.textContent = ago(time.dataset.at ?? time.dateTime);
    for (const mark of this.list.querySelectorAll(".cs-mark-waiting")) mark.textContent = `Waits ${ago(/** @type {HTMLElement} */ (mark).dataset.since ?? "")}`;
  }
}
