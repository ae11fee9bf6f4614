// The page of cases: the list on one side, the open case on the other, and the keys.

import { announce, byId, debounce, make } from "../../shared/dom.js";
import { bindShortcuts, listShortcuts } from "../../shared/shortcuts.js";
import { Chime, News, pageTitle, waitingCount } from "./attention.js";
import { cases } from "./case_api.js";
import { CaseRows } from "./case_rows.js";
import { CaseView } from "./case_view.js";
import { OTHER_KEYS, shortcuts } from "./keyboard.js";
import { KnownTags } from "./known_tags.js";
import { ListView } from "./list_view.js";
import { shareStream } from "./streams.js";
import { hashOf, placeOf } from "./views.js";

/** @import { Viewer } from "../../shared/api_types.js" */
/** @import { CaseRow, Counts, Inbox } from "./types.js" */
/** @import { Filter } from "./case_rows.js" */

const PAGE = 50;
const OPEN_MS = 120; // keys pressed faster than this pass over cases without loading them
const COUNT_MS = 1000; // many cases may change at once

export class CasesPage {
  #rows;
  #visit = 0; // answers of an earlier view or search are dropped
  #isLoading = false;
  #isBehind = false; // the stream was opened, and what changed before may have been missed
  /** @type {CaseView | null} */
  #open = null;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #opening;
  #isDrawing = false;
  /** @type {string | null} the case that the keys have reached */
  #stepId = null;
  #countSoon = debounce(COUNT_MS, () => this.#count());

