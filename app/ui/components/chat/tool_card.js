// A call of a tool: what the model asked for, what the user decided, and what came of it. Arguments and results are
// data: they are shown as plain text.

import { icon, make } from "../../shared/dom.js";
import { readableArguments } from "./tool_arguments.js";

/** @typedef {import("./types.js").ToolUse} ToolUse */
/** @typedef {keyof import("./types.js").Decision} Choice */

/** @type {Record<ToolUse["status"], string>} */
const STATUSES = { waiting: "may it run?", allowed: "running …", done: "done", failed: "failed", denied: "not allowed" };
/** @type {[Choice, string][]} */
const CHOICES = [["allow", "Allow once"], ["allow_for_chat", "Allow in this chat"], ["deny", "Don't allow"]];
const MAX_SHOWN = 20_000; // characters of a result that are laid out; copying the reply is not affected

export class ToolCard {
  /** @type {Choice | null} what the user has chosen and was not sent yet */
  decision = null;
  #closed = false;

  /** @param {ToolUse} use @param {(() => void) | null} onDecided  null: nothing can be decided here */
  constructor(use, onDecided) {
    this.use = use;
    const [server, ...rest] = use.name.split("__");
    const [title, place] = rest.length > 0 ? [rest.join("__"), server] : [use.name, ""];
    this.status = make("span", { class: "dm-tool-status" });
    this.arguments = make("pre", { class: "dm-tool-data", dir: "ltr", tabindex: "0", "aria-label": "Arguments" });
    this.result = make("pre", { class: "dm-tool-data", dir: "auto", tabindex: "0", "aria-label": "Result" });
    this.resultLabel = make("p", { class: "dm-tool-label" }, "Result");
    /** @type {[Choice, HTMLButtonElement][]} */
    this.choices = CHOICES.map(([choice, text]) => [
      choice,
      make("button", { type: "button", class: "dm-chip", onclick: () => this.#choose(choice, onDecided) }, text),
    ]);
    this.buttons = make(
      "div",
      { class: "dm-tool-buttons", role: "group", "aria-label": `May ${title} run?` },
      ...this.choices.map(([, button]) => button),
    );
    this.canDecide = onDecided !== null;
    this.element = make(
      "details",
      { class: "dm-tool", open: use.status === "waiting", "data-tool": use.name },
      make(
        "summary",
        {},
        icon("tool"),
        make("span", { class: "dm-tool-name", dir: "auto" }, title),
        make("span", { class: "dm-tool-server", dir: "auto" }, place),
        this.status,
      ),
      make("p", { class: "dm-tool-label" }, "Arguments"),
      this.arguments,
      this.resultLabel,
      this.result,
      this.buttons,
    );
    this.show(use);
  }

  get isWaiting() {
    return this.use.status === "waiting";
  }

  /** @param {ToolUse} use */
  show(use) {
    if (this.isWaiting && use.status !== "waiting") this.element.open = false;
    this.use = use;
    this.arguments.textContent = readableArguments(use.arguments);
    const result = use.result ?? "";
    this.result.textContent = result.length > MAX_SHOWN ? `${result.slice(0, MAX_SHOWN)} …` : result;
    this.result.hidden = result === "";
    this.resultLabel.hidden = result === "";
    this.#describe();
  }

  /** The reply has ended. */
  close() {
    this.#closed = true;
    this.#describe();
  }

  /** @param {boolean} busy  the decision is being sent */
  setBusy(busy) {
    for (const [, button] of this.choices) button.disabled = busy;
    if (!busy) this.decision = null;
    this.#describe();
  }

  /** @param {Choice} choice @param {(() => void) | null} onDecided */
  #choose(choice, onDecided) {
    this.decision = choice;
    this.#describe();
    onDecided?.();
  }

  #describe() {
    const { status, seconds } = this.use;
    this.element.dataset.status = status;
    let text = STATUSES[status];
    if (status === "allowed" && this.#closed) text = "cut off";
    if (status === "done" && typeof seconds === "number") text = `done in ${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
    if (this.decision) text = this.decision === "deny" ? "not allowed" : "allowed";
    this.status.textContent = text;
    this.buttons.hidden = !(this.isWaiting && this.canDecide && this.#closed);
    for (const [choice, button] of this.choices) button.setAttribute("aria-pressed", String(choice === this.decision));
  }
}
