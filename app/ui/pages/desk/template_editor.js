// The form of one prompt or canned reply: edits it, previews it, saves it as a new version and removes it.

import { request } from "../../shared/api.js";
import { make } from "../../shared/dom.js";
import { button, field, latest } from "./controls.js";
import { isAdmin, problem } from "./desk.js";
import { EMPTY, fieldsOf, nameFor, previewValues, templateOf } from "./template_fields.js";
import { KINDS } from "./template_text.js";

/** @import { RenderedTemplate, TemplateView, ToolServerView, Viewer } from "../../shared/api_types.js" */
/** @import { ParameterOptions } from "../../shared/page_options.js" */
/** @import { TemplateKind, VariableFields } from "./template_fields.js" */

/**
 * What the editor needs of its section. `path`: the API's path of this kind. `parameters`: the sampling parameters that
 * a prompt can recommend. `toolServers`: those that it can offer. `names`: of all stored templates, also removed ones.
 * @typedef {{kind: TemplateKind, viewer: Viewer, path: string, parameters: ParameterOptions[], toolServers: ToolServerView[], names: string[]}} Templates
 */

/** @typedef {Record<"name" | "description" | "default", HTMLInputElement>} VariableInputs */

/** @param {string} value @param {Record<string, unknown>} attributes */
function textInput(value, attributes) {
  const input = make("input", { type: "text", ...attributes });
  input.value = value;
  return input;
}

export class Editor {
  /** @type {{inputs: VariableInputs, saved: string | null}[]} */
  #rows = [];
  #runLatest = latest(); // shared by preview and save: only the latest request shows its result

  /**
   * @param {Templates} templates
   * @param {TemplateView | null} saved  the version to edit; null for a new template
   * @param {(name: string, message: string) => unknown} done  called after saving or removing
   */
  constructor(templates, saved, done) {
    this.templates = templates;
    this.saved = saved;
    this.done = done;
    this.readOnly = !isAdmin(templates.viewer);
    const { kind, parameters } = templates;
    const fields = fieldsOf(saved?.template ?? EMPTY, parameters.map(({ name }) => name));
    this.title = textInput(fields.title, { maxlength: "60", required: true });
    this.description = textInput(fields.description, { maxlength: "200", required: true });
    this.body = make("textarea", { rows: "14", maxlength: "20000", spellcheck: "true" });
    this.body.value = fields.body;
    this.variables = make("div", { class: "dk-variables" });
    for (const variable of fields.variables) this.#addVariable(variable);
    this.sampling = parameters.map(({ name, label }) => {
      const input = make("input", { type: "number", step: "any" });
      input.value = fields.recommended[name];
      return { name, label, input };
    });
    this.size = make("input", { type: "number", step: "any", min: "0" });
    this.size.value = fields.size;
    this.tools = this.#toolChoices(fields.tools);
    this.status = make("div", { class: "dk-said-by-editor", role: "status" });
    this.preview = make("div", { class: "dm-card dk-preview", hidden: true });
    const blank = { name: "", description: "", default: "", saved: null };
    this.element = make(
      "div",
      { class: "dk-editor" },
      field("Title", this.title),
      field("Description", this.description),
      make("h3", {}, "Variables"),
      this.variables,
      this.readOnly ? null : button("Add a variable", () => this.#addVariable(blank).focus()),
      field("Text", this.body, KINDS[kind].bodyHint),
      ...(kind === "prompt" ? [...this.#samplingFields(), ...this.#sizeFields(), ...this.#toolFields()] : []),
      make("div", { class: "dm-buttons" }, ...this.#buttons()),
      this.status,
      this.preview,
    );
    if (this.readOnly) {
      for (const input of /** @type {NodeListOf<HTMLInputElement>} */ (this.element.querySelectorAll("input, textarea"))) input.readOnly = true;
    }
    this.shown = JSON.stringify(this.template);
  }

  #samplingFields() {
    return [
      make("h3", {}, "Recommended sampling"),
      make("p", { class: "dm-hint" }, "Shown to users who choose the prompt. An empty field leaves the value to the model."),
      make("div", { class: "dk-sampling" }, ...this.sampling.map(({ label, input }) => field(label, input))),
    ];
  }

  #sizeFields() {
    return [
      make("h3", {}, "Size of the model"),
      field("At least (billions of parameters)", this.size, "Users of a smaller model are told that it is too small for this prompt. An empty field: any model will do."),
    ];
  }

  // A server that the prompt names stays a choice when mcp.json no longer defines it.
  /** @param {string[]} chosen */
  #toolChoices(chosen) {
    const { toolServers } = this.templates;
    const gone = chosen.filter((name) => toolServers.every((server) => server.name !== name));
    const known = toolServers.map(({ name, tools, problem: why }) => ({ name, about: why ?? (tools.map((tool) => tool.name).join(", ") || "no tools") }));
    return [...known, ...gone.map((name) => ({ name, about: isAdmin(this.templates.viewer) ? "not in mcp.json any more" : "" }))].map(({ name, about }) => {
      const input = make("input", { type: "checkbox", checked: chosen.includes(name), disabled: this.readOnly });
      return { name, about, input };
    });
  }

  #toolFields() {
    if (this.tools.length === 0) return [];
    return [
      make("h3", {}, "Tools"),
      make("p", { class: "dm-hint" }, "What chats with this prompt may call. Users are asked before a tool runs, unless mcp.json says otherwise."),
      ...this.tools.map(({ name, about, input }) => make("label", { class: "dk-tool-server" }, input, make("strong", {}, name), make("span", { class: "dm-hint" }, about))),
    ];
  }

