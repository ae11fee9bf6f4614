// Canned replies: a searchable list and a form for the variables; inserts the text into the message box. The list has
// commands, too.

import { showDialog } from "../../shared/dialog.js";
import { make, uniqueId } from "../../shared/dom.js";
import { fits } from "./canned_text.js";

/** @typedef {import("./canned_text.js").CannedReply} CannedReply */

/** @typedef {import("./commands.js").Command} Command */

/**
 * @typedef {object} Host  the message box
 * @property {() => Promise<CannedReply[]>} list  loads the canned replies
 * @property {(reply: CannedReply, values: Record<string, string>) => Promise<string | null>} fill
 *   resolves to the text of a reply, or null if there is nothing to insert
 * @property {() => Command[]} commands  what the list offers besides
 * @property {() => string} emptyMessage  what the list says without canned replies
 * @property {(text: string) => void} insert  inserts into the message box
 * @property {(error: Error) => void} onError
 * @property {(typed: string) => void} onCancel  the list was closed without a choice, with the typed search
 */

const [MARGIN, MIN_HEIGHT, MAX_HEIGHT] = [8, 200, 352]; // of the list above the box, in pixels

/** @param {unknown} error */
const asError = (error) => (error instanceof Error ? error : new Error(String(error)));

export class CannedReplies {
  /** @type {((replies: CannedReply[]) => void) | null} shows replies in the list that is open */
  #show = null;

  /**
   * @param {HTMLButtonElement} button
   * @param {Host} host
   */
  constructor(button, host) {
    this.button = button;
    this.host = host;
    button.addEventListener("click", () => this.open());
  }

  /** Shows other replies, if the list is open. @param {CannedReply[]} replies */
  renew(replies) {
    this.#show?.(replies);
  }

  /**
   * Opens the list. `typed`: by typing "/" in the box. The dialog opens before the list has loaded, so that further
   * typing goes to its search.
   */
  async open({ typed = false } = {}) {
    if (document.querySelector(".dm-canned, .dm-fill")) return;
    const { show, showError } = this.#list(typed);
    try {
      show(await this.host.list());
    } catch (error) {
      showError(asError(error).message);
    }
  }

