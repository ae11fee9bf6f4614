// Prompts and canned replies: a list, and an editor with the versions of the selected one.

import { api, request } from "../../shared/api.js";
import { make } from "../../shared/dom.js";
import { button, field, latest, moment } from "./controls.js";
import { announce, isAdmin, problem, register } from "./desk.js";

const KINDS = {
  prompt: {
    noun: "prompt",
    lead: "Instructions for the model before a conversation. Users choose one in the chat settings; a new version applies from the next message on.",
    bodyHint: "Use {{ name }} for a variable, and {% if name %} … {% endif %} for text that depends on one.",
  },
  canned: {
    noun: "canned reply",
    lead: "Texts that users insert with the button next to the message box, or by typing / in the empty box. They are asked for the variables.",
    bodyHint: "Use {{ name }} for a variable. A variable without a default must be filled in.",
  },
};
const EMPTY = { title: "", description: "", variables: [], recommended: {}, body: "" };

const versionName = ({ version }) => (version === 0 ? "Original" : `Version ${version}`);
const written = ({ version, author, created_at: at }) =>
  version === 0 ? "included with Deskmate" : `by ${author ?? "a deleted user"}, ${moment(at)}`;
const nameFrom = (title) => title.toLowerCase().normalize("NFKD").replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "").slice(0, 64);

class Editor {
  #rows;
  #runLatest = latest(); // shared by preview and save: only the latest request shows its result

  // `saved`: the version to edit, or null for a new template. `done(name, message)` is called after saving or removing.
  constructor(section, saved, done) {
    this.section = section;
    this.saved = saved;
    this.done = done;
    this.readOnly = !isAdmin(section.viewer);
    this.element = make("div", { class: "dk-editor" });
    this.#draw(saved?.template ?? EMPTY);
  }

  #draw(template) {
    const { noun, bodyHint } = KINDS[this.section.kind];
    this.title = make("input", { type: "text", maxlength: "60", required: true });
    this.title.value = template.title;
    this.description = make("input", { type: "text", maxlength: "200", required: true });
    this.description.value = template.description;
    this.body = make("textarea", { rows: "14", maxlength: "20000", spellcheck: "true" });
    this.body.value = template.body;
    this.#rows = [];
    this.variables = make("div", { class: "dk-variables" });
    for (const variable of template.variables) this.#addVariable(variable);
    this.sampling = this.section.parameters.map(({ name, label }) => {
      const input = make("input", { type: "number", step: "any" });
      input.value = template.recommended[name] ?? "";
      return [name, label, input];
    });
    this.#kept = Object.fromEntries(Object.entries(template.recommended).filter(([name]) => !this.section.parameters.some((known) => known.name === name)));
    this.status = make("div", { class: "dk-said-by-editor", role: "status" });
    this.preview = make("div", { class: "dm-card dk-preview", hidden: true });
    const parts = [field("Title", this.title), field("Description", this.description)];
    parts.push(
      make("h3", {}, "Variables"),
      this.variables,
      this.readOnly ? null : button("Add a variable", () => this.#addVariable({ name: "", description: "", default: null }, true)),
      field("Text", this.body, bodyHint),
    );
    if (this.section.kind === "prompt") {
      parts.push(
        make("h3", {}, "Recommended sampling"),
        make("p", { class: "dm-hint" }, "Shown to users who choose the prompt. An empty field leaves the value to the model."),
        make("div", { class: "dk-sampling" }, ...this.sampling.map(([, label, input]) => field(label, input))),
      );
    }
    const save = button("Save as a new version", () => this.#save(), { kind: "dm-primary" });
    if (!this.saved) save.textContent = `Add this ${noun}`;
    const buttons = [button("Preview", () => this.#preview())];
    if (!this.readOnly) {
      buttons.push(save);
      if (this.saved && !this.saved.removed) buttons.push(button("Remove", () => this.#remove(), { kind: "dm-danger" }));
    }
    parts.push(make("div", { class: "dm-buttons" }, ...buttons), this.status, this.preview);
    this.element.replaceChildren(...parts.filter((part) => part !== null));
    if (this.readOnly) for (const input of this.element.querySelectorAll("input, textarea")) input.readOnly = true;
    this.shown = JSON.stringify(this.template);
  }

  #kept = {}; // recommended settings that have no field here

  #addVariable({ name, description, default: value }, focus = false) {
    const inputs = {
      name: make("input", { type: "text", maxlength: "40", spellcheck: "false", autocapitalize: "off" }),
      description: make("input", { type: "text", maxlength: "200" }),
      default: make("input", { type: "text", maxlength: "2000" }),
    };
    inputs.name.value = name;
    inputs.description.value = description;
    inputs.default.value = value ?? "";
    if (this.section.kind === "canned") inputs.default.placeholder = "None (must be filled in)";
    const row = make("div", { class: "dk-variable", role: "group", "aria-label": "Variable" }, field("Name", inputs.name), field("Description", inputs.description), field("Default", inputs.default));
    const entry = { inputs, had: value };
    if (!this.readOnly) {
      row.append(button("Remove", () => {
        this.#rows = this.#rows.filter((each) => each !== entry);
        row.remove();
        this.body.focus();
      }, { "aria-label": "Remove this variable" }));
    }
    this.#rows.push(entry);
    this.variables.append(row);
    if (focus) inputs.name.focus();
  }

  get template() {
    const recommended = { ...this.#kept };
    for (const [name, , input] of this.sampling) if (input.value !== "") recommended[name] = Number(input.value);
    return {
      title: this.title.value.trim(),
      description: this.description.value.trim(),
      // In a prompt an empty default is "". In a canned reply it is null (required), unless it was "" before.
      variables: this.#rows.map(({ inputs, had }) => ({
        name: inputs.name.value.trim(),
        description: inputs.description.value.trim(),
        default: inputs.default.value || (this.section.kind === "prompt" || had === "" ? "" : null),
      })),
      recommended: this.section.kind === "prompt" ? recommended : {},
      body: this.body.value,
    };
  }

  get changed() {
    return JSON.stringify(this.template) !== this.shown;
  }

  get #name() {
    return this.saved?.name ?? nameFrom(this.title.value);
  }

  #path(action = "") {
    return `${this.section.path}/${encodeURIComponent(this.#name || "new")}${action}`;
  }

