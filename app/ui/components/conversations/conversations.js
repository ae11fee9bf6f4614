// The conversation list: date groups, tags, archive and search.

import { Component } from "../../shared/component.js";
import { api } from "../../shared/api.js";
import { conversationRow } from "./conversation_row.js";
import { dateGroup } from "./date_groups.js";
import { askTags, confirmDeletion } from "../../shared/dialogs.js";
import { listenForTransfers } from "./transfer.js";
import { byId, debounce, make, replaceChildren } from "../../shared/dom.js";

const PAGE_SIZE = 50;
const POLL_MS = 4000;

export class Conversations extends Component {
  #query = "";
  #tag = null;
  #tags = [];
  #archived = false;
  #items = [];
  #renderedRows = new Map(); // JSON of its summary (or the heading's text) -> the rendered element
  #cursor = null;
  #current = null;
  #lastRequest = 0; // sequence number; responses to older requests are dropped
  #refreshing = null; // the sequence number of the refresh in flight, or null
  #hasDeferredRedraw = false; // a redraw was postponed because a menu is open or a row is being pressed

  constructor(context) {
    super(context);
    this.list = byId("dm-list");
    this.note = byId("dm-list-note");
    this.more = byId("dm-list-more");
    this.tags = byId("dm-tags");
    this.archive = byId("dm-show-archived");
    this.more.addEventListener("click", () => this.#loadMore());
    this.archive.addEventListener("click", () => {
      this.#archived = !this.#archived;
      this.archive.setAttribute("aria-pressed", String(this.#archived));
      this.refresh();
    });
    this.list.addEventListener("keydown", (event) => this.#moveFocus(event));
    for (const released of ["pointerup", "pointercancel", "dragend"]) {
      document.addEventListener(released, () => this.#redrawDeferred());
    }
    this.list.addEventListener("focusin", (event) => this.#setTabStop(event.target.closest(".dm-row")));
    // Infinite scrolling.
    this.atEnd = new IntersectionObserver((entries) => entries.at(-1).isIntersecting && this.#loadMore(), {
      root: byId("dm-list-frame"),
    });
    const search = debounce(200, (query) => {
      this.#query = query.trim();
      this.refresh();
    });
    byId("dm-search").addEventListener("input", ({ target }) => search(target.value));
    byId("dm-new").addEventListener("click", () => this.emit("new"));
    byId("dm-brand").addEventListener("click", (event) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      this.emit("new");
    });
    listenForTransfers({
      onStatus: (text) => this.emit("status", { text }),
      onError: (error) => this.emit("error", error),
      onImported: () => this.refresh(),
    });
  }

  // Reloads the list, with at least as many items as are shown.
  async refresh() {
    const request = ++this.#lastRequest;
    this.#refreshing = request;
    const items = [];
    let cursor = null;
    try {
      do {
        const page = await this.#page(cursor);
        items.push(...page.items);
        cursor = page.next_cursor;
      } while (cursor !== null && items.length < this.#items.length);
      if (request !== this.#lastRequest) return;
      await this.#readTags(request);
    } catch (error) {
      this.emit("list_failed", error);
      return;
    } finally {
      if (this.#refreshing === request) this.#refreshing = null;
    }
    if (request !== this.#lastRequest) return;
    this.#show(items, cursor);
  }

  // Calls `listed` again with the current items.
  notifyListed() {
    this.emit("listed", { items: this.#items });
  }

  // Marks the open conversation.
  markCurrent(id) {
    this.#current = id;
    for (const row of this.#rows()) this.#markRow(row);
    this.#setTabStop(this.#rowOf(id) ?? this.#rows()[0]);
  }

  #page(cursor) {
    return api.listConversations({
      limit: PAGE_SIZE,
      cursor,
      query: this.#query || null,
      tag: this.#tag,
      archived: this.#archived || null,
    });
  }

  async #loadMore() {
    // Skipped during a refresh: its result replaces the items that this would append to.
    if (this.#cursor === null || this.more.disabled || this.#refreshing !== null) return;
    const request = this.#lastRequest;
    this.more.disabled = true;
    try {
      const page = await this.#page(this.#cursor);
      if (request === this.#lastRequest) this.#show([...this.#items, ...page.items], page.next_cursor);
    } catch (error) {
      this.emit("list_failed", error);
    } finally {
      this.more.disabled = false;
    }
  }

  async #readTags(request) {
    const counted = await api.listTags();
    if (request !== this.#lastRequest) return;
    this.#tags = Object.keys(counted);
    if (this.#tag !== null && !(this.#tag in counted)) {
      this.#tag = null; // no conversation has this tag any more
      this.refresh();
    }
    this.#drawTags();
  }

  // Reuses existing chips, so that a click or the focus on them is not lost.
  #drawTags() {
    const there = new Map([...this.tags.children].map((chip) => [chip.dataset.tag, chip]));
    replaceChildren(this.tags, this.#tags.map((tag) => there.get(tag) ?? this.#chip(tag)));
    for (const chip of this.tags.children) chip.setAttribute("aria-pressed", String(chip.dataset.tag === this.#tag));
    this.tags.hidden = this.#tags.length === 0;
  }

  #chip(tag) {
    const choose = () => {
      this.#tag = tag === this.#tag ? null : tag;
      this.refresh();
    };
    return make("button", { type: "button", class: "dm-chip", "data-tag": tag, onclick: choose }, `#${tag}`);
  }

  #show(items, cursor) {
    if (this.list.querySelector("input")) return; // a title is being edited; closing the editor refreshes
    if (this.list.querySelector(":active")) {
      this.#hasDeferredRedraw = true; // removing a pressed element would swallow its click
      return;
    }
    this.#items = items;
    this.#cursor = cursor;
    this.more.hidden = cursor === null;
    this.atEnd.unobserve(this.more); // re-observing reports again if it is still in view
    this.atEnd.observe(this.more);
    const focused = this.list.contains(document.activeElement) ? document.activeElement : null;
    const focusedId = focused?.closest(".dm-row").dataset.id;
    replaceChildren(this.list, this.#renderRows(items));
    const again = focused && this.#rowOf(focusedId);
    if (!again) this.#setTabStop(this.#rowOf(this.#current) ?? this.#rows()[0]);
    else if (!focused.isConnected) again.querySelector(focused.matches("a") ? "a" : ".dm-row-more").focus();
    else if (focused !== document.activeElement) focused.focus(); // moving an element in the DOM drops its focus
    this.note.textContent = items.length > 0 ? "" : this.#emptyMessage();
    this.#pollWhileStreaming(items);
    this.emit("listed", { items });
  }

  // The rows, under date headings except in search results. Rows whose content is unchanged are reused.
  #renderRows(items) {
    const before = this.#renderedRows;
    const held = this.list.querySelector('[aria-expanded="true"]')?.closest(".dm-row");
    this.#renderedRows = new Map();
    const once = (key, draw) => {
      this.#renderedRows.set(key, before.get(key) ?? draw());
      return this.#renderedRows.get(key);
    };
    const rows = [];
    let group = null;
    for (const summary of items) {
      const next = this.#query ? null : dateGroup(summary);
      if (next !== group && next !== null) rows.push(once(next, () => make("li", { class: "dm-group" }, make("h2", {}, next))));
      group = next;
      if (summary.id === held?.dataset.id) {
        rows.push(held);
        this.#hasDeferredRedraw = true;
      } else rows.push(once(JSON.stringify(summary), () => this.#row(summary)));
    }
    return rows;
  }

  #redrawDeferred() {
    if (this.#hasDeferredRedraw) this.refresh();
    this.#hasDeferredRedraw = false;
  }

  #row(summary) {
    const row = conversationRow(summary, {
      open: (id, messageId) => this.emit("select", { id, messageId }),
      rename: (one) => this.#rename(one, summary),
      tag: () => this.#editTags(summary),
      mark: (marks) => this.#change(summary, marks),
      remove: () => this.#delete(summary),
      menuClosed: () => this.#redrawDeferred(),
    });
    this.#markRow(row);
    return row;
  }

  #emptyMessage() {
    if (this.#query) return "Nothing found.";
    if (this.#archived) return "No archived conversations.";
    return "No conversations yet.";
  }

  // Polls while a reply is in flight: for replies that no open tab follows, only the list shows when they end.
  #pollWhileStreaming(items) {
    clearTimeout(this.timer);
    if (!items.some((item) => item.streaming)) return;
    this.timer = setTimeout(() => {
      if (document.visibilityState === "visible") this.refresh();
    }, POLL_MS);
  }

  #rows() {
    return [...this.list.querySelectorAll(".dm-row")];
  }

  // Roving tabindex: Tab stops at one row of the list only.
  #setTabStop(stop) {
    for (const row of this.#rows()) {
      for (const control of row.querySelectorAll("a, button")) control.tabIndex = row === stop ? 0 : -1;
    }
  }

  #rowOf(id) {
    return this.#rows().find((row) => row.dataset.id === id);
  }

  #markRow(row) {
    const link = row.querySelector("a");
    if (row.dataset.id === this.#current) link?.setAttribute("aria-current", "page");
    else link?.removeAttribute("aria-current");
  }

  async #change(summary, change) {
    try {
      await api.changeConversation(summary.id, change);
    } catch (error) {
      this.emit("error", error);
    }
    await this.refresh();
  }

  async #editTags(summary) {
    const tags = await askTags(summary.title, summary.tags, this.#tags);
    if (tags !== null) await this.#change(summary, { tags });
  }

  #rename(row, summary) {
    const input = make("input", { class: "dm-input dm-row-input", "aria-label": "New title", maxlength: "200" });
    input.value = summary.title;
    const before = [...row.childNodes];
    row.replaceChildren(input);
    input.select();
    input.focus();
    let closed = false;
    const close = async (save) => {
      if (closed) return;
      closed = true;
      const title = input.value.trim();
      const byKey = document.activeElement === input; // closed by a key, not by the focus moving elsewhere
      row.replaceChildren(...before);
      if (byKey) row.querySelector("a").focus();
      try {
        if (save && title !== "" && title !== summary.title) {
          await api.changeConversation(summary.id, { title });
          this.emit("renamed", { id: summary.id, title });
        }
      } catch (error) {
        this.emit("error", error);
      }
      await this.refresh();
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

  async #delete(summary) {
    if (!(await confirmDeletion(summary.title))) return;
    try {
      await api.deleteConversation(summary.id);
    } catch (error) {
      if (error.status !== 404) {
        this.emit("error", error);
        return;
      }
    }
    const rows = this.#rows();
    const at = rows.findIndex((one) => one.dataset.id === summary.id); // may have been rebuilt or removed meanwhile
    if (at >= 0 && (document.activeElement === document.body || rows[at].contains(document.activeElement))) {
      (rows[at + 1] ?? rows[at - 1])?.querySelector("a")?.focus();
    }
    rows[at]?.remove();
    this.emit("deleted", { id: summary.id });
    await this.refresh();
  }

  // Arrow keys move between the titles.
  #moveFocus(event) {
    if (event.key !== "ArrowDown" && event.key !== "ArrowUp") return;
    if (!event.target.classList.contains("dm-row-link")) return;
    const rows = this.#rows();
    const at = rows.indexOf(event.target.closest(".dm-row"));
    rows[at + (event.key === "ArrowDown" ? 1 : -1)]?.querySelector("a").focus();
    event.preventDefault();
  }
}

export const mount = (context) => new Conversations(context);
