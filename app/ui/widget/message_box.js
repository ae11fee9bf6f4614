// The box in which the visitor writes. What is written stays over a reload.

import { icon, make } from "../shared/dom.js";
import { errorText } from "./api.js";
import { t } from "./texts.js";

/** @import { Store } from "./store.js" */
/** @import { StoredFile } from "./types.js" */

const MAX_CHARACTERS = 10_000;
const MAX_FILES = 5;
const TYPES = "text/plain,image/png,image/jpeg,image/gif,image/webp,application/pdf";

export class MessageBox {
  /** @type {StoredFile[]} what goes with the next message */
  #files = [];

  /**
   * @param {Store} store
   * @param {(text: string, files: StoredFile[]) => void} onSend
   * @param {(file: File) => Promise<StoredFile>} upload
   */
  constructor(store, onSend, upload) {
    this.store = store;
    this.onSend = onSend;
    this.upload = upload;
    this.field = make("textarea", { id: "dw-text", class: "dw-text", rows: "1", maxlength: String(MAX_CHARACTERS), dir: "auto", placeholder: t("Write a message") });
    this.field.value = store.get("draft") ?? "";
    this.files = make("ul", { class: "dw-chosen", "aria-label": t("Attached files"), hidden: true });
    this.problem = make("p", { class: "dm-alert", role: "alert" });
    this.chooser = make("input", { type: "file", accept: TYPES, multiple: true, hidden: true, tabindex: "-1", "aria-label": t("Attach a file") });
    this.attach = make("button", { type: "button", class: "dm-icon-button", "aria-label": t("Attach a file"), title: t("Text, picture or PDF"), hidden: true }, icon("attach"));
    this.send = make("button", { type: "submit", class: "dm-icon-button dw-send", "aria-label": t("Send") }, icon("send"));
    this.element = make(
      "form",
      { class: "dw-box" },
      this.problem,
      this.files,
      make("div", { class: "dw-box-row" }, this.attach, make("label", { class: "dm-hidden", for: "dw-text" }, t("Your message")), this.field, this.send, this.chooser),
    );
    this.attach.addEventListener("click", () => this.chooser.click());
    this.chooser.addEventListener("change", () => this.#addFiles());
    this.field.addEventListener("input", () => this.#grow());
    this.field.addEventListener("keydown", (event) => {
      // Enter that ends a word in an input method is no Enter.
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.element.requestSubmit();
    });
    this.element.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#submit();
    });
  }

  /** @param {boolean} canAttach */
  show(canAttach) {
    this.attach.hidden = !canAttach;
  }

  focus() {
    this.field.focus();
    this.#grow();
  }

  #grow() {
    this.store.set("draft", this.field.value);
    this.field.style.height = "auto";
    this.field.style.height = `${this.field.scrollHeight}px`;
  }

  #submit() {
    const text = this.field.value.trim();
    if (text === "" && this.#files.length === 0) {
      this.field.focus();
      return;
    }
    const files = this.#files;
    this.#files = [];
    this.field.value = "";
    this.problem.textContent = "";
    this.#grow();
    this.#drawFiles();
    this.onSend(text, files);
    this.field.focus();
  }

  async #addFiles() {
    this.problem.textContent = "";
    const chosen = [...(this.chooser.files ?? [])];
    this.chooser.value = "";
    this.attach.disabled = true;
    for (const file of chosen) {
      if (this.#files.length >= MAX_FILES) {
        this.problem.textContent = t("A message can have {count} files.", { count: String(MAX_FILES) });
        break;
      }
      try {
        this.#files.push(await this.upload(file));
      } catch (error) {
        this.problem.textContent = t("{name} was not attached. {problem}", { name: file.name, problem: errorText(error) });
      }
      this.#drawFiles();
    }
    this.attach.disabled = false;
  }

  #drawFiles() {
    this.files.hidden = this.#files.length === 0;
    this.files.replaceChildren(
      ...this.#files.map((file) => {
        const remove = make("button", { type: "button", class: "dm-action", "aria-label": t("Remove {name}", { name: file.name }) }, icon("close"));
        remove.addEventListener("click", () => {
          this.#files = this.#files.filter((each) => each !== file);
          this.#drawFiles();
          this.field.focus();
        });
        return make("li", {}, make("span", { dir: "auto" }, file.name), remove);
      }),
    );
  }
}
