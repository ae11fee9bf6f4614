// Server-sent events by fetch: EventSource cannot send a token in a header.

/** @typedef {{id: string | null, name: string, data: string}} ServerEvent */

/** Reads events from pieces of text, wherever they are cut. */
export class EventParser {
  #rest = "";
  #name = "";
  /** @type {string[]} */
  #data = [];
  /** @type {string | null} */
  #id = null;

  /** @param {string} piece @returns {ServerEvent[]} the events that are complete now */
  push(piece) {
    // A carriage return at the end may be half of a line's end.
    const text = this.#rest + piece;
    const whole = text.endsWith("\r") ? text.slice(0, -1) : text;
    const lines = whole.split(/\r\n|\n|\r/);
    this.#rest = (lines.pop() ?? "") + text.slice(whole.length);
    return lines.flatMap((line) => this.#line(line));
  }

  /** @param {string} line @returns {ServerEvent[]} */
  #line(line) {
    if (line === "") {
      const event = { id: this.#id, name: this.#name || "message", data: this.#data.join("\n") };
      const isEmpty = this.#data.length === 0;
      this.#name = "";
      this.#data = [];
      return isEmpty ? [] : [event];
    }
    const [, field, value = ""] = /^([^:]*)(?:: ?(.*))?$/s.exec(line) ?? [];
    if (field === "event") this.#name = value;
    else if (field === "data") this.#data.push(value);
    else if (field === "id" && !value.includes("\0")) this.#id = value;
    return [];
  }
}

const FIRST_RETRY_MS = 1000;
const MAX_RETRY_MS = 30_000;
/** The server says something at least every 15 seconds; a connection that is silent for longer is dead. */
const SILENCE_MS = 45_000;

/** Follows the stream, and opens it again where it ended. */
export class EventStream {
  /** Where the stream goes on. @type {string | null} */
  lastEventId = null;
  #retryMs = FIRST_RETRY_MS;
  #isClosed = false;
  #controller = new AbortController();
  /** @type {(() => void) | null} ends the pause before the next attempt */
  #wake = null;

  /**
   * @param {(lastEventId: string | null, signal: AbortSignal) => Promise<Response>} open
   * @param {object} listener
   * @param {(event: ServerEvent) => void} listener.onEvent
   * @param {(isOnline: boolean) => void} listener.onConnection
   * @param {(error: any) => boolean} listener.onRefusal  returns whether to go on
   */
  constructor(open, { onEvent, onConnection, onRefusal }) {
    this.open = open;
    this.onEvent = onEvent;
    this.onConnection = onConnection;
    this.onRefusal = onRefusal;
  }

  /** Resolves once it is closed, or was refused. */
  async run() {
    while (!this.#isClosed) {
      this.#controller = new AbortController();
      /** @type {number | null} */
      let retryAfterS = null;
      try {
        const response = await this.open(this.lastEventId, this.#controller.signal);
        if (this.#isClosed) return;
        this.onConnection(true);
        await this.#read(response);
      } catch (error) {
        if (this.#isClosed || !this.onRefusal(error)) return;
        retryAfterS = /** @type {any} */ (error)?.retryAfterS ?? null;
      }
      if (this.#isClosed) return;
      this.onConnection(false);
      await this.#pause(retryAfterS);
    }
  }

  /** Tries again now: the browser is online again. */
  wake() {
    this.#retryMs = FIRST_RETRY_MS;
    this.#wake?.();
  }

  close() {
    this.#isClosed = true;
    this.#controller.abort();
    this.#wake?.();
  }

  /** @param {Response} response */
  async #read(response) {
    const reader = response.body?.pipeThrough(new TextDecoderStream()).getReader();
    const parser = new EventParser();
    while (reader) {
      const timer = setTimeout(() => this.#controller.abort(), SILENCE_MS);
      const { value, done } = await reader.read().finally(() => clearTimeout(timer));
      if (done || this.#isClosed) return;
      this.#retryMs = FIRST_RETRY_MS;
      for (const event of parser.push(value)) {
        if (event.id !== null) this.lastEventId = event.id || null;
        this.onEvent(event);
      }
    }
  }

  /** @param {number | null} retryAfterS  the server's wish */
  async #pause(retryAfterS) {
    const wanted = retryAfterS === null ? this.#retryMs : Math.max(retryAfterS * 1000, this.#retryMs);
    this.#retryMs = Math.min(this.#retryMs * 2, MAX_RETRY_MS);
    /** @type {Promise<void>} */
    const woken = new Promise((resolve) => {
      const timer = setTimeout(resolve, wanted * (0.75 + Math.random() / 2)); // spread: all visitors lose the server at once
      this.#wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
    await woken;
    this.#wake = null;
  }
}
