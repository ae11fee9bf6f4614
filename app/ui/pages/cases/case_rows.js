// The rows of the list: the pages that were loaded, kept in order while cases change.

import { isOfView } from "./views.js";

/** @import { CaseRow, CaseView } from "./types.js" */

/** The order of the list: latest change first. @param {CaseRow} a @param {CaseRow} b */
export function byLatest(a, b) {
  if (a.updated_at !== b.updated_at) return a.updated_at < b.updated_at ? 1 : -1;
  return a.id === b.id ? 0 : a.id < b.id ? 1 : -1;
}

/** Whether a row is older than another of the same case: answers and events come in any order. @param {CaseRow} row @param {CaseRow} than */
export const isOlder = (row, than) => row.revision < than.revision;

/** Whether a list has a case, but for what a search finds. @param {Filter} filter @param {CaseRow} row @param {string} me  id of the user */
export const belongs = ({ view, inbox, tag }, row, me) => isOfView(view, row, me) && (inbox === null || row.inbox_id === inbox) && (tag === null || row.tags.includes(tag));

/**
 * What the list shows: a view, perhaps of one inbox or tag, perhaps what a search finds.
 * @typedef {{view: CaseView, inbox: string | null, tag: string | null, q: string}} Filter
 */

export class CaseRows {
  /** @type {CaseRow[]} in order */
  rows = [];
  /** @type {string | null} where the next page begins; null: there is none */
  next = null;
  /** @type {Map<string, number>} by id: where a case stood that has left the view since */
  #left = new Map();

  /** @param {Filter} filter @param {string} me  id of the user */
  constructor(filter, me) {
    this.filter = filter;
    this.me = me;
  }

  /** Adds a page below the others. A case that has moved up meanwhile is there already. @param {CaseRow[]} page @param {string | null} next */
  append(page, next) {
    for (const row of page) {
      const at = this.#indexOf(row.id);
      if (at < 0) this.rows.push(row);
      else if (!isOlder(row, this.rows[at])) this.rows[at] = row;
    }
    this.#sort();
    this.next = next;
  }

  /** Shows these pages in place of all. @param {CaseRow[]} rows @param {string | null} next */
  replace(rows, next) {
    this.rows = [...rows];
    this.#sort();
    this.next = next;
    this.#left.clear();
  }

  /**
   * A case has changed. Returns whether the rows have. What a search finds is known to the server alone: there, a case
   * that is not listed stays so.
   * @param {CaseRow} row
   */
  apply(row) {
    const at = this.#indexOf(row.id);
    const there = this.rows[at];
    if (there && isOlder(row, there)) return false;
    const fits = belongs(this.filter, row, this.me);
    if (there && !fits) {
      this.rows.splice(at, 1);
      this.#left.set(row.id, at);
      return true;
    }
    if (!fits) return false;
    if (there) this.rows[at] = row;
    else {
      const last = this.rows.at(-1);
      const isFurtherDown = this.next !== null && last !== undefined && byLatest(row, last) > 0;
      if (this.filter.q !== "" || isFurtherDown) return false;
      this.rows.push(row);
      this.#left.delete(row.id);
    }
    this.#sort();
    return true;
  }

  /** @param {string} id */
  find(id) {
    return this.rows[this.#indexOf(id)] ?? null;
  }

  /**
   * The case below (1) or above (-1) another one; of one that has left the view, that which took its place; of none, the
   * first. Null at the ends.
   * @param {string | null} id
   * @param {1 | -1} by
   */
  neighbour(id, by) {
    if (id === null) return this.rows[0] ?? null;
    const at = this.#indexOf(id);
    if (at >= 0) return this.rows[at + by] ?? null;
    const was = this.#left.get(id);
    if (was === undefined) return this.rows[0] ?? null;
    return this.rows[by === 1 ? was : was - 1] ?? this.rows.at(-1) ?? null;
  }

  /** @param {string} id */
  #indexOf(id) {
    return this.rows.findIndex((row) => row.id === id);
  }

  #sort() {
    // Of a search, the server's order is that of what fits best.
    if (this.filter.q === "") this.rows.sort(byLatest);
  }
}
