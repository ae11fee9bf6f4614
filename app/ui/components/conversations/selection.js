// Selecting many conversations of the list: check boxes in the rows, and a bar of what can be done with them.

import { make } from "../../shared/dom.js";

/** The most that are changed at once, as in the API. */
export const MAX_SELECTED = 500;

/** @typedef {"archive" | "tag" | "move" | "export" | "delete"} Action */

/**
 * @typedef {object} SelectionHost
 * @property {() => HTMLElement[]} rows
 * @property {() => boolean} isArchive  the archive is listed
 * @property {(action: Action, ids: string[], button: HTMLElement) => unknown} act
 * @property {(on: boolean) => void} toggled
 */

export class Selection {
  #isOn = false;
  /** @type {Set<string>} */
  #ids = new Set();
  /** @type {string | null} the row that was toggled last; a range begins there */
  #anchor = null;

  /**
   * @param {HTMLElement} bar
   * @param {HTMLElement} list
   * @param {SelectionHost} host
   */
  constructor(bar, list, host) {
    this.bar = bar;
    this.host = host;
    this.count = make("span", { class: "dm-selection-count", role: "status" });
    /** @param {string} name @param {string} label @param {() => unknown} press */
    const button = (name, label, press) => make("button", { type: "button", class: "dm-chip", "aria-label": label, onclick: press }, name);
    /** @param {string} name @param {string} label @param {Action} action */
    const acting = (name, label, action) => {
      const made = button(name, label, () => host.act(action, this.ids, made));
      return made;
    };
    this.archive = acting("Archive", "Archive the selected", "archive");
    const exporting = acting("Export", "Export the selected", "export");
    exporting.setAttribute("aria-haspopup", "menu");
    exporting.setAttribute("aria-expanded", "false");
    const deleting = acting("Delete", "Delete the selected", "delete");
    deleting.classList.add("dm-danger");
    this.actions = [this.archive, acting("Tag", "Tag the selected", "tag"), acting("Move", "Move the selected to a folder", "move"), exporting, deleting];
    bar.append(
      this.count,
      button("All", "Select all that are loaded", () => this.#selectAll()),
      ...this.actions,
      button("Done", "Done selecting", () => this.toggle(false)),
    );
    // Before the row's own listeners: in this mode a press selects.
    list.addEventListener("click", (event) => this.#onClick(event), { capture: true });
    list.addEventListener("keydown", (event) => {
      if (!this.#isOn || event.key !== "Escape" || event.defaultPrevented) return;
      event.preventDefault();
      this.toggle(false);
    });
  }

  get isOn() {
    return this.#isOn;
  }

  get ids() {
    return [...this.#ids];
  }

  /** @param {boolean} on */
  toggle(on = !this.#isOn) {
    this.#isOn = on;
    this.#ids.clear();
    this.#anchor = null;
    this.bar.hidden = !on;
    this.refresh();
    this.host.toggled(on);
  }

  /** The rows were drawn anew: those that are gone are no longer selected. */
  refresh() {
    const rows = this.host.rows();
    const there = new Set(rows.map((row) => row.dataset["id"] ?? ""));
    for (const id of this.#ids) if (!there.has(id)) this.#ids.delete(id);
    for (const row of rows) this.#mark(row);
    this.archive.textContent = this.host.isArchive() ? "Take out" : "Archive";
    this.archive.setAttribute("aria-label", this.host.isArchive() ? "Take out of the archive" : "Archive the selected");
    const size = this.#ids.size;
    this.count.textContent = size === MAX_SELECTED ? `${size} selected, the most at once` : `${size} selected`;
    for (const action of this.actions) action.disabled = size === 0;
  }

  /** @param {HTMLElement} row */
  #mark(row) {
    let check = /** @type {HTMLInputElement | null} */ (row.querySelector(".dm-row-check"));
    if (!this.#isOn) {
      check?.remove();
      row.classList.remove("dm-selecting");
      return;
    }
    if (check === null) {
      const title = row.querySelector(".dm-row-title")?.textContent ?? "";
      check = /** @type {HTMLInputElement} */ (make("input", { type: "checkbox", class: "dm-row-check", "aria-label": `Select ${title}` }));
      check.tabIndex = /** @type {HTMLElement | null} */ (row.querySelector(".dm-row-link"))?.tabIndex ?? -1; // Tab stops at one row
      row.prepend(check);
      row.classList.add("dm-selecting");
    }
    check.checked = this.#ids.has(row.dataset["id"] ?? "");
  }

  /** @param {MouseEvent} event */
  #onClick(event) {
    if (!this.#isOn || !(event.target instanceof Element)) return;
    const row = /** @type {HTMLElement | null} */ (event.target.closest(".dm-row"));
    const id = row?.dataset["id"];
    if (id === undefined || event.target.closest(".dm-row-actions")) return;
    if (!event.target.matches(".dm-row-check")) event.preventDefault(); // the box is set by the browser, and again below
    event.stopPropagation();
    const wanted = !this.#ids.has(id);
    const order = this.host.rows().map((each) => each.dataset["id"] ?? "");
    const from = event.shiftKey && this.#anchor !== null ? order.indexOf(this.#anchor) : -1;
    const to = order.indexOf(id);
    this.#set(from < 0 ? [id] : order.slice(Math.min(from, to), Math.max(from, to) + 1), wanted);
    this.#anchor = id;
    setTimeout(() => this.refresh()); // after the browser has set a check box that was pressed
  }

  #selectAll() {
    this.#set(this.host.rows().map((row) => row.dataset["id"] ?? ""), true);
    this.refresh();
  }

  /** @param {string[]} ids @param {boolean} selected */
  #set(ids, selected) {
    for (const id of ids) {
      if (!selected) this.#ids.delete(id);
      else if (this.#ids.size < MAX_SELECTED) this.#ids.add(id);
    }
  }
}
