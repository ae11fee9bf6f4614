// The messages of the talk. An element stays for each, so that an open source stays open while words arrive.

import { make, replaceChildren } from "../shared/dom.js";
import { markdownTree, plainTree, toNodes } from "./message_text.js";
import { isStreaming } from "./talk_state.js";
import { language, t } from "./texts.js";

/** @import { Citation, Message, Pending, StoredFile } from "./types.js" */

/** @param {Message} message */
export function authorName({ author }) {
  if (author.kind === "contact") return t("You");
  if (author.kind === "bot") return t("Assistant");
  return author.name || t("Team");
}

/** @param {string} iso */
const clock = (iso) => new Intl.DateTimeFormat(language(), { hour: "numeric", minute: "2-digit" }).format(new Date(iso));

/** @param {string} iso */
const day = (iso) => new Intl.DateTimeFormat(language(), { weekday: "long", day: "numeric", month: "long" }).format(new Date(iso));

const NEAR_PX = 60;

export class MessageList {
  /** @type {Map<string, {shown: string, element: HTMLElement}>} by message or by pending message */
  #rows = new Map();
  /** Whether the end is in view, and is to stay there. */
  #isAtEnd = true;

  /**
   * @param {(file: StoredFile) => Promise<Blob>} load
   * @param {{retry: (id: string) => void, drop: (id: string) => void}} pendingActions
   */
  constructor(load, { retry, drop }) {
    this.load = load;
    this.retry = retry;
    this.drop = drop;
    this.list = make("ol", { class: "dw-messages" });
    // A log would read every word of a reply that is being written: frame.js announces whole messages instead.
    this.element = make("div", { class: "dw-log", role: "log", "aria-live": "off", "aria-label": t("Messages"), tabindex: "0" }, this.list);
    this.element.addEventListener("scroll", () => (this.#isAtEnd = this.#rest() < NEAR_PX));
    new ResizeObserver(() => this.#follow()).observe(this.element); // what stands below it comes and goes
  }

  /**
   * @param {string} greeting
   * @param {Message[]} messages
   * @param {Pending[]} pending
   * @param {boolean} isOnline
   * @param {string | null} typing
   */
  show(greeting, messages, pending, isOnline, typing) {
    const sent = new Set(messages.map((message) => message.client_id));
    const rows = [];
    if (greeting !== "") rows.push(this.#row("greeting", greeting, () => bubble("bot", [toParagraphs(greeting)])));
    let before = "";
    for (const message of messages) {
      const today = day(message.created_at);
      if (today !== before) rows.push(this.#row(`day:${today}`, today, () => make("li", { class: "dw-day" }, today)));
      before = today;
      rows.push(this.#message(message));
    }
    for (const message of pending) {
      if (!sent.has(message.client_id)) rows.push(this.#row(`pending:${message.client_id}`, JSON.stringify([message, isOnline]), () => this.#pending(message, isOnline)));
    }
    if (typing !== null) rows.push(this.#row("typing", typing, () => typingRow(typing || t("Team"))));
    replaceChildren(this.list, rows);
    const kept = new Set(rows);
    for (const [key, { element }] of this.#rows) if (!kept.has(element)) this.#rows.delete(key);
    this.#follow();
  }

  scrollToEnd() {
    this.#isAtEnd = true;
    this.#follow();
  }

  /** Keeps the end in view, unless the visitor has scrolled up. */
  #follow() {
    if (this.#isAtEnd) this.element.scrollTop = this.element.scrollHeight;
  }

  /** The height in pixels of what lies below. */
  #rest() {
    return this.element.scrollHeight - this.element.scrollTop - this.element.clientHeight;
  }

  /** @param {string} key @param {string} shown  equal: the element stays @param {() => HTMLElement} draw */
  #row(key, shown, draw) {
    const there = this.#rows.get(key);
    if (there?.shown === shown) return there.element;
    const element = draw();
    this.#rows.set(key, { shown, element });
    return element;
  }

  /** @param {Message} message */
  #message(message) {
    const there = this.#rows.get(message.id);
    const shown = JSON.stringify(message);
    if (there === undefined) return this.#row(message.id, shown, () => this.#draw(message));
    if (there.shown !== shown) {
      there.shown = shown;
      this.#redraw(there.element, message);
    }
    return there.element;
  }

  /** @param {Message} message */
  #draw(message) {
    const { kind } = message.author;
    const isOwn = kind === "contact";
    const element = make(
      "li",
      { class: `dw-message dw-${kind}` },
      make("p", { class: isOwn ? "dm-hidden" : "dw-author", dir: "auto" }, authorName(message)),
      make("div", { class: "dw-bubble" }),
      make("div", { class: "dw-files" }),
      make("div", { class: "dw-sources" }),
      make("p", { class: "dw-when" }),
    );
    this.#redraw(element, message);
    return element;
  }

  /** @param {HTMLElement} element @param {Message} message */
  #redraw(element, message) {
    const [, text, files, sources, when] = element.children;
    const isWriting = isStreaming(message.status);
    element.classList.toggle("dw-writing", isWriting);
    const tree = message.author.kind === "bot" ? markdownTree(message.text) : plainTree(message.text);
    text.replaceChildren(...(message.text === "" && isWriting ? [dots(t("The assistant is writing."))] : toNodes(tree)));
    /** @type {HTMLElement} */ (text).hidden = message.text === "" && !isWriting;
    if (!files.hasChildNodes()) files.append(...(message.attachments ?? []).map((file) => this.#file(file)));
    if (!isWriting && !sources.hasChildNodes() && message.citations?.length) sources.append(sourceList(message.citations));
    when.textContent = isWriting ? "" : statusText(message);
  }

  /** @param {Pending} message @param {boolean} isOnline */
  #pending(message, isOnline) {
    const { client_id: id, text, files, problem } = message;
    const state = problem ?? (isOnline ? t("Sending …") : t("Will be sent once there is a connection."));
    return make(
      "li",
      { class: `dw-message dw-contact dw-pending${problem === null ? "" : " dw-failed"}` },
      make("p", { class: "dm-hidden" }, t("You")),
      make("div", { class: "dw-bubble" }, ...toNodes(plainTree(text)), ...files.map((file) => make("p", { dir: "auto" }, file.name))),
      make("p", { class: "dw-when" }, problem === null ? state : t("Not sent. {problem}", { problem })),
      problem === null
        ? null
        : make(
            "p",
            { class: "dw-retry" },
            make("button", { type: "button", class: "dm-action", onclick: () => this.retry(id) }, t("Send again")),
            make("button", { type: "button", class: "dm-action", onclick: () => this.drop(id) }, t("Discard")),
          ),
    );
  }

  /** @param {StoredFile} file */
  #file(file) {
    const name = make("span", { dir: "auto" }, file.name);
    const save = make("button", { type: "button", class: "dm-action dw-file" }, name);
    save.setAttribute("aria-label", t("Download {name}", { name: file.name }));
    save.addEventListener("click", async () => {
      save.disabled = true;
      await this.load(file).then((blob) => saveFile(blob, file.name)).catch(() => name.append(` · ${t("That did not work. Try again.")}`));
      save.disabled = false;
    });
    if (!/^image\/(?:png|jpeg|gif|webp)$/.test(file.type)) return save;
    const picture = make("img", { class: "dw-picture", alt: file.name, hidden: true });
    this.load(file).then(
      (blob) => {
        picture.src = URL.createObjectURL(new Blob([blob], { type: file.type }));
        picture.hidden = false;
      },
      () => {}, // its name can still be clicked
    );
    return make("div", {}, picture, save);
  }
}

/** @param {Blob} blob @param {string} name */
export function saveFile(blob, name) {
  const address = URL.createObjectURL(blob);
  make("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}

/** @param {string} text */
const toParagraphs = (text) => make("div", { class: "dw-bubble", dir: "auto" }, ...toNodes(plainTree(text)));

/** @param {string} kind @param {Node[]} children */
const bubble = (kind, children) => make("li", { class: `dw-message dw-${kind}` }, ...children);

/** @param {string} text  for screen readers */
const dots = (text) => make("span", { class: "dw-dots", role: "img", "aria-label": text }, make("i"), make("i"), make("i"));

/** @param {string} name */
const typingRow = (name) => bubble("agent", [make("div", { class: "dw-bubble" }, dots(t("{name} is typing.", { name })))]);

/** @param {Message} message */
function statusText(message) {
  const when = clock(message.created_at);
  if (["interrupted", "stopped", "error", "failed"].includes(message.status)) return t("{time} · not finished", { time: when });
  return message.author.kind === "contact" ? t("{time} · sent", { time: when }) : when;
}

/** @param {Citation[]} citations */
function sourceList(citations) {
  return make(
    "details",
    { class: "dw-source-list" },
    make("summary", {}, t("Sources ({count})", { count: String(citations.length) })),
    make("ol", {}, ...citations.map(({ number, title, text }) => make("li", { value: String(number) }, source(title, text)))),
  );
}

/** @param {string} title @param {string} text */
const source = (title, text) =>
  make("details", {}, make("summary", { dir: "auto" }, title), make("blockquote", { dir: "auto", tabindex: "0" }, text));
