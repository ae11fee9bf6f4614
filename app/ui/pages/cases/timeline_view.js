// Draws the line of time of a case. Texts of customers and agents are text, never HTML; the assistant's are its Markdown.

import { Citations } from "../../components/chat/citations.js";
import { renderMarkdown } from "../../components/chat/markdown.js";
import { make, replaceChildren } from "../../shared/dom.js";
import { moment, size } from "../../shared/formats.js";
import { openSource } from "../chat/source_viewer.js";
import { casePath } from "./case_api.js";
import { eventText } from "./event_text.js";
import { clockTime, dayName } from "./times.js";

/** @import { CaseMessage } from "./types.js" */
/** @import { Line } from "./timeline.js" */

/** @type {Record<string, string>} */
const STATUS = {
  streaming: "is writing …",
  stopped: "Ended: a person took over.",
  interrupted: "Interrupted.",
  error: "This reply failed.",
};

const NEAR_END = 80; // pixels from the end within which it stays there

export class TimelineView {
  /** @type {Map<string, {value: unknown, element: HTMLLIElement}>} by the line's key */
  #drawn = new Map();
  #isAtEnd = true;

  /** @param {string} caseId @param {string} me @param {() => Promise<unknown>} loadEarlier  adds lines above */
  constructor(caseId, me, loadEarlier) {
    this.loadEarlier = loadEarlier;
    this.caseId = caseId;
    this.me = me;
    this.earlier = make("button", { type: "button", class: "dm-button dm-small cs-earlier", onclick: () => this.#loadEarlier(), hidden: true }, "Earlier messages");
    this.list = make("ol", { class: "cs-lines", "aria-label": "What was said and done" });
    this.element = make("div", { class: "cs-timeline", tabindex: "0", role: "region", "aria-label": "Conversation" }, this.earlier, this.list);
    this.element.addEventListener("scroll", () => {
      this.#isAtEnd = this.element.scrollHeight - this.element.scrollTop - this.element.clientHeight < NEAR_END;
    });
    new ResizeObserver(() => this.#isAtEnd && this.toEnd()).observe(this.element); // the reply box grows
  }

  /** Shows these lines. Stays at the end if it was there. @param {Line[]} lines */
  show(lines) {
    const shown = new Map(lines.map((line) => [line.key, this.#draw(line)]));
    this.#drawn = shown;
    replaceChildren(this.list, [...shown.values()].map((each) => each.element));
    if (this.#isAtEnd) this.toEnd();
  }

  // What was read stays where it is.
  async #loadEarlier() {
    const { element } = this;
    const { scrollHeight, scrollTop } = element;
    this.earlier.disabled = true;
    this.#isAtEnd = false;
    await this.loadEarlier();
    this.earlier.disabled = false;
    element.scrollTop = scrollTop + element.scrollHeight - scrollHeight;
  }

  /** Scrolls to a message and marks it until the focus leaves it. Returns false if it isn't shown. @param {string} id */
  lookAt(id) {
    const element = this.#drawn.get(`m${id}`)?.element;
    if (!element) return false;
    this.#isAtEnd = false;
    element.tabIndex = -1;
    element.focus({ preventScroll: true });
    element.scrollIntoView({ block: "center" });
    return true;
  }

  toEnd() {
    this.element.scrollTop = this.element.scrollHeight;
    this.#isAtEnd = true;
  }

  /** @param {Line} line */
  #draw(line) {
    const value = line.kind === "message" ? line.message : line.kind === "event" ? line.event : line.at;
    const there = this.#drawn.get(line.key);
    if (there?.value === value) return there;
    const element = there?.element ?? make("li");
    if (line.kind === "day") {
      element.className = "cs-day";
      element.replaceChildren(make("span", {}, dayName(line.at)));
    } else if (line.kind === "event") {
      element.className = "cs-event";
      element.replaceChildren(make("span", { dir: "auto" }, eventText(line.event)), " · ", make("time", { datetime: line.at, title: moment(line.at) }, clockTime(line.at)));
    } else {
      element.className = `cs-said cs-by-${line.message.author.kind}${line.message.internal ? " cs-note" : ""}`;
      element.replaceChildren(...this.#message(line.message));
    }
    return { value, element };
  }

  /** @param {CaseMessage} message */
  #message({ author, internal, text, status, created_at: at, citations = [], attachments = [] }) {
    const name = author.kind === "bot" ? author.name || "Assistant" : author.id === this.me && author.kind === "agent" ? "You" : author.name || "Visitor";
    const parts = [make("strong", { dir: "auto" }, name)];
    if (internal) parts.push(make("span", { class: "cs-badge" }, "Internal note"));
    else if (author.kind === "bot") parts.push(make("span", { class: "cs-badge" }, "Assistant"));
    const head = make("p", { class: "cs-said-head" }, ...parts, make("time", { datetime: at, title: moment(at) }, clockTime(at)));
    const body = make("div", { class: "cs-said-text", dir: "auto" });
    if (author.kind === "bot") {
      body.classList.add("dm-markdown");
      renderMarkdown(body, text);
    } else body.textContent = text;
    const files = attachments.map((file) => make("li", {}, make("a", { href: casePath(this.caseId, `attachments/${encodeURIComponent(file.id)}`), download: file.name }, file.name), ` ${size(file.size)}`));
    const note = STATUS[status];
    return [
      head,
      body,
      ...(files.length ? [make("ul", { class: "cs-files", "aria-label": "Attachments" }, ...files)] : []),
      ...(citations.length ? [sources(citations)] : []),
      ...(note ? [make("p", { class: "cs-said-status" }, note)] : []),
    ];
  }
}

/** The sources of a message. A group: as landmarks, those of many messages would all have one name. @param {CaseMessage["citations"]} citations */
function sources(citations) {
  const { element } = new Citations(citations, openSource);
  element.setAttribute("role", "group");
  return element;
}
