// The palette: one field that finds conversations, messages, commands, settings, prompts and canned replies.

import { showDialog } from "../../shared/dialog.js";
import { debounce, icon, make } from "../../shared/dom.js";

/**
 * Something that can be chosen.
 * @typedef {object} Entry
 * @property {string} key  identifies it in its group
 * @property {string} title
 * @property {string} [hint]  beside the title
 * @property {(Node | string)[]} [detail]  below it
 * @property {string} [words]  more words that find it
 * @property {() => unknown} run
 */

/** @typedef {{name: string, entries: Entry[]}} Group */

/**
 * What the palette finds.
 * @typedef {object} PaletteSources
 * @property {(query: string) => Group[]} here  at once, from what the page knows
 * @property {(query: string) => Promise<Group[]>} search  on the server; only called with a query
 * @property {() => Promise<void>} load  what `here` finds from then on
 * @property {(error: unknown) => string} explain
 */

const SEARCH_DELAY_MS = 150;

/** Whether every word of the query is in the entry. @param {Entry} entry @param {string} query */
export function matches({ title, hint = "", words = "" }, query) {
  const text = `${title} ${hint} ${words}`.toLowerCase();
  return query.toLowerCase().split(/\s+/).every((word) => text.includes(word));
}

export class Palette {
  /** @type {HTMLDialogElement | null} */
  #dialog = null;

  /** @param {PaletteSources} sources */
  constructor(sources) {
    this.sources = sources;
  }

  open() {
    if (this.#dialog !== null) return;
    const input = /** @type {HTMLInputElement} */ (
      make("input", {
        type: "text",
        class: "dm-input",
        role: "combobox",
        "aria-label": "Find anything",
        "aria-expanded": "true",
        "aria-controls": "dm-palette-list",
        "aria-autocomplete": "list",
        autocomplete: "off",
        spellcheck: "false",
        maxlength: "200",
        placeholder: "Find chats, messages, commands, settings …",
      })
    );
    const list = make("div", { id: "dm-palette-list", class: "dm-palette-list", role: "listbox", "aria-label": "Found" });
    const note = make("p", { class: "dm-hint dm-palette-note", role: "status" });
    const close = make("button", { type: "button", class: "dm-icon-button", "aria-label": "Close", onclick: () => dialog.close() }, icon("close"));
    const dialog = make("dialog", { class: "dm-dialog dm-palette", "aria-label": "Find anything" }, make("div", { class: "dm-palette-head" }, input, close), list, note);
    this.#dialog = dialog;

    let lastRequest = 0; // answers to older ones are dropped
    let isSearching = false;
    let failure = "";
    /** @type {Group[]} what the server found for the query */
    let found = [];
    /** @type {Entry | null} */
    let chosen = null;
    /** @type {{id: string, entry: Entry}[]} the entries as they are listed */
    let shown = [];
    let active = "";

    /** @param {string} id */
    const mark = (id) => {
      active = id;
      input.setAttribute("aria-activedescendant", id);
      for (const option of list.querySelectorAll("[role=option]")) {
        option.setAttribute("aria-selected", String(option.id === id));
        if (option.id === id) option.scrollIntoView({ block: "nearest" });
      }
    };
    /** @param {Entry} entry */
    const choose = (entry) => {
      chosen = entry;
      dialog.close();
    };
    const draw = () => {
      const query = input.value.trim();
      shown = [];
      const groups = [...this.sources.here(query), ...found].filter(({ entries }) => entries.length > 0);
      list.replaceChildren(
        ...groups.map((group) =>
          make(
            "div",
            { role: "group", "aria-label": group.name },
            make("div", { class: "dm-palette-group", "aria-hidden": "true" }, group.name),
            ...group.entries.map((entry) => {
              const id = `dm-found-${group.name}-${entry.key}`.replaceAll(/\s/g, "-");
              shown.push({ id, entry });
              return make(
                "div",
                { role: "option", class: "dm-option", id, onclick: () => choose(entry), "aria-selected": "false" },
                make("span", { class: "dm-palette-title", dir: "auto" }, entry.title),
                entry.hint ? make("span", { class: "dm-palette-hint" }, entry.hint) : null,
                entry.detail?.length ? make("span", { class: "dm-palette-detail", dir: "auto" }, ...entry.detail) : null,
              );
            }),
          ),
        ),
      );
      if (failure) note.textContent = failure;
      else if (isSearching) note.textContent = shown.length ? "" : "Searching …";
      else note.textContent = shown.length ? "" : "Nothing found. Try fewer or other words.";
      mark(shown.some(({ id }) => id === active) ? active : shown[0]?.id ?? "");
    };
    const search = async () => {
      const query = input.value.trim();
      const request = ++lastRequest;
      try {
        const groups = await this.sources.search(query);
        if (request !== lastRequest) return;
        found = groups;
      } catch (error) {
        if (request !== lastRequest) return;
        failure = this.sources.explain(error);
      }
      isSearching = false;
      draw();
    };
    const searchSoon = debounce(SEARCH_DELAY_MS, search);

    input.addEventListener("input", () => {
      ++lastRequest;
      searchSoon.cancel();
      found = [];
      failure = "";
      active = "";
      isSearching = input.value.trim() !== "";
      if (isSearching) searchSoon();
      draw();
    });
    dialog.addEventListener("keydown", (event) => {
      if (event.key.toLowerCase() === "k" && (event.ctrlKey || event.metaKey)) {
        event.preventDefault();
        dialog.close();
        return;
      }
      if (event.isComposing || event.target !== input) return;
      const at = shown.findIndex(({ id }) => id === active);
      const steps = /** @type {Record<string, number>} */ ({ ArrowDown: 1, ArrowUp: -1, PageDown: 8, PageUp: -8 });
      const step = steps[event.key];
      if (step !== undefined && shown.length) {
        const to = Math.abs(step) === 1 ? (at + step + shown.length) % shown.length : Math.min(Math.max(at + step, 0), shown.length - 1);
        mark(shown[to]?.id ?? "");
      } else if (event.key === "Enter") {
        const entry = shown[at]?.entry;
        if (entry) choose(entry);
      } else return;
      event.preventDefault();
    });
    dialog.addEventListener("click", (event) => {
      if (event.target === dialog) dialog.close(); // a click on the backdrop
    });
    dialog.addEventListener("close", () => {
      searchSoon.cancel();
      ++lastRequest;
      this.#dialog = null;
      chosen?.run();
    });
    draw();
    showDialog(dialog, input);
    this.sources.load().then(() => dialog.open && draw(), () => undefined); // without them, the rest is still found
  }
}
