// What the conversation list shows: which conversations, and under which headings.

import { dateGroup } from "./date_groups.js";

/**
 * A row of the list; see summaries.py.
 * @typedef {object} Summary
 * @property {string} id
 * @property {string} title
 * @property {string | null} [updated_at]
 * @property {boolean} [pinned]
 * @property {boolean} [archived]
 * @property {boolean} [unread]
 * @property {boolean} [streaming]
 * @property {string[]} [tags]
 * @property {string | null} [folder_id]
 * @property {string | null} [folder]
 * @property {{text: string, hit: boolean}[]} [snippet]
 * @property {string | null} [message_id]
 * @property {string | null} [url]
 */

/** @typedef {{query: string, tag: string | null, archived: boolean, folder?: string | null}} Filter  which conversations are listed */

/** @type {Readonly<Filter>} */
export const NO_FILTER = Object.freeze({ query: "", tag: null, archived: false });

/**
 * Whether a conversation is listed. Every word of the query has to be in the title or in a tag.
 * @param {Summary} summary
 * @param {Filter} filter
 */
export function isListed({ title, tags = [], archived = false }, filter) {
  const text = [title, ...tags].join("\n").toLowerCase();
  const words = filter.query.toLowerCase().split(/\s+/);
  return archived === filter.archived && (filter.tag === null || tags.includes(filter.tag)) && words.every((word) => text.includes(word));
}

/** The tags of these conversations, sorted. @param {Summary[]} items */
export const tagsOf = (items) => [...new Set(items.flatMap(({ tags = [] }) => tags))].sort();

/**
 * @typedef {{key: string, heading: string} | {key: string, summary: Summary}} Line  what the list shows in a line;
 *   lines with the same key look the same
 */

/**
 * The lines of the list: rows, under headings if `grouped`, the pinned first.
 * @param {Summary[]} items
 * @returns {Line[]}
 */
export function linesOf(items, { grouped = true, now = new Date() } = {}) {
  /** @type {Line[]} */
  const lines = [];
  /** @type {Map<string, number>} how often a heading occurs: more than once where the items are in another order */
  const headings = new Map();
  /** @type {string | null} */
  let group = null;
  const ordered = grouped ? [...items.filter(({ pinned }) => pinned), ...items.filter(({ pinned }) => !pinned)] : items;
  for (const summary of ordered) {
    const next = grouped ? dateGroup(summary, now) : null;
    if (next !== group && next !== null) {
      const count = (headings.get(next) ?? 0) + 1;
      headings.set(next, count);
      lines.push({ key: `${next} ${count}`, heading: next });
    }
    group = next;
    lines.push({ key: JSON.stringify(summary), summary });
  }
  return lines;
}
