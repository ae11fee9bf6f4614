// The list of conversations: open, rename, delete, search.

import { api } from "./api.js";
import { byId, debounce, icon, make } from "./dom.js";

const PAGE_SIZE = 50;
const MOST_ROWS = 200; // that one answer of the server brings
const RECHECK_MS = 4000;

const snippetPart = ({ text, hit }) => (hit ? make("mark", {}, text) : text);

export class Conversations {
  #query = "";
  #cursor = null;
  #current = null;
  #asked = 0; // only the newest answer is shown

  constructor(actions) {
    this.actions = actions; // open, renamed, deleted, failed, listFailed
    this.list = byId("dm-list");
    this.note = byId("dm-list-note");
    this.more = byId("dm-list-more");
    this.more.addEventListener("click", () => this.#load(this.#cursor));
    this.list.addEventListener("keydown", (event) => this.#moveFocus(event));
    this.list.addEventListener("focusin", (event) => this.#stopAt(event.target.closest("li")));
    this.search = debounce(200, (query) => {
      this.#query = query.trim();
      this.refresh();
    });
  }

  refresh() {
    return this.#load(null);
  }

  // Marks the open conversation.
  mark(id) {
    this.#current = id;
    for (const row of this.list.children) this.#markRow(row);
    this.#stopAt(this.#rowOf(id) ?? this.list.firstElementChild);
  }

  async #load(cursor) {
    const asked = ++this.#asked;
    let page;
    try {
      // What was shown by "Show more" stays shown when the list is read again.
      const shown = Math.min(Math.max(PAGE_SIZE, this.list.children.length), MOST_ROWS);
      page = await api.listConversations({ limit: cursor ? PAGE_SIZE : shown, cursor, query: this.#query || null });
    } catch (error) {
      this.actions.listFailed(error);
      return;
    }
    if (asked !== this.#asked || this.list.querySelector("input")) return; // outdated, or a title is being edited
    const rows = page.items.map((summary) => this.#row(summary));
    if (cursor) this.list.append(...rows);
    else this.#replaceRows(rows);
    this.#cursor = page.next_cursor;
    this.more.hidden = this.#cursor === null;
    const empty = this.list.children.length === 0;
    this.#watchReplies(page.items);
    this.note.textContent = !empty ? "" : this.#query ? "Nothing found." : "No conversations yet.";
  }

  // Of replies that no open tab follows, only the list tells when they have ended.
  #watchReplies(items) {
    clearTimeout(this.timer);
    if (!items.some((item) => item.streaming)) return;
    this.timer = setTimeout(() => {
      if (document.visibilityState === "visible") this.refresh();
    }, RECHECK_MS);
  }

  #replaceRows(rows) {
    const focused = this.list.contains(document.activeElement) ? document.activeElement.closest("li").dataset.id : null;
    this.list.replaceChildren(...rows);
    if (focused) this.#rowOf(focused)?.querySelector("a").focus();
    else this.#stopAt(this.#rowOf(this.#current) ?? this.list.firstElementChild);
  }

  // However long the list is, Tab stops at one row of it.
  #stopAt(stop) {
    for (const row of this.list.children) {
      for (const control of row.querySelectorAll("a, button")) control.tabIndex = row === stop ? 0 : -1;
    }
  }

  #rowOf(id) {
    return [...this.list.children].find((row) => row.dataset.id === id);
  }

  #row(summary) {
    const link = make(
      "a",
      { href: `/?c=${encodeURIComponent(summary.id)}`, class: "dm-row-link", title: summary.title, tabindex: "-1" },
      make("span", { class: "dm-row-title" }, summary.title),
      summary.streaming ? make("span", { class: "dm-row-live", role: "img", "aria-label": "Replying" }) : null,
      summary.snippet.length ? make("span", { class: "dm-row-snippet" }, ...summary.snippet.map(snippetPart)) : null,
    );
    link.addEventListener("click", (event) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey || event.altKey || event.button !== 0) return;
      event.preventDefault();
      this.actions.open(summary.id);
    });
    const button = (name, label, action) =>
      make(
        "button",
        { type: "button", class: "dm-icon-button", tabindex: "-1", "aria-label": label, title: name, onclick: action },
        icon(name.toLowerCase()),
      );
    const row = make("li", { class: "dm-row", "data-id": summary.id }, link);
    row.append(
      make(
        "span",
        { class: "dm-row-actions" },
        button("Rename", `Rename ${summary.title}`, () => this.#rename(row, summary)),
        button("Delete", `Delete ${summary.title}`, () => this.#delete(row, summary)),
      ),
    );
    this.#markRow(row);
    return row;
  }

  #markRow(row) {
    const link = row.querySelector("a");
    if (row.dataset.id === this.#current) link?.setAttribute("aria-current", "page");
    else link?.removeAttribute("aria-current");
  }

  #rename(row, summary) {
    const input = make("input", { class: "dm-row-input", "aria-label": "New title", maxlength: "200" });
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
      row.replaceChildren(...before);
      row.querySelector("a").focus();
      if (!save || title === "" || title === summary.title) return;
      try {
        await api.renameConversation(summary.id, title);
        this.actions.renamed(summary.id, title);
      } catch (error) {
        this.actions.failed(error);
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

  async #delete(row, summary) {
    if (!(await confirmDeletion(summary.title))) return;
    const next = row.nextElementSibling ?? row.previousElementSibling;
    try {
      await api.deleteConversation(summary.id);
    } catch (error) {
      if (error.status !== 404) {
        this.actions.failed(error);
        return;
      }
    }
    next?.querySelector("a").focus();
    row.remove();
    this.actions.deleted(summary.id);
    await this.refresh();
  }

  // Up and down move along the titles.
  #moveFocus(event) {
    if (event.key !== "ArrowDown" && event.key !== "ArrowUp") return;
    if (!event.target.classList.contains("dm-row-link")) return;
    const row = event.target.closest("li");
    const next = event.key === "ArrowDown" ? row.nextElementSibling : row.previousElementSibling;
    next?.querySelector("a").focus();
    event.preventDefault();
  }
}

function confirmDeletion(title) {
  const cancel = make("button", { type: "submit", value: "no" }, "Cancel");
  const remove = make("button", { type: "submit", value: "yes", class: "dm-danger" }, "Delete");
  const dialog = make(
    "dialog",
    { class: "dm-dialog", "aria-labelledby": "dm-dialog-title" },
    make(
      "form",
      { method: "dialog" },
      make("h2", { id: "dm-dialog-title" }, "Delete this conversation?"),
      make("p", {}, `“${title}” and all its messages will be deleted for good.`),
      make("div", { class: "dm-buttons" }, cancel, remove),
    ),
  );
  document.body.append(dialog);
  dialog.addEventListener("keydown", (event) => event.stopPropagation()); // Esc closes it and stops no reply
  dialog.showModal();
  cancel.focus();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue === "yes");
    });
  });
}