  /** @param {Viewer} viewer @param {Inbox[]} inboxes */
  constructor(viewer, inboxes) {
    this.viewer = viewer;
    this.inboxes = inboxes;
    this.main = byId("cs-main");
    this.place = byId("cs-case");
    this.list = new ListView(viewer, inboxes, {
      more: () => this.#more(),
      changed: () => this.#load(),
      narrowed: (narrowing) => {
        location.hash = hashOf(this.#rows.filter.view, this.#open?.id, narrowing);
      },
    });
    this.tags = new KnownTags(() => this.list.showTags(this.tags.all, this.#filter.tag));
    this.#rows = new CaseRows({ view: "mine", inbox: null, tag: null, q: "" }, viewer.user_id);
    this.news = new News(viewer.user_id);
    this.chime = new Chime();
    this.shortcuts = shortcuts((command) => this.#run(command));
    this.#setUpHeader();
    addEventListener("hashchange", () => this.#go());
    bindShortcuts(this.shortcuts);
  }

  async start() {
    if (placeOf(location.hash).view === null) history.replaceState(null, "", hashOf(this.viewer.role === "viewer" ? "all" : "mine"));
    this.#showEmpty();
    this.#loadTags();
    await this.#go();
    shareStream("/api/cases/events", ["case", "counts", "reset"], {
      onEvent: (name, data) => {
        if (name === "case") this.#onCase(data);
        else if (name === "reset") this.#load();
        else this.#onCounts(data);
      },
      onOpen: () => this.#onConnection(true),
      onLost: () => this.#onConnection(false),
    });
  }

  // Shows the view and the case of the address.
  async #go() {
    const { view, caseId } = placeOf(location.hash);
    if (view === null) return;
    const { filter } = this.#rows;
    const { inbox, tag } = this.#filter;
    if (view !== filter.view || inbox !== filter.inbox || tag !== filter.tag || this.#visit === 0) await Promise.all([this.#load(), this.#openCase(caseId)]);
    else await this.#openCase(caseId);
  }

  // As the address says. An inbox that the user may not read, or that is gone, is none.
  /** @returns {Filter} */
  get #filter() {
    const { view, inbox, tag } = placeOf(location.hash);
    const known = this.inboxes.some(({ id }) => id === inbox) ? inbox : null;
    return { view: view ?? this.#rows.filter.view, inbox: known, tag, q: this.list.q };
  }

  /** The address of a case in the list that is shown; of none, the list's. @param {string | null} caseId */
  #hash(caseId = null) {
    return hashOf(this.#rows.filter.view, caseId, this.#rows.filter);
  }

  // They are suggestions: without them the page works.
  async #loadTags() {
    try {
      this.tags.add(Object.keys((await cases.tags()).tags));
    } catch {
      // those of the rows are known
    }
  }

  // Loads the list anew; of the same list, as many pages as were there.
  async #load() {
    const visit = ++this.#visit;
    const filter = this.#filter;
    const isSame = JSON.stringify(filter) === JSON.stringify(this.#rows.filter);
    const wanted = isSame ? Math.max(this.#rows.rows.length, 1) : 1;
    const rows = isSame ? this.#rows : new CaseRows(filter, this.viewer.user_id);
    this.list.inbox.value = filter.inbox ?? "";
    this.list.showTags(this.tags.all, filter.tag);
    this.list.loading();
    try {
      /** @type {CaseRow[]} */
      const found = [];
      /** @type {string | null} */
      let cursor = null;
      do {
        const page = await cases.list({ ...filter, q: filter.q || null, cursor, limit: PAGE });
        if (visit !== this.#visit) return;
        found.push(...page.cases);
        cursor = page.next;
        this.#showCounts(page.counts);
      } while (cursor !== null && found.length < wanted);
      rows.replace(found, cursor);
      this.#rows = rows;
      this.list.trouble.replaceChildren();
      this.list.show(rows, this.#open?.id ?? null);
      if (!isSame) byId("cs-scroll").scrollTop = 0;
    } catch (error) {
      if (visit === this.#visit) this.list.fail(error);
    }
  }

  async #more() {
    const rows = this.#rows;
    if (this.#isLoading || rows.next === null) return;
    this.#isLoading = true;
    const visit = this.#visit;
    try {
      const page = await cases.list({ ...rows.filter, q: rows.filter.q || null, cursor: rows.next, limit: PAGE });
      if (visit !== this.#visit) return;
      rows.append(page.cases, page.next);
      this.list.show(rows, this.#open?.id ?? null);
    } catch (error) {
      this.list.fail(error);
    } finally {
      this.#isLoading = false;
    }
  }

  /** @param {string | null} id */
  async #openCase(id) {
    if ((this.#open?.id ?? null) === id) return;
    this.#open?.close();
    this.#open = null;
    this.main.dataset.shown = id === null ? "list" : "case";
    this.list.mark(id);
    if (id === null) {
      this.#showEmpty();
      return;
    }
    this.#open = new CaseView(id, this.place, {
      viewer: this.viewer,
      inboxes: this.inboxes,
      changed: (row) => this.#onCase(row),
      back: () => this.#leave(),
      hash: (caseId) => this.#hash(caseId),
    });
    await this.#open.load();
  }

  #showEmpty() {
    this.place.replaceChildren(make("p", { class: "cs-nothing cs-choose" }, "Choose a case from the list, or press j."));
  }

  /** @param {CaseRow} row */
  #onCase(row) {
    if (this.news.isNew(row)) {
      this.chime.play();
      announce(`${row.contact.name || "A visitor"} waits for a person.`);
    }
    this.tags.add(row.tags);
    this.#open?.update(row);
    if (!this.#rows.apply(row)) return;
    // Many cases may change at once.
    if (this.#isDrawing) return;
    this.#isDrawing = true;
    requestAnimationFrame(() => {
      this.#isDrawing = false;
      this.list.show(this.#rows, this.#open?.id ?? null);
    });
  }

  // They come first in a stream: from now on nothing is missed.
  /** @param {Counts} counts */
  #onCounts(counts) {
    const { inbox, tag } = this.#rows.filter;
    document.title = pageTitle(waitingCount(counts));
    if (inbox === null && tag === null) this.#showCounts(counts);
    else this.#countSoon(); // these are of all inboxes and tags
    if (this.#isBehind) this.#load();
    this.#isBehind = false;
  }

  async #count() {
    const visit = this.#visit;
    try {
      const { counts } = await cases.list({ ...this.#rows.filter, q: null, limit: 1 });
      if (visit === this.#visit) this.#showCounts(counts);
    } catch {
      // the next change counts again
    }
  }

  /** @param {Counts} counts */
  #showCounts(counts) {
    this.list.showCounts(counts);
    document.title = pageTitle(waitingCount(counts));
  }

  /** @param {boolean} isConnected */
  #onConnection(isConnected) {
    byId("cs-connection").textContent = isConnected ? "" : "Not connected. Reconnecting …";
    this.#isBehind ||= isConnected;
  }

  #setUpHeader() {
    const sound = byId("cs-sound");
    const show = () => {
      sound.textContent = this.chime.isOn ? "Sound: on" : "Sound: off";
    };
    show();
    sound.addEventListener("click", () => {
      this.chime.isOn = !this.chime.isOn;
      show();
      announce(this.chime.isOn ? "A sound tells of each new case that waits." : "The sound is off.");
    });
    byId("cs-keys").addEventListener("click", () => listShortcuts([...this.shortcuts, ...OTHER_KEYS]));
    byId("cs-skip").addEventListener("click", (/** @type {Event} */ event) => {
      event.preventDefault();
      this.list.focus(this.#open?.id ?? null);
    });
  }

  /** Runs a command; returns whether there is one to run now. @param {string} command */
  #run(command) {
    const open = this.#open;
    switch (command) {
      case "next":
        return this.#step(1);
      case "previous":
        return this.#step(-1);
      case "search":
        this.main.dataset.shown = "list";
        this.list.search.select();
        this.list.search.focus();
        return true;
      case "keys":
        listShortcuts([...this.shortcuts, ...OTHER_KEYS]);
        return true;
      case "leave":
        if (document.activeElement === this.list.search || this.place.contains(document.activeElement)) this.#leave();
        return false;
      case "enter":
        if (open) this.place.focus();
        return open !== null;
      default:
        return open?.run(command) ?? false;
    }
  }

  // Shows the next case. Its address is set a little later: a key that is held passes over the cases between.
  /** @param {1 | -1} by */
  #step(by) {
    const current = this.#stepId ?? this.#open?.id ?? null;
    const row = this.#rows.neighbour(current, by);
    if (!row) return true;
    this.#stepId = row.id;
    this.list.mark(row.id);
    clearTimeout(this.#opening);
    this.#opening = setTimeout(() => {
      this.#stepId = null;
      location.hash = this.#hash(row.id);
    }, OPEN_MS);
    if (this.#rows.rows.at(-1) === row) this.#more();
    return true;
  }

  // Back to the list: on a phone, from the case; elsewhere, with the focus.
  #leave() {
    const id = this.#open?.id ?? null;
    if (getComputedStyle(byId("cs-list")).display === "none") location.hash = this.#hash();
    this.main.dataset.shown = "list";
    this.list.focus(id);
  }
}
