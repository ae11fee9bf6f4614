// The tags of the cases that the user may read: suggested while a tag is typed, and offered as a filter.

import { byId, make } from "../../shared/dom.js";

/** The id of the list of suggestions, which every field of a tag names. */
export const SUGGESTIONS = "cs-known-tags";

/** Tags in the order of a list. @param {Iterable<string>} tags */
export const inAlphabet = (tags) => [...new Set(tags)].sort((a, b) => a.localeCompare(b) || (a < b ? -1 : 1));

export class KnownTags {
  /** @type {Set<string>} */
  #tags = new Set();

  /** @param {() => unknown} changed  called with each new tag */
  constructor(changed) {
    this.changed = changed;
  }

  get all() {
    return inAlphabet(this.#tags);
  }

  /** Adds tags that were seen. @param {string[]} tags */
  add(tags) {
    const before = this.#tags.size;
    for (const tag of tags) this.#tags.add(tag);
    if (this.#tags.size === before) return;
    byId(SUGGESTIONS).replaceChildren(...this.all.map((tag) => make("option", { value: tag })));
    this.changed();
  }
}