  #buttons() {
    const { saved } = this;
    const buttons = [button("Preview", () => this.#preview())];
    if (this.readOnly) return buttons;
    const name = saved ? "Save as a new version" : `Add this ${KINDS[this.templates.kind].noun}`;
    buttons.push(button(name, () => this.#save(), { kind: "dm-primary" }));
    if (saved && !saved.removed) buttons.push(button("Remove", () => this.#remove(saved), { kind: "dm-danger" }));
    return buttons;
  }

  /** @param {VariableFields} variable @returns {HTMLInputElement} the field of its name */
  #addVariable({ name, description, default: value, saved }) {
    const inputs = {
      name: textInput(name, { maxlength: "40", spellcheck: "false", autocapitalize: "off" }),
      description: textInput(description, { maxlength: "200" }),
      default: textInput(value, { maxlength: "2000" }),
    };
    if (this.templates.kind === "canned") inputs.default.placeholder = "None (must be filled in)";
    const row = make("div", { class: "dk-variable", role: "group", "aria-label": "Variable" }, field("Name", inputs.name), field("Description", inputs.description), field("Default", inputs.default));
    const entry = { inputs, saved };
    if (!this.readOnly) {
      row.append(button("Remove", () => {
        this.#rows = this.#rows.filter((each) => each !== entry);
        row.remove();
        this.body.focus();
      }, { "aria-label": "Remove this variable" }));
    }
    this.#rows.push(entry);
    this.variables.append(row);
    return inputs.name;
  }

  get template() {
    const fields = {
      title: this.title.value,
      description: this.description.value,
      variables: this.#rows.map(({ inputs, saved }) => ({ name: inputs.name.value, description: inputs.description.value, default: inputs.default.value, saved })),
      recommended: Object.fromEntries(this.sampling.map(({ name, input }) => [name, input.value])),
      tools: this.tools.filter(({ input }) => input.checked).map(({ name }) => name),
      size: this.size.value,
      body: this.body.value,
    };
    return templateOf(fields, this.templates.kind, this.saved?.template.recommended);
  }

  get changed() {
    return JSON.stringify(this.template) !== this.shown;
  }

  get #name() {
    const { kind, names } = this.templates;
    return this.saved?.name ?? nameFor(this.title.value, kind, names);
  }

  /** @param {string} name */
  #path(name) {
    return `${this.templates.path}/${encodeURIComponent(name)}`;
  }

  async #save() {
    const name = this.#name;
    if (!this.saved && this.templates.names.includes(name)) {
      this.status.replaceChildren(make("p", { class: "dm-alert", role: "alert" }, "This title is already in use. Choose another title, or edit the existing entry."));
      return;
    }
    const version = { after: this.saved?.version ?? 0, template: this.template };
    await this.#change(() => request("PUT", this.#path(name), version), name, "Saved.");
  }

  /** @param {TemplateView} saved */
  async #remove({ name, version, template }) {
    if (!confirm(`Remove “${template.title}”? Users can no longer choose it. Its versions are kept and can be restored.`)) return;
    await this.#change(() => request("POST", `${this.#path(name)}/remove`, { after: version }), name, "Removed.");
  }

  /**
   * The editor is inert meanwhile: it is rebuilt from the saved version, and edits made in between would be lost.
   * @param {() => Promise<unknown>} work
   * @param {string} name
   * @param {string} message
   */
  async #change(work, name, message) {
    const focused = document.activeElement;
    this.element.inert = true;
    await this.#runLatest(
      work,
      () => this.done(name, message),
      (error) => {
        this.element.inert = false;
        if (document.activeElement === document.body && focused instanceof HTMLElement) focused.focus();
        this.status.replaceChildren(problem(error));
      },
    );
  }

  async #preview() {
    const template = this.template;
    await this.#runLatest(
      () => /** @type {Promise<RenderedTemplate>} */ (request("POST", `${this.#path(this.#name)}/try`, { template, values: previewValues(template) })),
      ({ text }) => {
        this.status.replaceChildren();
        this.preview.replaceChildren(make("h3", {}, "Preview"), make("div", { class: "dk-said-text" }, text));
        this.preview.hidden = false;
      },
      (error) => {
        this.preview.hidden = true;
        this.status.replaceChildren(problem(error));
      },
    );
  }
}