  /** Opens the dialog without entries. @param {boolean} typed */
  #list(typed) {
    /** @type {CannedReply[] | null} */
    let replies = null;
    let sentence = "Loading …";
    const listId = uniqueId("dm-canned-list");
    const search = /** @type {HTMLInputElement} */ (make("input", {
      type: "text",
      class: "dm-input",
      role: "combobox",
      "aria-label": "Search canned replies",
      "aria-expanded": "true",
      "aria-controls": listId,
      "aria-autocomplete": "list",
      autocomplete: "off",
      placeholder: "Search canned replies",
    }));
    const list = make("ul", { class: "dm-canned-list", id: listId, role: "listbox", "aria-label": "Canned replies" });
    const note = make("p", { class: "dm-hint dm-canned-note", role: "status" });
    const close = make("button", { type: "button", class: "dm-icon-button", "aria-label": "Close", onclick: () => dialog.close() }, make("span", { class: "dm-icon dm-icon-close", "aria-hidden": "true" }));
    const dialog = /** @type {HTMLDialogElement} */ (make("dialog", { class: "dm-dialog dm-canned", "aria-label": "Canned replies" }, make("div", { class: "dm-canned-head" }, search, close), list, note));
    /** @type {CannedReply | Command | null} */
    let chosen = null;
    let at = 0;
    /** @param {number} to */
    const mark = (to) => {
      const options = [...list.children];
      at = options.length ? (to + options.length) % options.length : 0;
      for (const [index, option] of options.entries()) option.setAttribute("aria-selected", String(index === at));
      const marked = options[at];
      if (marked) {
        search.setAttribute("aria-activedescendant", marked.id);
        marked.scrollIntoView({ block: "nearest" });
      } else search.removeAttribute("aria-activedescendant");
    };
    /** @param {CannedReply | Command} reply */
    const choose = (reply) => {
      chosen = reply;
      dialog.close();
    };
    const draw = () => {
      const found = [...this.host.commands(), ...(replies ?? [])].filter((entry) => fits(entry, search.value.trim()));
      list.replaceChildren(
        ...found.map((reply, index) =>
          make(
            "li",
            { role: "option", class: "dm-option", id: `${listId}-${index}`, "data-name": reply.name, onclick: () => choose(reply) },
            make("strong", {}, reply.title ?? reply.name),
            make("span", {}, reply.description ?? ""),
          ),
        ),
      );
      if (replies === null) note.textContent = sentence;
      else if (replies.length === 0) note.textContent = this.host.emptyMessage();
      else note.textContent = found.length === 0 ? "No matching canned replies." : "";
      mark(0);
    };
    search.addEventListener("input", draw);
    dialog.addEventListener("keydown", (event) => {
      if (event.isComposing || event.target !== search) return;
      if (event.key === "ArrowDown") mark(at + 1);
      else if (event.key === "ArrowUp") mark(at - 1);
      else if (event.key === "Enter") /** @type {HTMLElement | undefined} */ (list.children[at])?.click();
      else return;
      event.preventDefault();
    });
    dialog.addEventListener("click", (event) => {
      if (event.target === dialog) dialog.close(); // a click on the backdrop
    });
    dialog.addEventListener("close", () => {
      placed.abort();
      this.#show = null;
      if (chosen && "run" in chosen) chosen.run();
      else if (chosen) this.#use(chosen);
      else this.host.onCancel(typed ? `/${search.value}` : "");
    });
    draw();
    showDialog(dialog, search);
    const placed = this.#keepAboveBox(dialog);
    /** @param {CannedReply[]} listed */
    const show = (listed) => {
      replies = listed;
      draw();
    };
    this.#show = show;
    return {
      show,
      /** @param {string} text */
      showError: (text) => {
        sentence = text;
        draw();
      },
    };
  }

  /** Inserts a reply; asks for its variables first. @param {CannedReply} reply */
  use(reply) {
    return this.#use(reply);
  }

  /** Keeps the list above the message box, in one size whatever a search finds. @param {HTMLElement} dialog */
  #keepAboveBox(dialog) {
    const stop = new AbortController();
    const box = this.button.closest(".dm-composer-row") ?? this.button;
    const place = () => {
      const { left, top, width } = box.getBoundingClientRect();
      const room = top - 2 * MARGIN;
      const fits = room >= MIN_HEIGHT; // otherwise in the middle of the window
      dialog.classList.toggle("dm-above", fits);
      Object.assign(dialog.style, fits ? { left: `${left}px`, bottom: `${innerHeight - top + MARGIN}px`, width: `${width}px`, height: `${Math.min(room, MAX_HEIGHT)}px` } : { left: "", bottom: "", width: "", height: "" });
    };
    place();
    addEventListener("resize", place, { signal: stop.signal });
    return stop;
  }

  /** @param {CannedReply} reply */
  async #use(reply) {
    const values = reply.variables?.length ? await this.#ask(reply, reply.variables) : {};
    if (values === null) return this.host.onCancel("");
    try {
      const text = await this.host.fill(reply, values);
      if (text !== null) this.host.insert(text);
    } catch (error) {
      this.host.onError(asError(error));
    }
  }

  /**
   * Asks for the variables. Resolves to their values by name, or null when cancelled.
   * @param {CannedReply} reply
   * @param {import("./canned_text.js").Variable[]} variables
   * @returns {Promise<Record<string, string> | null>}
   */
  async #ask(reply, variables) {
    const titleId = uniqueId("dm-fill-title");
    const inputs = variables.map(({ name, description = name, default: value = null }) => {
      const attributes = { class: "dm-input", id: uniqueId("dm-fill"), maxlength: "2000", autocomplete: "off" };
      const input = /** @type {HTMLInputElement} */ (make("input", { type: "text", ...attributes, required: value === null }));
      input.value = value ?? "";
      return { name, input, label: make("label", { class: "dm-label", for: input.id }, description) };
    });
    const cancel = make("button", { type: "button", class: "dm-button", onclick: () => dialog.close() }, "Cancel");
    const form = make(
      "form",
      { method: "dialog" },
      make("h2", { id: titleId }, reply.title ?? reply.name),
      ...inputs.map(({ label, input }) => make("div", { class: "dm-field" }, label, input)),
      make("div", { class: "dm-buttons" }, cancel, make("button", { type: "submit", value: "yes", class: "dm-button dm-primary" }, "Insert")),
    );
    const dialog = /** @type {HTMLDialogElement} */ (make("dialog", { class: "dm-dialog dm-fill", "aria-labelledby": titleId }, form));
    const first = inputs.find(({ input }) => input.value === "") ?? inputs[0];
    if ((await showDialog(dialog, first?.input)) !== "yes") return null;
    return Object.fromEntries(inputs.map(({ name, input }) => [name, input.value]));
  }
}
