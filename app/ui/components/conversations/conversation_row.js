// One row of the conversation list: a link, and a menu of actions.

import { icon, make } from "../../shared/dom.js";
import { openMenu } from "../../shared/menu.js";

/** @typedef {import("./listing.js").Summary} Summary */

/**
 * What a row calls.
 * @typedef {object} RowActions
 * @property {(name: string) => boolean} offers  whether an action is in the menu
 * @property {() => void} open
 * @property {(row: HTMLElement) => void} rename
 * @property {() => void} tag
 * @property {() => void} pin
 * @property {() => void} archive
 * @property {() => void} move
 * @property {() => void} summarise
 * @property {() => void} article
 * @property {(format: string) => void} export
 * @property {() => void} remove
 * @property {() => void} menuClosed
 */

/** @param {{text: string, hit: boolean}} part */
const snippetPart = ({ text, hit }) => (hit ? make("mark", {}, text) : text);

/** The URL, if a click on it opens a page and runs nothing. @param {string | null | undefined} url */
export function pageUrl(url) {
  if (!url || !URL.canParse(url, document.baseURI)) return null;
  return ["http:", "https:"].includes(new URL(url, document.baseURI).protocol) ? url : null;
}

/**
 * @param {Summary} summary
 * @param {RowActions} actions
 */
export function conversationRow(summary, actions) {
  const { id, title, snippet = [], tags = [] } = summary;
  const places = [...(snippet.length && summary.folder ? [`${summary.folder} ·`] : []), ...tags.map((tag) => `#${tag}`)];
  const url = pageUrl(summary.url);
  /** @param {string} name @param {string} label */
  const mark = (name, label) => make("span", { class: `dm-row-mark dm-row-${name}`, role: "img", "aria-label": label });
  const link = make(
    url === null ? "button" : "a",
    { ...(url === null ? { type: "button" } : { href: url }), class: "dm-row-link", title, tabindex: "-1" },
    make("span", { class: "dm-row-title", dir: "auto" }, title),
    summary.streaming ? mark("live", "Replying") : summary.unread ? mark("unread", "Unread") : null,
    snippet.length ? make("span", { class: "dm-row-snippet" }, ...snippet.map(snippetPart)) : null,
    places.length ? make("span", { class: "dm-row-tags" }, places.join(" ")) : null,
  );
  link.addEventListener("click", (/** @type {any} */ event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey || event.altKey || event.button !== 0) return;
    event.preventDefault();
    actions.open();
  });
  const row = make("li", { class: "dm-row", "data-id": id }, link);
  const entries = [
    { of: "pin", name: summary.pinned ? "Unpin" : "Pin", iconName: "pin", action: () => actions.pin() },
    { of: "rename", name: "Rename", iconName: "rename", action: () => actions.rename(row) },
    { of: "tag", name: "Tags", iconName: "tag", action: () => actions.tag() },
    {
      of: "archive",
      name: summary.archived ? "Take out of the archive" : "Archive",
      iconName: "archive",
      action: () => actions.archive(),
    },
    { of: "move", name: "Move to a folder", iconName: "folder", action: () => actions.move() },
    { of: "summarise", name: "Summarise", iconName: "canned", action: () => actions.summarise() },
    { of: "article", name: "Propose an article", iconName: "desk", action: () => actions.article() },
    { of: "export", name: "Save as Markdown", iconName: "export", action: () => actions.export("markdown") },
    { of: "export", name: "Save as JSON", iconName: "export", action: () => actions.export("json") },
    { of: "delete", name: "Delete", iconName: "delete", danger: true, action: () => actions.remove() },
  ].filter(({ of }) => actions.offers(of));
  if (entries.length === 0) return row;
  const more = make(
    "button",
    {
      type: "button",
      class: "dm-icon-button dm-small dm-row-more",
      tabindex: "-1",
      title: "More",
      "aria-label": `Actions for ${title}`,
      "aria-haspopup": "menu",
      "aria-expanded": "false",
    },
    icon("more"),
  );
  more.addEventListener("click", () => openMenu(more, `Actions for ${title}`, entries, actions.menuClosed));
  row.append(make("span", { class: "dm-row-actions" }, more));
  return row;
}