  #complain(error) {
    this.status.replaceChildren(problem(error));
  }

  async #save() {
    if (!this.saved && this.section.names.includes(this.#name)) {
      this.status.replaceChildren(make("p", { class: "dm-alert", role: "alert" }, "This title is already in use. Choose another title, or edit the existing entry."));
      return;
    }
    await this.#change("PUT", this.#path(), { after: this.saved?.version ?? 0, template: this.template }, "Saved.");
  }

  // The editor is inert meanwhile: it is rebuilt from the saved version, and edits made in between would be lost.
  async #change(method, path, body, message) {
    const focused = document.activeElement;
    this.element.inert = true;
    await this.#runLatest(
      () => request(method, path, body),
      () => this.done(this.#name, message),
      (error) => {
        this.element.inert = false;
        if (document.activeElement === document.body) focused.focus();
        this.#complain(error);
      },
    );
  }

  async #remove() {
    if (!confirm(`Remove “${this.saved.template.title}”? Users can no longer choose it. Its versions are kept and can be restored.`)) return;
    await this.#change("POST", this.#path("/remove"), { after: this.saved.version }, "Removed.");
  }

  async #preview() {
    const template = this.template;
    const values = Object.fromEntries(template.variables.filter(({ default: value }) => value === null).map(({ name }) => [name, `[${name}]`]));
    await this.#runLatest(
      () => request("POST", this.#path("/try"), { template, values }),
      ({ text }) => {
        this.status.replaceChildren();
        this.preview.replaceChildren(make("h3", {}, "Preview"), make("div", { class: "dk-said-text" }, text));
        this.preview.hidden = false;
      },
      (error) => {
        this.preview.hidden = true;
        this.#complain(error);
      },
    );
  }
}

class Section {
  stored = [];
  parameters = []; // the sampling parameters that a prompt may recommend
  editor = null; // the open editor; null while the saved version is being reloaded
  #loads = 0;

