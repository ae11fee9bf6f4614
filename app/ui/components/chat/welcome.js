// The welcome screen of an empty chat: the model, example questions and the temporary chat toggle.

import { byId, make } from "../../shared/dom.js";

const EXAMPLES = [
  "Hi! What can you do?",
  "How do I make answers less random?",
  "What does top-p do?",
  "How do I use another model?",
];

const TEMPORARY = "Kept in memory only. It isn't listed, and it's deleted after a day or when Deskmate stops.";

export class Welcome {
  temporary = false; // whether the next new chat is kept in memory only

  constructor(choose) {
    this.element = byId("dm-welcome");
    const example = (text) => make("li", {}, make("button", { type: "button", onclick: () => choose(text) }, text));
    byId("dm-examples").replaceChildren(...EXAMPLES.map(example));
    byId("dm-temporary").addEventListener("click", () => this.#makeTemporary(!this.temporary));
  }

  // Shows the screen with the temporary toggle off. `exists`: the conversation is saved already, but its messages were
  // deleted, so it can't become temporary.
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
