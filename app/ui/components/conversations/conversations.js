// The conversation list: date groups, tags, archive and search. Shows what it is given, and raises events.

import { Component } from "../../shared/component.js";
import { debounce, make, replaceChildren } from "../../shared/dom.js";
import { plural } from "../../shared/formats.js";
import { openMenu } from "../../shared/menu.js";
import { conversationRow, pageUrl } from "./conversation_row.js";
import { askFolder, askTags, confirmDeletion } from "./dialogs.js";
import { DRAGGED, FolderBar } from "./folder_bar.js";
import { isListed, linesOf, NO_FILTER, tagsOf } from "./listing.js";
import { Redraws } from "./redraws.js";
import { Selection } from "./selection.js";

/** @typedef {import("./listing.js").Summary} Summary */
/** @typedef {import("./listing.js").Filter} Filter */
/** @typedef {import("./folder_bar.js").Folder} Folder */
/** @typedef {{items: Summary[], tags: string[], folders?: Folder[], hasMore: boolean, filter?: Filter}} List */

const SEARCH_DELAY_MS = 200;
const CLICK_DELAY_MS = 50; // after a pointer was released; its click comes within this time

export class Conversations extends Component {
  /** @type {Filter} */
  #filter = { ...NO_FILTER };
  /** @type {string[]} */
  #tags = [];
  /** @type {Folder[]} */
  #folders = [];
  #hasMore = false;
  #isLoadingMore = false;
  /** @type {Map<string, HTMLElement>} the rendered elements, by the keys of their lines */
  #rendered = new Map();
  /** @type {string | null} */
  #current = null;
  /** @type {HTMLElement | null} the row that Tab stops at */
  #tabStop = null;
  /** @type {Set<string>} events that the page's script handles */
  #handled = new Set();