  constructor(kind, viewer) {
    this.kind = kind;
    this.viewer = viewer;
    this.path = `/api/desk/templates/${kind}`;
    this.list = make("ul", { class: "dk-list" });
    this.work = make("div", { class: "dk-work" });
    const { lead, noun } = KINDS[kind];
    const add = isAdmin(viewer) ? button(`New ${noun}`, () => this.#new()) : null;
    this.parts = [
      make("p", { class: "dk-lead" }, lead),
      make("div", { class: "dk-two" }, make("div", { class: "dk-side" }, add, this.list), this.work),
    ];
  }

  get names() {
    return this.stored.map(({ name }) => name);
  }

  async load(open = null, message = "") {
    const mine = ++this.#loads;
    const [stored, { parameters }] = await Promise.all([request("GET", this.path), api.options()]);
    if (mine !== this.#loads) return;
    this.stored = stored;
    this.parameters = parameters.filter((each) => each.is_recommendable);
    const entry = (stored) =>
      make(
        "li",
        {},
        make(
          "button",
          { type: "button", class: "dm-option dk-entry", "data-name": stored.name, onclick: () => this.#open(stored) },
          make("strong", {}, stored.template.title),
          make("span", {}, stored.template.description),
          make("small", {}, stored.removed ? `Removed ${written(stored)}` : `${versionName(stored)}, ${written(stored)}`),
        ),
      );
    this.list.replaceChildren(...this.stored.map(entry));
    this.work.inert = false;
    if (this.editor !== null) {
      this.#mark(this.editor.saved?.name); // another entry was opened meanwhile
      return;
    }
    const chosen = this.stored.find(({ name }) => name === open) ?? this.stored[0];
    if (chosen) await this.#open(chosen, { message, confirmed: true });
  }

  // Highlights the entry that is being edited.
  #mark(name) {
    for (const entry of this.list.querySelectorAll(".dk-entry")) {
      if (entry.dataset.name === name) entry.setAttribute("aria-current", "true");
      else entry.removeAttribute("aria-current");
    }
  }

  #leave() {
    return !this.editor?.changed || confirm("You have unsaved changes. Discard them?");
  }

  #new() {
    if (!this.#leave()) return;
    this.#edit(null);
    this.#mark(null);
    this.work.replaceChildren(make("h2", {}, `New ${KINDS[this.kind].noun}`), this.editor.element);
    this.editor.title.focus();
  }

  #edit(saved) {
    const editor = new Editor(this, saved, (name, message) => this.#reload(editor, name, message));
    this.editor = editor;
    this.work.inert = false;
  }

  // Called after `editor` has saved.
  async #reload(editor, name, message) {
    if (this.editor === editor) {
      this.editor = null;
      this.work.inert = true; // still shows the old version; edits to it would be lost
    }
    try {
      await this.load(name, message);
    } catch (error) {
      this.work.inert = false;
      (this.editor === null ? this.work : this.list).replaceChildren(problem(error));
    }
    announce(message);
  }

  async #open(stored, { message = "", confirmed = false } = {}) {
    if (!confirmed && !this.#leave()) return;
    this.#mark(stored.name);
    this.#edit(stored);
    const history = make("details", { class: "dk-history" }, make("summary", {}, "Versions"));
    const note = stored.removed ? make("p", { class: "dm-alert" }, "This entry was removed, so users can't choose it. Save it or restore a version to bring it back.") : null;
    this.work.replaceChildren(
      make("h2", {}, stored.template.title),
      make("p", { class: "dm-hint" }, `${stored.name} · ${versionName(stored)}, ${written(stored)}`),
      ...[note].filter((each) => each !== null),
      this.editor.element,
      history,
    );
    if (message) this.editor.status.replaceChildren(make("p", {}, message));
    try {
      const versions = await request("GET", `${this.path}/${encodeURIComponent(stored.name)}/versions`);
      history.append(make("ol", { class: "dk-versions" }, ...versions.map((version) => this.#version(stored, version))));
      history.open = versions.length > 1;
    } catch (error) {
      history.append(problem(error));
    }
  }

  #version(current, version) {
    const text = make("pre", { hidden: true }, version.template.body);
    const view = button("View", () => {
      text.hidden = !text.hidden;
      view.setAttribute("aria-expanded", String(!text.hidden));
    }, { "aria-expanded": "false", "aria-label": `View ${versionName(version)}` });
    const line = make("div", { class: "dk-version" }, make("span", {}, `${versionName(version)}${version.removed ? " (removed)" : ""}, ${written(version)}`), view);
    const inUse = version.version === current.version && !current.removed;
    if (inUse) line.append(make("em", {}, "in use"));
    else if (isAdmin(this.viewer)) {
      line.append(button("Restore", async () => {
        if (!this.#leave()) return;
        const editor = this.editor;
        this.work.inert = true; // as in #reload
        try {
          await request("POST", `${this.path}/${encodeURIComponent(current.name)}/restore`, { version: version.version, after: current.version });
        } catch (error) {
          this.work.inert = false;
          line.append(problem(error));
          return;
        }
        this.#reload(editor, current.name, `${versionName(version)} is in use again.`);
      }, { "aria-label": `Restore ${versionName(version)}` }));
    }
    return make("li", {}, line, text);
  }
}

const opened = new Map(); // kind -> its section, kept so that unsaved changes survive switching sections
const isUnsaved = (section) => section?.editor?.changed ?? false;

const show = (kind) => (place, viewer) => {
  const kept = opened.get(kind);
  const section = isUnsaved(kept) ? kept : new Section(kind, viewer);
  opened.set(kind, section);
  place.append(...section.parts);
  if (section === kept) section.editor.status.replaceChildren(make("p", {}, "Your changes are still here but not saved yet."));
  return section.load();
};

addEventListener("beforeunload", (event) => {
  if ([...opened.values()].some(isUnsaved)) event.preventDefault(); // the browser asks for confirmation
});

register({ id: "prompts", title: "Prompts", show: show("prompt") });
register({ id: "canned", title: "Canned replies", show: show("canned") });
