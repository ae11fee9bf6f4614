// The action "Copy" of a reply: a click copies Markdown, the menu beside it offers plain and rich text.

import { icon, make } from "../../shared/dom.js";
import { openMenu } from "../../shared/menu.js";
import { copyRich, copyText } from "./copying.js";
import { renderMarkdown } from "./markdown.js";
import { actionButton } from "./message_actions.js";
import { plainText, richText } from "./rich_text.js";

export class CopyChoice {
  /** @param {() => string} markdown  the reply, with its citations as footnotes */
  constructor(markdown) {
    this.markdown = markdown;
    this.button = actionButton("Copy", "Copy reply", () => copyText(markdown(), this.button), "copy");
    this.more = make(
      "button",
      { type: "button", class: "dm-action dm-copy-more", "aria-label": "Copying formats", title: "Markdown, plain text or rich text", "aria-haspopup": "menu", "aria-expanded": "false", onclick: () => this.#choose() },
      icon("open"),
    );
    this.element = make("span", { class: "dm-copy-choice" }, this.button, this.more);
  }

  #choose() {
    openMenu(this.more, "Copying formats", [
      { name: "Markdown", action: () => copyText(this.markdown(), this.button) },
      { name: "Plain text", action: () => copyText(plainText(this.#rendered()), this.button) },
      { name: "Rich text", action: () => this.#copyRich() },
    ]);
  }

  #copyRich() {
    const rendered = this.#rendered();
    return copyRich(richText(rendered), plainText(rendered), this.button);
  }

  /** Sanitized, as it is shown. */
  #rendered() {
    const place = make("div");
    renderMarkdown(place, this.markdown());
    return place;
  }
}
