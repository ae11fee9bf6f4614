// Prompts and canned replies: a list, and next to it the selected one with its versions.

import { api, request } from "../../shared/api.js";
import { announce, make } from "../../shared/dom.js";
import { button } from "./controls.js";
import { isAdmin, problem, register } from "./desk.js";
import { Editor } from "./template_editor.js";
import { KINDS, sourceText, versionName } from "./template_text.js";
import { versionList } from "./template_versions.js";

/** @import { TemplateView, ToolServerView, Viewer } from "../../shared/api_types.js" */
/** @import { ParameterOptions } from "../../shared/page_options.js" */
/** @import { TemplateKind } from "./template_fields.js" */

class Section {
  /** @type {TemplateView[]} */
  stored = [];
  /** @type {ParameterOptions[]} those that a prompt can recommend */
  parameters = [];
  /** @type {ToolServerView[]} those that a prompt can offer */
  toolServers = [];
  /** @type {Editor | null} the open editor; null while the saved version is being reloaded */
  editor = null;
  #loads = 0;

  /** @param {TemplateKind} kind @param {Viewer} viewer */
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

  /**
   * Loads the list, and opens an entry unless one is being edited.
   * @param {string | null} open  its name; the first entry if there is none of this name
   * @param {string} message  shown with it
   */
  async load(open = null, message = "") {
    const mine = ++this.#loads;
    const choosesTools = this.kind === "prompt" && isAdmin(this.viewer);
    const [stored, { parameters }, toolServers] = await Promise.all([
      /** @type {Promise<TemplateView[]>} */ (request("GET", this.path)),
      api.options(),
      choosesTools ? /** @type {Promise<ToolServerView[]>} */ (request("GET", "/api/desk/tools")) : [],
    ]);
    if (mine !== this.#loads) return;
    this.stored = stored;
    this.parameters = parameters.filter((each) => each.is_recommendable);
    this.toolServers = toolServers;
    this.list.replaceChildren(...stored.map((each) => this.#entry(each)));
    this.work.inert = false;
    if (this.editor !== null) {
      this.#mark(this.editor.saved?.name); // another entry was opened meanwhile
      return;
    }
    const chosen = stored.find(({ name }) => name === open) ?? stored[0];
    if (chosen) await this.#show(chosen, message);
  }

  /** @param {TemplateView} stored */
  #entry(stored) {
    const { name, template, removed } = stored;
    const open = () => {
      if (this.#leave()) this.#show(stored);
    };
    return make(
      "li",
      {},
      make(
        "button",
        { type: "button", class: "dm-option dk-entry", "data-name": name, onclick: open },
        make("strong", {}, template.title),
        make("span", {}, template.description),
        make("small", {}, removed ? `Removed ${sourceText(stored)}` : `${versionName(stored)}, ${sourceText(stored)}`),
      ),
    );
  }

  /** Highlights the entry that is being edited. @param {string} [name]  none for a new one */
  #mark(name) {
    for (const entry of /** @type {NodeListOf<HTMLElement>} */ (this.list.querySelectorAll(".dk-entry"))) {
      if (entry.dataset.name === name) entry.setAttribute("aria-current", "true");
      else entry.removeAttribute("aria-current");
    }
  }

  /** Whether the editor may be left. Asks the user if there are unsaved changes. */
  #leave() {
    return !this.editor?.changed || confirm("You have unsaved changes. Discard them?");
  }

  #new() {
    if (!this.#leave()) return;
    const editor = this.#edit(null);
    this.#mark();
    this.work.replaceChildren(make("h2", {}, `New ${KINDS[this.kind].noun}`), editor.element);
    editor.title.focus();
  }

  /** @param {TemplateView | null} saved */
  #edit(saved) {
    const editor = new Editor(this, saved, (name, message) => this.#reload(editor, name, message));
    this.editor = editor;
    this.work.inert = false;
    return editor;
  }

  /**
   * Shows what has been saved, unless another entry than that of `editor` was opened meanwhile.
   * @param {Editor} editor
   * @param {string} name
   * @param {string} message
   */
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

  /** @param {TemplateView} stored */
  async #show(stored, message = "") {
    this.#mark(stored.name);
    const editor = this.#edit(stored);
    const history = make("details", { class: "dk-history" }, make("summary", {}, "Versions"));
    const removed = "This entry was removed, so users can't choose it. Save it or restore a version to bring it back.";
    this.work.replaceChildren(
      make("h2", {}, stored.template.title),
      make("p", { class: "dm-hint" }, `${stored.name} · ${versionName(stored)}, ${sourceText(stored)}`),
      ...(stored.removed ? [make("p", { class: "dm-alert" }, removed)] : []),
      editor.element,
      history,
    );
    if (message) editor.status.replaceChildren(make("p", {}, message));
    /** @param {TemplateView} version @param {HTMLElement} line */
    const restore = (version, line) => this.#restore(editor, stored, version, line);
    try {
      /** @type {TemplateView[]} */
      const versions = await request("GET", `${this.path}/${encodeURIComponent(stored.name)}/versions`);
      history.append(versionList(stored, versions, isAdmin(this.viewer) ? restore : null));
      history.open = versions.length > 1;
    } catch (error) {
      history.append(problem(error));
    }
  }

  /** @param {Editor} editor @param {TemplateView} current @param {TemplateView} version @param {HTMLElement} line */
  async #restore(editor, { name, version: after }, version, line) {
    if (!this.#leave()) return;
    this.work.inert = true; // as in #reload
    try {
      await request("POST", `${this.path}/${encodeURIComponent(name)}/restore`, { version: version.version, after });
    } catch (error) {
      this.work.inert = false;
      line.append(problem(error));
      return;
    }
    this.#reload(editor, name, `${versionName(version)} is in use again.`);
  }
}

/** @type {Map<TemplateKind, Section>} kept so that unsaved changes survive switching sections */
const opened = new Map();
/** @param {Section | undefined} section */
const isUnsaved = (section) => section?.editor?.changed ?? false;

/** @param {TemplateKind} kind */
const show = (kind) => (/** @type {HTMLElement} */ place, /** @type {Viewer} */ viewer) => {
  const kept = opened.get(kind);
  const section = kept && isUnsaved(kept) ? kept : new Section(kind, viewer);
  opened.set(kind, section);
  place.append(...section.parts);
  if (section === kept) section.editor?.status.replaceChildren(make("p", {}, "Your changes are still here but not saved yet."));
  return section.load();
};

addEventListener("beforeunload", (event) => {
  if ([...opened.values()].some(isUnsaved)) event.preventDefault(); // the browser asks for confirmation
});

register({ id: "prompts", title: "Prompts", show: show("prompt") });
register({ id: "canned", title: "Canned replies", show: show("canned") });