  /** @param {import("../../shared/component.js").Context} context */
  constructor(context) {
    super(context);
    /** @type {Record<string, HTMLElement>} what `parts` shows or hides, by the name of the part */
    this.parts = {
      new: this.find(".dm-new"),
      search: this.find(".dm-search"),
      archived: this.find(".dm-show-archived"),
      folders: this.find(".dm-folders"),
      select: this.find(".dm-select"),
      export: this.find(".dm-export"),
      import: this.find(".dm-import"),
    };
    this.brand = this.find(".dm-brand");
    this.list = this.find(".dm-list");
    this.frame = this.find(".dm-list-frame");
    this.listNote = this.find(".dm-list-note");
    /** @type {HTMLButtonElement} */
    this.more = this.find(".dm-list-more");
    this.tags = this.find(".dm-tags");
    this.foot = this.find(".dm-list-foot");
    this.note = this.find(".dm-retention");
    /** @type {HTMLInputElement} */
    this.picker = this.find(".dm-import-file");
    this.folderBar = new FolderBar(this.find(".dm-folders"), {
      choose: (folder) => this.#choose({ folder }),
      create: (name) => this.emit("folder_create", { name }),
      rename: (id, name) => this.emit("folder_rename", { id, name }),
      remove: (id) => this.emit("folder_delete", { id }),
      move: (ids, folder) => this.emit("move", { ids, folder: { id: folder } }),
    });
    this.selection = new Selection(this.find(".dm-selection"), this.list, {
      rows: () => this.#rows(),
      isArchive: () => this.#filter.archived,
      act: (action, ids, button) => this.#changeMany(action, ids, button),
      toggled: (on) => {
        this.parts.select?.setAttribute("aria-pressed", String(on));
        if (!on && document.activeElement === document.body) this.parts.select?.focus();
      },
    });
    this.redraws = new Redraws(
      () => this.#interaction(),
      (/** @type {List} */ list, heldId) => this.#draw(list, heldId),
    );
    // Infinite scrolling.
    this.atEnd = new IntersectionObserver((entries) => entries.at(-1)?.isIntersecting && this.#wantMore(), {
      root: this.frame,
    });
    this.#listen();
    this.#watchProps();
  }

  #listen() {
    this.more.addEventListener("click", () => this.#wantMore());
    this.list.addEventListener("keydown", (event) => this.#moveFocus(event));
    this.list.addEventListener("dragstart", (event) => this.#drag(event));
    this.parts.select?.addEventListener("click", () => this.selection.toggle());
    this.list.addEventListener("focusin", (event) => this.#setTabStop(closestRow(event.target)));
    for (const released of ["pointerup", "pointercancel", "dragend"]) {
      document.addEventListener(released, () => this.#releaseSoon());
    }
    const { search, archived } = this.parts;
    const query = debounce(SEARCH_DELAY_MS, (/** @type {string} */ text) => this.#choose({ query: text.trim() }));
    search?.addEventListener("input", () => query(/** @type {HTMLInputElement} */ (search).value));
    archived?.addEventListener("click", () => this.#choose({ archived: !this.#filter.archived }));
    this.parts.new?.addEventListener("click", () => this.emit("new"));
    this.brand.addEventListener("click", (event) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      this.emit("new");
    });
    const exporting = /** @type {HTMLElement} */ (this.parts.export);
    exporting.addEventListener("click", () =>
      openMenu(exporting, "Export all conversations", [
        { name: "JSON, with all versions", iconName: "export", action: () => this.emit("export", { id: null, format: "json" }) },
        { name: "Markdown, one file each", iconName: "export", action: () => this.emit("export", { id: null, format: "markdown" }) },
      ]),
    );
    this.parts.import?.addEventListener("click", () => this.picker.click());
    this.picker.addEventListener("change", () => this.#upload());
  }

  #watchProps() {
    const { props } = this;
    const described = ["actions", "parts", "heading", "links", "note", "file_types", "height"];
    this.#describe();
    this.#current = props.current ?? null;
    this.#showValue();
    this.watch(described, () => {
      this.#rendered.clear(); // every row has other actions now
      this.#describe();
      this.#showValue();
    });
    this.watch(["value", "tags", "has_more", "empty", "filter"], () => this.#showValue());
    this.watch("current", () => this.markCurrent(props.current ?? null));
  }

  #describe() {
    const { parts = [], heading, links = [], note, file_types: types = [], height } = this.props;
    for (const [name, element] of Object.entries(this.parts)) element.hidden = !parts.includes(name);
    this.brand.textContent = heading ?? "";
    this.brand.hidden = !heading;
    for (const link of this.foot.querySelectorAll("a")) link.remove();
    for (const [label, url] of links) this.foot.append(make("a", { class: "dm-chip", href: pageUrl(url) }, label));
    this.showNote(note);
    this.picker.accept = types.join(",");
    this.element.style.height = typeof height === "number" ? `${height}px` : (height ?? "");
    this.element.style.flex = height === null || height === undefined ? "" : "none";
  }

  #showValue() {
    /** @type {Summary[]} */
    const items = this.props.value || [];
    this.show({ items, tags: this.props.tags ?? tagsOf(items), hasMore: Boolean(this.props.has_more) });
  }

  /**
   * Shows a list of conversations, `tags` to choose from, and whether there is more. `filter`: of which the list is.
   * @param {List} list
   */
  show(list) {
    this.#tags = list.tags;
    if (list.folders) this.#folders = list.folders;
    if (list.filter) this.#filter = { ...list.filter };
    const lost = this.#filter.tag !== null && !list.tags.includes(this.#filter.tag); // no conversation has it any more
    if (lost) this.#filter.tag = null;
    this.#drawFilter();
    this.#drawTags();
    this.redraws.request(list);
    if (lost) this.emit("search", { ...this.#filter });
  }

  /** Shows a text below the list. @param {string} text  empty: none */
  showNote(text) {
    this.note.textContent = text ?? "";
    this.note.hidden = !text;
  }

  /** How many of the rows are down to the end of the view, or to the open or the focused one; all while selecting. */
  get reach() {
    const { scrollTop, clientHeight, scrollHeight } = this.frame;
    const share = this.selection.isOn ? 1 : Math.min(1, (scrollTop + clientHeight) / Math.max(1, scrollHeight));
    const rows = this.#rows();
    const isHeld = (/** @type {HTMLElement} */ row) => row.dataset.id === this.#current || row.contains(document.activeElement);
    return Math.max(rows.findLastIndex(isHeld) + 1, Math.ceil(rows.length * share));
  }

  /** Says nothing about an empty list, until the page shows the first one. */
  awaitList() {
    this.listNote.textContent = "";
  }

  /** Marks the open conversation. @param {string | null} id */
  markCurrent(id) {
    const before = this.#rowOf(this.#current);
    this.#current = id;
    const row = this.#rowOf(id);
    for (const each of [before, row]) if (each) this.#markRow(each);
    this.#setTabStop(row ?? this.#firstRow);
    if (row) this.#scrollTo(row);
  }

  /** Scrolls the list as far as shows a row: one that was opened by key may be below the view. @param {HTMLElement} row */
  #scrollTo(row) {
    const [view, place] = [this.frame.getBoundingClientRect(), row.getBoundingClientRect()];
    this.frame.scrollTop += Math.max(0, place.bottom - view.bottom) + Math.min(0, place.top - view.top);
  }

  /** Takes a conversation out of the list. The focus goes to its neighbour, unless it is elsewhere. @param {string} id */
  removeRow(id) {
    const rows = this.#rows();
    const at = rows.findIndex((row) => row.dataset.id === id); // may have been rebuilt or removed meanwhile
    const row = rows[at];
    if (!row) return;
    if (document.activeElement === document.body || row.contains(document.activeElement)) {
      linkOf(rows[at + 1] ?? rows[at - 1])?.focus();
    }
    row.remove();
  }

  /** While more is loaded, it is not asked for again. @param {boolean} isLoading */
  setLoadingMore(isLoading) {
    this.#isLoadingMore = isLoading;
    this.more.disabled = isLoading;
  }

  /** @override @param {Record<string, (detail: any) => unknown>} handlers */
  handle(handlers) {
    super.handle(handlers);
    for (const event of Object.keys(handlers)) this.#handled.add(event);
  }

  #wantMore() {
    if (this.#hasMore && !this.#isLoadingMore) this.emit("more");
  }

  /** @param {Partial<Filter>} change */
  #choose(change) {
    this.#filter = { ...this.#filter, ...change };
    this.#drawFilter();
    this.emit("search", { ...this.#filter });
    if (this.#filtersItself) this.#showValue();
  }

  get #filtersItself() {
    return this.props.filter !== "listener";
  }

  #drawFilter() {
    this.parts.archived?.setAttribute("aria-pressed", String(this.#filter.archived));
    this.folderBar.show(this.#folders, this.#filter.folder ?? null);
    for (const chip of this.tags.children) chip.setAttribute("aria-pressed", String(tagOf(chip) === this.#filter.tag));
  }

  /** Reuses existing chips, so that a click or the focus on them is not lost. */
  #drawTags() {
    const there = new Map([...this.tags.children].map((chip) => [tagOf(chip), chip]));
    replaceChildren(this.tags, this.#tags.map((tag) => there.get(tag) ?? this.#chip(tag)));
    this.#drawFilter();
    this.tags.hidden = this.#tags.length === 0 || !(this.props.parts ?? []).includes("tags");
  }

  /** @param {string} tag */
  #chip(tag) {
    const choose = () => this.#choose({ tag: tag === this.#filter.tag ? null : tag });
    return make("button", { type: "button", class: "dm-chip", "data-tag": tag, onclick: choose }, `#${tag}`);
  }

  /** @returns {import("./redraws.js").Interaction} */
  #interaction() {
    const held = this.list.querySelector('[aria-expanded="true"]');
    return {
      isEditing: this.list.querySelector("input:not(.dm-row-check)") !== null,
      isPressing: this.list.querySelector(":active") !== null,
      heldId: closestRow(held)?.dataset.id ?? null,
    };
  }

  /** A released pointer has still to click: what it presses must stay until then. */
  #releaseSoon() {
    if (!this.redraws.isPending) return;
    setTimeout(() => {
      this.redraws.release();
      if (this.#interaction().isPressing) this.#releaseSoon();
    }, CLICK_DELAY_MS);
  }

  /**
   * Draws the rows, but leaves that of `heldId` as it is. Returns whether there was such a row.
   * @param {List} list
   * @param {string | null} heldId
   */
  #draw({ items, hasMore }, heldId) {
    const listed = this.#filtersItself ? items.filter((item) => isListed(item, this.#filter)) : items;
    const held = this.#rowOf(heldId);
    this.#hasMore = hasMore;
    this.more.hidden = !hasMore;
    this.atEnd.unobserve(this.more); // re-observing reports again if it is still in view
    this.atEnd.observe(this.more);
    const before = this.#rendered;
    this.#rendered = new Map();
    let isHeld = false;
    const elements = linesOf(listed, { grouped: this.#filter.query === "" }).map((line) => {
      if ("summary" in line && held && line.summary.id === heldId) {
        isHeld = true;
        return held;
      }
      const element = before.get(line.key) ?? ("heading" in line ? heading(line.heading) : this.#row(line.summary));
      this.#rendered.set(line.key, element);
      return element;
    });
    this.#replace(elements);
    if (this.selection.isOn) this.selection.refresh();
    this.listNote.textContent = listed.length > 0 ? "" : this.#emptyMessage();
    return isHeld;
  }

  /** Replaces the rows; the focus stays at its conversation. @param {HTMLElement[]} elements */
  #replace(elements) {
    const active = document.activeElement;
    const focused = active instanceof HTMLElement && this.list.contains(active) ? active : null;
    const focusedId = closestRow(focused)?.dataset.id ?? null;
    replaceChildren(this.list, elements);
    const again = focused && this.#rowOf(focusedId);
    if (!again) this.#setTabStop(this.#rowOf(this.#current) ?? this.#firstRow);
    else if (!focused.isConnected) (focused.matches(".dm-row-link") ? linkOf(again) : moreOf(again))?.focus();
    else if (focused !== document.activeElement) focused.focus(); // moving an element in the DOM drops its focus
  }

  /** @param {Summary} summary */
  #row(summary) {
    const { id } = summary;
    const row = conversationRow(summary, {
      offers: (name) => (this.props.actions ?? []).includes(name),
      open: () => {
        this.markCurrent(id);
        this.emit("select", { id, message_id: summary.message_id ?? null });
      },
      rename: (one) => this.#rename(one, summary),
      tag: () => this.#editTags(summary),
      pin: () => this.emit("pin", { id, pinned: !summary.pinned }),
      move: () => this.#move([id], `“${summary.title}”`, summary.folder_id ?? null),
      archive: () => this.emit("archive", { id, archived: !summary.archived }),
      summarise: () => this.emit("summarise", { id, title: summary.title }),
      article: () => this.emit("article", { id, title: summary.title }),
      export: (format) => this.emit("export", { id, format }),
      remove: () => this.#delete(summary),
      menuClosed: () => this.redraws.release(),
    });
    this.#markRow(row);
    return row;
  }

  #emptyMessage() {
    if (this.#filter.query) return "Nothing found.";
    if (this.#filter.archived) return "No archived conversations.";
    if (this.#filter.folder) return "Nothing is in this folder yet. Move conversations here by their menus, or drag them.";
    return this.props.empty ?? "";
  }

  /** @returns {HTMLElement[]} */
  #rows() {
    return [...this.list.querySelectorAll(".dm-row")].filter((row) => row instanceof HTMLElement);
  }

  /** @returns {HTMLElement | null} */
  get #firstRow() {
    return this.list.querySelector(".dm-row");
  }

  /** Roving tabindex: Tab stops at one row of the list only. @param {HTMLElement | null} stop */
  #setTabStop(stop) {
    if (this.#tabStop && this.#tabStop !== stop) for (const control of controlsOf(this.#tabStop)) control.tabIndex = -1;
    this.#tabStop = stop;
    if (stop) for (const control of controlsOf(stop)) control.tabIndex = 0;
  }

  /** @param {string | null} id @returns {HTMLElement | null} */
  #rowOf(id) {
    return id === null ? null : this.list.querySelector(`.dm-row[data-id="${CSS.escape(id)}"]`);
  }

  /** @param {HTMLElement} row */
  #markRow(row) {
    if (row.dataset.id === this.#current) linkOf(row)?.setAttribute("aria-current", "page");
    else linkOf(row)?.removeAttribute("aria-current");
  }

  /** @param {Summary} summary */
  async #editTags({ id, title, tags = [] }) {
    const changed = await askTags(title, tags, this.#tags);
    if (changed !== null) this.emit("tag", { id, tags: changed });
  }

  /**
   * Edits the title in its row.
   * @param {HTMLElement} row
   * @param {Summary} summary
   */
  #rename(row, summary) {
    const input = /** @type {HTMLInputElement} */ (make("input", { class: "dm-input", "aria-label": "New title", maxlength: "200" }));
    input.value = summary.title;
    const before = [...row.childNodes];
    row.replaceChildren(input);
    input.select();
    input.focus();
    let closed = false;
    /** @param {boolean} save */
    const close = (save) => {
      if (closed) return;
      closed = true;
      const title = input.value.trim();
      const byKey = document.activeElement === input; // closed by a key, not by the focus moving elsewhere
      row.replaceChildren(...before);
      if (byKey) linkOf(row)?.focus();
      if (save && title !== "" && title !== summary.title) this.emit("rename", { id: summary.id, title });
      this.redraws.release();
    };
    input.addEventListener("keydown", (event) => {
      if (event.isComposing) return;
      if (event.key === "Enter") close(true);
      else if (event.key === "Escape") close(false);
      else return;
      event.preventDefault();
      event.stopPropagation();
    });
    input.addEventListener("blur", () => close(true));
  }

  /** @param {Summary} summary */
  async #delete({ id, title }) {
    if (await confirmDeletion(`“${title}” and all its messages will be deleted.`)) this.emit("delete", { id });
  }

  /** @param {string[]} ids @param {string} what @param {string | null} current */
  async #move(ids, what, current) {
    const folder = await askFolder(what, this.#folders, current);
    if (folder !== undefined) this.emit("move", { ids, folder });
  }

  /** @param {import("./selection.js").Action} action @param {string[]} ids @param {HTMLElement} button  that was pressed */
  async #changeMany(action, ids, button) {
    const what = plural(ids.length, "conversation");
    if (action === "move") return this.#move(ids, what, this.#filter.folder ?? null);
    if (action === "archive") return this.emit("change_many", { ids, archived: !this.#filter.archived });
    if (action === "export") {
      return openMenu(button, "Export the selected", [
        { name: "JSON, with all versions", iconName: "export", action: () => this.emit("export_many", { ids, format: "json" }) },
        { name: "Markdown, one file each", iconName: "export", action: () => this.emit("export_many", { ids, format: "markdown" }) },
      ]);
    }
    if (action === "tag") {
      const tags = await askTags(what, [], this.#tags);
      return tags?.length ? this.emit("change_many", { ids, tags }) : undefined;
    }
    const isSure = await confirmDeletion(`${what} and all their messages will be deleted.`, "Delete what is selected?");
    return isSure ? this.emit("delete_many", { ids }) : undefined;
  }

  /** A dragged row moves to the folder that it is dropped on, with the selected ones if it is one of them. @param {DragEvent} event */
  #drag(event) {
    const id = closestRow(event.target)?.dataset.id;
    if (id === undefined || this.parts.folders?.hidden) return;
    const { ids } = this.selection;
    event.dataTransfer?.setData(DRAGGED, (ids.includes(id) ? ids : [id]).join(" "));
  }

  async #upload() {
    const file = this.picker.files?.[0];
    if (!file) return;
    this.picker.value = ""; // so that the same file can be chosen again
    if (this.#handled.has("upload")) this.emit("upload", { file });
    else this.emit("upload", { name: file.name, text: await file.text() });
  }

  /** Arrow keys move between the titles. @param {KeyboardEvent} event */
  #moveFocus(event) {
    if (event.key !== "ArrowDown" && event.key !== "ArrowUp") return;
    const row = closestRow(event.target);
    if (!row || event.target !== linkOf(row)) return;
    const rows = this.#rows();
    linkOf(rows[rows.indexOf(row) + (event.key === "ArrowDown" ? 1 : -1)])?.focus();
    event.preventDefault();
  }
}

/** @param {string} name */
const heading = (name) => make("li", { class: "dm-group" }, make("h2", {}, name));

/** @param {Element} chip */
const tagOf = (chip) => (chip instanceof HTMLElement ? chip.dataset.tag : undefined);

/** @param {EventTarget | null} target @returns {HTMLElement | null} */
const closestRow = (target) => (target instanceof Element ? target.closest(".dm-row") : null);

/** @param {HTMLElement | undefined} row @returns {HTMLElement | null | undefined} */
const linkOf = (row) => row?.querySelector(".dm-row-link");

/** @param {HTMLElement} row @returns {HTMLElement | null} */
const moreOf = (row) => row.querySelector(".dm-row-more");

/** @param {HTMLElement} row */
const controlsOf = (row) => /** @type {NodeListOf<HTMLElement>} */ (row.querySelectorAll("a, button, input"));

/** @param {import("../../shared/component.js").Context} context */
export const mount = (context) => new Conversations(context);
