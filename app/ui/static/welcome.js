// What stands where a new chat has no messages yet: the model, questions to begin with, and whether it is to be kept.

import { byId, make } from "./dom.js";

const EXAMPLES = [
  "Hi! What can you do?",
  "How do I make answers less random?",
  "What does top-p do?",
  "How do I use another model?",
];

const TEMPORARY = "It is kept in memory only: not in the list, and gone when Deskmate stops, or after a day.";

export class Welcome {
  temporary = false; // the next new chat is kept in memory only

  constructor(options, choose) {
    this.element = byId("dm-welcome");
    const example = (text) => make("li", {}, make("button", { type: "button", onclick: () => choose(text) }, text));
    byId("dm-examples").replaceChildren(...EXAMPLES.map(example));
    byId("dm-temporary").addEventListener("click", () => this.#makeTemporary(!this.temporary));
    this.describe(options);
  }

  // Every new chat is kept, unless the person chooses otherwise for this one. `exists`: the conversation is there already,
  // and has no messages any more.
  show({ exists = false } = {}) {
    this.element.hidden = false;
    byId("dm-temporary").hidden = exists;
    this.#makeTemporary(false);
  }

  hide() {
    this.element.hidden = true;
  }

  describe({ model, accounts, retention_days: days }) {
    const place = model.remote
      ? "which runs on another server. What you write is sent there."
      : `which runs on this ${accounts ? "server" : "machine"}. Nothing you write leaves it.`;
    byId("dm-welcome-model").textContent = `You are talking to ${model.name}, ${place}`;
    byId("dm-retention").hidden = days === null;
    byId("dm-retention").textContent = `Conversations without a message for ${days} days are deleted.`;
  }

  #makeTemporary(temporary) {
    this.temporary = temporary;
    byId("dm-temporary").setAttribute("aria-pressed", String(temporary));
    byId("dm-temporary-hint").textContent = temporary ? TEMPORARY : "";
  }
}
