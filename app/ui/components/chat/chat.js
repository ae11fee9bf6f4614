// The messages of a conversation, and the welcome screen of an empty one.

import { Component } from "../../shared/component.js";
import { prepareAnnouncements } from "../../shared/dom.js";
import { MessageList } from "./messages.js";
import { readValue } from "./value.js";
import { Welcome } from "./welcome.js";

const UNCHANGING = new Set(["copy", "source", "version"]); // actions of a read-only chat

export class Chat extends Component {
  /** @type {Map<string, {index: number, id: string | null}>} where the value has the shown messages */
  #places = new Map();

  /** @param {import("../../shared/component.js").Context} context */
  constructor(context) {
    super(context);
    prepareAnnouncements();
    this.messages = new MessageList(
      { scroller: this.find(".dm-scroll"), list: this.find(".dm-messages"), latest: this.find(".dm-latest") },
      {
        offers: (name) => this.#offers(name),
        edit: (id, text) => this.#emit("edit", id, { text }),
        regenerate: (id) => this.#emit("regenerate", id),
        resume: (id, isLast) => this.#emit("resume", id, isLast ? {} : { as_version: true }),
        rewrite: (id, text) => this.#emit("rewrite", id, { text }),
        compare: (id) => this.#emit("compare", id),
        keep: (id) => this.#emit("keep", id),
        useSettings: (id) => this.#emit("use_settings", id),
        decide: (id, decision) => this.#emit("decide", id, decision),
        branch: (id) => this.#emit("branch", id),
        prompt: (id) => this.#emit("prompt", id),
        lens: (id) => this.#ask("lens", id),
        lensChoice: (id, index) => this.#ask("lens_choice", id, { index }),
        branchAt: (id, index, token_id) => this.#emit("branch_at", id, { index, token_id }),
        remove: (id) => this.#emit("delete", id),
        show: (id, step, shown) => this.#emit("version", shown, { id, step }),
        rate: (id, feedback) => this.#emit(feedback ? "rate" : "unrate", id, feedback ?? {}),
        openSource: (id, citation) => this.#emit("source", id, { citation }),
        mark: (id, citation) => this.#emit("mark", id, { citation }),
        draftKey: (id) => (this.props.keep_edits && this.#placeOf(id).id !== null ? `deskmate.edit.${id}` : null),
        limitOf: (model) => (this.props.loaded_model?.name === model ? this.props.loaded_model.decode_limit : null),
        onError: (error) => this.emit("error", error),
      },
    );
    this.welcome = new Welcome(this.find(".dm-welcome"), {
      onExample: (text) => this.emit("example_select", { text }),
      onSuggestion: () => this.emit("suggestion_select"),
      onTemporary: (temporary) => this.emit("temporary", { temporary }),
    });
    /** @type {HTMLButtonElement} */
    this.earlier = this.find(".dm-earlier");
    this.earlier.addEventListener("click", () => this.emit("earlier"));
    this.#describe();
    this.#showValue();
    this.watch("value", () => this.#showValue());
    this.watch(["heading", "introduction", "suggestion", "examples", "temporary_hint", "has_earlier", "can_continue", "height"], () =>
      this.#describe(),
    );
    this.watch(["actions", "read_only"], () => {
      this.#describe();
      this.messages.clear(); // every message has other buttons now
      this.#showValue();
    });
  }

  /**
   * Changes props, as an update from Python does. `actions` and `read_only` apply to messages that are shown from now on.
   * @param {Record<string, unknown>} changes
   */
  setProps(changes) {
    Object.assign(this.props, changes);
    this.#describe();
  }

  /** @param {string} name */
  #offers(name) {
    if (this.props.read_only && !UNCHANGING.has(name)) return false;
    if (name === "lens" || name === "prompt") return this.props.can_inspect !== undefined; // only a page's script can answer it
    return (this.props.actions ?? []).includes(name);
  }

  #describe() {
    const { height, has_earlier: hasEarlier, can_continue: canContinue } = this.props;
    this.welcome.describe(this.props);
    this.earlier.hidden = !hasEarlier;
    this.element.classList.toggle("dm-cannot-continue", canContinue === false);
    this.element.classList.toggle("dm-cannot-inspect", this.props.can_inspect !== true);
    this.element.style.height = typeof height === "number" ? `${height}px` : (height ?? "");
    this.element.style.flex = height === null || height === undefined ? "" : "none";
  }

  #showValue() {
    const { messages, places } = readValue(this.props.value);
    this.#places = places;
    if (messages.length === 0) this.welcome.show();
    else this.welcome.hide();
    this.messages.show(messages);
  }

  // A page that shows messages itself has no value: their ids are their own.
  /** @param {string} id @returns {{index: number | null, id: string | null}} */
  #placeOf(id) {
    return this.#places.get(id) ?? { index: null, id };
  }

  /** Raises an event whose result a page's script returns. @param {string} event @param {string} id @param {object} detail @returns {Promise<any>} */
  async #ask(event, id, detail = {}) {
    return this.#emit(event, id, detail);
  }

  /** Raises an event of a shown message. @param {string} event @param {string} id @param {object} detail */
  #emit(event, id, detail = {}) {
    return this.emit(event, { ...this.#placeOf(id), ...detail });
  }
}

/** @param {import("../../shared/component.js").Context} context */
export const mount = (context) => new Chat(context);
