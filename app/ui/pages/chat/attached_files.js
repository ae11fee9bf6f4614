// Files for the next message, by button, paste or drop: read by the server into text, shown as chips, sent with the text.

import { api } from "../../shared/api.js";
import { announce, icon, make, storage } from "../../shared/dom.js";
import { plural } from "../../shared/formats.js";
import { fileSize, joinFiles } from "../../components/chat/attached_text.js";

/** @import { Composer } from "../../components/composer/composer.js" */
/** @typedef {{name: string, size: number, tokens: number, block: string}} ReadFile */

/** @param {string | null} conversationId  null: a new chat */
const keyOf = (conversationId) => `deskmate.files.${conversationId ?? "new"}`;

export class AttachedFiles {
  /** @type {Map<string | null, ReadFile[]>} by conversation; null: a new chat. The tab's storage has them for a reload. */
  #files = new Map();
  /** @type {(string | null)[]} the chats of the files that are being read */
  #reading = [];

  /**
   * @param {Composer} composer
   * @param {{conversation: () => string | null, changed: () => void, reportError: (error: unknown) => void}} host
   */
  constructor(composer, host) {
    this.host = host;
    this.chips = make("ul", { class: "dm-file-chips", "aria-label": "Files of this message" });
    this.input = make("input", { type: "file", multiple: true, class: "dm-hidden", tabindex: "-1", "aria-hidden": "true" });
    this.button = make("button", { type: "button", class: "dm-icon-button dm-attach", "aria-label": "Attach files", title: "Attach files: text, Markdown, code, CSV, PDF or DOCX" }, icon("attach"));
    this.button.addEventListener("click", () => this.input.click());
    this.input.addEventListener("change", () => {
      this.add([...(this.input.files ?? [])]);
      this.input.value = "";
    });
    const row = composer.find(".dm-composer-row");
    row.before(this.chips);
    row.prepend(this.button, this.input);
    if (document.documentElement.classList.contains("dm-viewer")) return;
    composer.textarea.addEventListener("paste", (event) => {
      const files = [...(event.clipboardData?.files ?? [])];
      if (files.length === 0 || event.clipboardData?.types.includes("text/plain")) return; // a copied table brings a picture of itself
      event.preventDefault();
      this.add(files);
    });
    const place = composer.element;
    const has = (/** @type {DragEvent} */ event) => event.dataTransfer?.types.includes("Files") ?? false;
    document.addEventListener("dragover", (event) => {
      if (!has(event)) return;
      event.preventDefault(); // else the browser would leave the page for a file that is dropped beside the box
      place.classList.add("dm-dropping");
    });
    document.addEventListener("dragleave", (event) => event.relatedTarget === null && place.classList.remove("dm-dropping"));
    document.addEventListener("drop", (event) => {
      place.classList.remove("dm-dropping");
      if (!has(event)) return;
      event.preventDefault();
      this.add([...(event.dataTransfer?.files ?? [])]);
    });
  }

  /** Whether a file of the open chat is being read. */
  get isReading() {
    return this.#reading.includes(this.host.conversation());
  }

  /** @returns {ReadFile[]} those of the open chat */
  get files() {
    return this.#of(this.host.conversation());
  }

  /** The message that is sent: the text, then the files. @param {string} text */
  withFiles(text) {
    return joinFiles(text, this.files);
  }

  /** @param {File[]} files */
  async add(files) {
    const to = this.host.conversation();
    for (const file of files) {
      this.#reading.push(to);
      this.show();
      try {
        const read = await api.readFile(file);
        this.#keep(to, [...this.#of(to), read]);
        announce(`${read.name} is attached.`);
      } catch (error) {
        this.host.reportError(error);
      } finally {
        this.#reading.splice(this.#reading.indexOf(to), 1);
        this.show();
      }
    }
  }

  /** Forgets files that were sent or removed. @param {string | null} from  the chat @param {ReadFile[]} gone */
  forget(from, gone) {
    this.#keep(from, this.#of(from).filter((file) => !gone.includes(file)));
    this.show();
  }

  /** Forgets all files of a chat, such as a deleted one. @param {string | null} chat */
  forgetAll(chat) {
    this.#keep(chat, []);
  }

  /** A new chat got its conversation id: the files that were not sent are of that conversation now. @param {string} conversationId */
  keepFor(conversationId) {
    this.#keep(conversationId, this.#of(null));
    this.forgetAll(null);
    this.show();
  }

  /** Shows the files of the open chat. */
  show() {
    const chips = this.files.map((file) => this.#chip(file));
    if (this.isReading) chips.push(make("li", { class: "dm-file-chip", role: "status" }, "Reading the file …"));
    this.chips.replaceChildren(...chips);
    this.host.changed();
  }

  /** @param {ReadFile} file */
  #chip(file) {
    const remove = make("button", { type: "button", class: "dm-icon-button dm-small", "aria-label": `Remove ${file.name}` }, icon("close"));
    remove.addEventListener("click", () => {
      this.forget(this.host.conversation(), [file]);
      this.button.focus(); // the pressed button is gone
    });
    return make("li", { class: "dm-file-chip" }, make("span", { class: "dm-file-name", dir: "auto" }, file.name), make("span", { class: "dm-file-about" }, `${fileSize(file.size)} · ${plural(file.tokens, "token")}`), remove);
  }

  /** @param {string | null} chat @returns {ReadFile[]} */
  #of(chat) {
    const known = this.#files.get(chat);
    if (known) return known;
    const kept = JSON.parse(storage.read("sessionStorage", keyOf(chat)) ?? "[]");
    this.#files.set(chat, kept);
    return kept;
  }

  /** @param {string | null} chat @param {ReadFile[]} files */
  #keep(chat, files) {
    this.#files.set(chat, files);
    storage.write("sessionStorage", keyOf(chat), files.length === 0 ? null : JSON.stringify(files));
  }
}
