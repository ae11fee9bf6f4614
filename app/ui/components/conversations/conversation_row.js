// One row of the conversation list: a link, and a menu of actions.

import { conversationUrl } from "../../shared/address.js";
import { icon, make } from "../../shared/dom.js";
import { openMenu } from "../../shared/menu.js";
import { download } from "./transfer.js";

const snippetPart = ({ text, hit }) => (hit ? make("mark", {}, text) : text);

// `actions`: open(id, messageId), rename(row), tag(), mark(marks), remove(), menuClosed().
export function conversationRow(summary, actions) {
  const { id, title, message_id: messageId } = summary;
  const mark = (name, label) => make("span", { class: `dm-row-mark dm-row-${name}`, role: "img", "aria-label": label });
  const link = make(
    "a",
    { href: conversationUrl(id, messageId), class: "dm-row-link", title, tabindex: "-1" },
    make("span", { class: "dm-row-title", dir: "auto" }, title),
    summary.streaming ? mark("live", "Replying") : summary.unread ? mark("unread", "Unread") : null,
    summary.snippet.length ? make("span", { class: "dm-row-snippet" }, ...summary.snippet.map(snippetPart)) : null,
    summary.tags.length ? make("span", { class: "dm-row-tags" }, summary.tags.map((tag) => `#${tag}`).join(" ")) : null,
  );
  link.addEventListener("click", (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey || event.altKey || event.button !== 0) return;
    event.preventDefault();
    actions.open(id, messageId);
  });
  const row = make("li", { class: "dm-row", "data-id": id }, link);
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
  more.addEventListener("click", () => {
    const entries = [
      {
        name: summary.pinned ? "Unpin" : "Pin",
        iconName: "pin",
        action: () => actions.mark({ pinned: !summary.pinned }),
      },
      { name: "Rename", iconName: "rename", action: () => actions.rename(row) },
      { name: "Tags", iconName: "tag", action: () => actions.tag() },
      {
        name: summary.archived ? "Take out of the archive" : "Archive",
        iconName: "archive",
        action: () => actions.mark({ archived: !summary.archived }),
      },
      { name: "Save as Markdown", iconName: "export", action: () => download(id, "markdown") },
      { name: "Save as JSON", iconName: "export", action: () => download(id, "json") },
      { name: "Delete", iconName: "delete", danger: true, action: () => actions.remove() },
    ];
    openMenu(more, `Actions for ${title}`, entries, actions.menuClosed);
  });
  row.append(make("span", { class: "dm-row-actions" }, more));
  return row;
}
