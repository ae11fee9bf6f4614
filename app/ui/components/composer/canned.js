// Canned replies: a searchable list and a form for the variables; inserts the text into the message box.

import { api } from "../../shared/api.js";
import { make } from "../../shared/dom.js";

// Whether title, description and name contain every word of the query, in any order.
function fits({ title, description, name }, query) {
  const text = `${title} ${description} ${name}`.toLowerCase();
  return query.toLowerCase().split(/\s+/).every((word) => text.includes(word));
}

export class CannedReplies {
  // `insert(text)` inserts into the message box; `onError(error)` shows an error; `onCancel(typed)` is called when the
  // list is closed without a choice, with the typed search.
  constructor(button, { insert, onError, onCancel }) {
    this.button = button;
    this.insert = insert;
    this.onError = onError;
    this.onCancel = onCancel;
    button.addEventListener("click", () => this.open());
  }

  // `typed`: opened by typing "/" in the box. The dialog opens before the list has loaded, so that further typing goes
  // to its search.
  async open({ typed = false } = {}) {
    if (document.querySelector(".dm-canned, .dm-fill")) return;
    const { show, showError } = this.#list(typed);
    try {
      show(await api.listCanned());
    } catch (error) {
      showError(error.message);
    }
  }

  // Opens the dialog without entries. Returns {show(replies), showError(sentence)}.
  #list(typed) {
    let replies = null;
    let sentence = "Loading …";
    const search = make("input", {
      type: "text",
      class: "dm-input",
      role: "combobox",
      "aria-label": "Search canned replies",
      "aria-expanded": "true",
      "aria-controls": "dm-canned-list",
      "aria-autocomplete": "list",
      autocomplete: "off",
      placeholder: "Search canned replies",
    });
    const list = make("ul", { id: "dm-canned-list", role: "listbox", "aria-label": "Canned replies" });
    const note = make("p", { class: "dm-hint dm-canned-note", role: "status" });
    const close = make("button", { type: "button", class: "dm-icon-button", "aria-label": "Close", onclick: () => dialog.close() }, make("span", { class: "dm-icon dm-icon-close", "aria-hidden": "true" }));
    const dialog = make("dialog", { class: "dm-dialog dm-canned", "aria-label": "Canned replies" }, make("div", { class: "dm-canned-head" }, search, close), list, note);
    let chosen = null;
    let at = 0;
    const mark = (to) => {
      const options = [...list.children];
      at = options.length ? (to + options.length) % options.length : 0;
      for (const [index, option] of options.entries()) option.setAttribute("aria-selected", String(index === at));
      if (options.length) {
        search.setAttribute("aria-activedescendant", options[at].id);
        options[at].scrollIntoView({ block: "nearest" });
      } else search.removeAttribute("aria-activedescendant");
    };
    const choose = (reply) => {
      chosen = reply;
      dialog.close();
    };
    const draw = () => {
      if (replies === null) {
        note.textContent = sentence;
        return;
      }
      const found = replies.filter((reply) => fits(reply, search.value.trim()));
      list.replaceChildren(
        ...found.map((reply, index) =>
          make(
            "li",
            { role: "option", class: "dm-option", id: `dm-canned-${index}`, "data-name": reply.name, onclick: () => choose(reply) },
            make("strong", {}, reply.title),
            make("span", {}, reply.description),
          ),
        ),
      );
      if (replies.length === 0) note.textContent = "There are no canned replies yet. Admins can add them at /desk.";
      else note.textContent = found.length === 0 ? "No matching canned replies." : "";
      mark(0);
    };
    search.addEventListener("input", draw);
    dialog.addEventListener("keydown", (event) => {
      event.stopPropagation(); // Esc closes the dialog and must not also stop a reply
      if (event.isComposing || event.target !== search) return;
      if (event.key === "ArrowDown") mark(at + 1);
      else if (event.key === "ArrowUp") mark(at - 1);
      else if (event.key === "Enter") list.children[at]?.click();
      else return;
      event.preventDefault();
    });
    dialog.addEventListener("click", (event) => {
      if (event.target === dialog) dialog.close(); // a click on the backdrop
    });
    dialog.addEventListener("close", () => {
      dialog.remove();
      if (chosen) this.#use(chosen);
      else this.onCancel(typed ? `/${search.value}` : "");
    });
    document.body.append(dialog);
    draw();
    dialog.showModal();
    search.focus();
    return {
      show: (listed) => {
        replies = listed;
        draw();
      },
      showError: (said) => {
        sentence = said;
        draw();
      },
    };
  }

  async #use(reply) {
    let values = {};
    if (reply.variables.length) {
      values = await this.#ask(reply);
      if (values === null) return this.onCancel("");
    }
    try {
      const { text } = await api.fillCanned(reply.name, values);
      this.insert(text);
    } catch (error) {
      this.onError(error);
    }
  }

  // Asks for the variables. Resolves to their values by name, or null when cancelled.
  #ask(reply) {
    const inputs = reply.variables.map(({ name, description, default: value }) => {
      const input = make("input", { type: "text", class: "dm-input", id: `dm-fill-${name}`, maxlength: "2000", autocomplete: "off", required: value === null });
      input.value = value ?? "";
      return { name, input, label: make("label", { class: "dm-label", for: input.id }, description) };
    });
    const cancel = make("button", { type: "button", class: "dm-button", onclick: () => dialog.close() }, "Cancel");
    const form = make(
      "form",
      { method: "dialog" },
      make("h2", { id: "dm-fill-title" }, reply.title),
      ...inputs.map(({ label, input }) => make("div", { class: "dm-field" }, label, input)),
      make("div", { class: "dm-buttons" }, cancel, make("button", { type: "submit", value: "yes", class: "dm-button dm-primary" }, "Insert")),
    );
    const dialog = make("dialog", { class: "dm-dialog dm-fill", "aria-labelledby": "dm-fill-title" }, form);
    dialog.addEventListener("keydown", (event) => event.stopPropagation());
    document.body.append(dialog);
    dialog.showModal();
    (inputs.find(({ input }) => input.value === "") ?? inputs[0]).input.focus();
    return new Promise((resolve) => {
      dialog.addEventListener("close", () => {
        dialog.remove();
        if (dialog.returnValue !== "yes") resolve(null);
        else resolve(Object.fromEntries(inputs.map(({ name, input }) => [name, input.value])));
      });
    });
  }
}
