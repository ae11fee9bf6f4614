// Tells the server that this user looks at a case, and whether they type.

const BEAT_MS = 15_000;
const TYPING_MS = 6000; // without a key for this long, the user does not type any more

export class Presence {
  #isTyping = false;
  #isClosed = false;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #stopTimer;

  /** @param {(presence: {typing: boolean, here: boolean}) => Promise<unknown>} tell */
  constructor(tell) {
    this.tell = tell;
    this.beat = setInterval(() => this.#beat(), BEAT_MS);
    this.leave = () => this.#tell(false);
    addEventListener("pagehide", this.leave);
    this.#beat();
  }

  /** The user types a reply. */
  typing() {
    clearTimeout(this.#stopTimer);
    this.#stopTimer = setTimeout(() => this.#set(false), TYPING_MS);
    this.#set(true);
  }

  /** The text was sent, or is gone. */
  stopped() {
    clearTimeout(this.#stopTimer);
    this.#set(false);
  }

  close() {
    if (this.#isClosed) return;
    this.#isClosed = true;
    clearTimeout(this.#stopTimer);
    clearInterval(this.beat);
    removeEventListener("pagehide", this.leave);
    this.#tell(false);
  }

  /** @param {boolean} isTyping */
  #set(isTyping) {
    if (isTyping === this.#isTyping) return;
    this.#isTyping = isTyping;
    this.#beat();
  }

  #beat() {
    if (!this.#isClosed && document.visibilityState !== "hidden") this.#tell(true);
  }

  // Only a convenience: what goes wrong here is no trouble of the user's.
  /** @param {boolean} here */
  #tell(here) {
    this.tell({ typing: here && this.#isTyping, here }).catch(() => undefined);
  }
}

/**
 * What a user is told of the others who have the same case open; empty: there are none.
 * @param {{id: string, name: string, typing: boolean}[]} present
 * @param {string} me
 */
export function presenceText(present, me) {
  const others = present.filter(({ id }) => id !== me);
  const typing = others.filter((each) => each.typing).map(({ name }) => name);
  const reading = others.filter((each) => !each.typing).map(({ name }) => name);
  const parts = [];
  if (typing.length) parts.push(`${names(typing)} ${typing.length === 1 ? "is" : "are"} writing`);
  if (reading.length) parts.push(`${names(reading)} ${reading.length === 1 ? "is" : "are"} looking at this case`);
  return parts.length ? `${parts.join("; ")}.` : "";
}

/** @param {string[]} list */
const names = (list) => (list.length < 2 ? list.join("") : `${list.slice(0, -1).join(", ")} and ${list.at(-1)}`);
