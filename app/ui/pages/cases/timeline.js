// The line of time of a case: its messages, what happened between them, and the days.

/** @import { CaseDetail, CaseEvent, CaseMessage, Delta } from "./types.js" */

/**
 * @typedef {{kind: "day", key: string, at: string} | {kind: "message", key: string, at: string, message: CaseMessage} |
 *   {kind: "event", key: string, at: string, event: CaseEvent}} Line
 */

/** Kinds of events that their message tells. */
const TOLD_BY_MESSAGES = new Set(["replied"]);

/** @param {string} iso */
const dayOf = (iso) => new Date(iso).toDateString();

export class Timeline {
  /** @type {Map<string, CaseMessage>} */
  messages = new Map();
  /** @type {Map<string, CaseEvent>} */
  events = new Map();

  /**
   * Shows what the server has. Text that is being written and was heard further than that stays, as do messages from
   * before those of the answer.
   * @param {Pick<CaseDetail, "messages" | "events" | "has_earlier">} detail
   */
  load({ messages, events, has_earlier: hasEarlier }) {
    const heard = this.messages;
    const start = Date.parse(messages[0]?.created_at ?? "");
    const earlier = hasEarlier ? [...heard.values()].filter((message) => Date.parse(message.created_at) < start) : [];
    this.messages = new Map([...earlier, ...messages.map((message) => newer(heard.get(message.id), message))].map((message) => [message.id, message]));
    this.events = new Map(events.map((event) => [event.id, event]));
  }

  /** Adds messages from before those that are there. @param {CaseMessage[]} messages */
  addEarlier(messages) {
    for (const message of messages) if (!this.messages.has(message.id)) this.messages.set(message.id, message);
  }

  /** @returns {CaseMessage | null} */
  get first() {
    return this.#sorted[0] ?? null;
  }

  /** The last message of the customer. @returns {CaseMessage | null} */
  get lastOfContact() {
    // Read for every part of a draft that is being written, so the lines are not made and sorted for it.
    let last = null;
    for (const message of this.messages.values()) {
      if (message.author.kind === "contact" && (last === null || compare(last, message) < 0)) last = message;
    }
    return last;
  }

  get #sorted() {
    return this.lines.flatMap((line) => (line.kind === "message" ? [line.message] : []));
  }

  /** @param {CaseMessage} message */
  addMessage(message) {
    this.messages.set(message.id, newer(this.messages.get(message.id), message));
  }

  /** @param {CaseEvent} event */
  addEvent(event) {
    this.events.set(event.id, event);
  }

  /**
   * More of the text of a message. Returns whether it fits what is there: if not, something was missed and the case is to
   * be loaded again. What was heard before changes nothing.
   * @param {Delta} delta
   */
  addText({ message_id: id, offset, text }) {
    const message = this.messages.get(id);
    if (!message) return false;
    const points = [...message.text];
    if (offset > points.length) return false;
    const fresh = [...text].slice(points.length - offset).join("");
    if (fresh !== "") this.messages.set(id, { ...message, text: message.text + fresh });
    return true;
  }

  /** @returns {Line[]} oldest first */
  get lines() {
    const said = [...this.messages.values()].map((message) => /** @type {Line} */ ({ kind: "message", key: `m${message.id}`, at: message.created_at, message }));
    const happened = [...this.events.values()]
      .filter(({ kind }) => !TOLD_BY_MESSAGES.has(kind))
      .map((event) => /** @type {Line} */ ({ kind: "event", key: `e${event.id}`, at: event.at, event }));
    const sorted = [...said, ...happened].sort((a, b) => Date.parse(a.at) - Date.parse(b.at) || rank(a) - rank(b) || (a.key < b.key ? -1 : 1));
    /** @type {Line[]} */
    const lines = [];
    let day = "";
    for (const line of sorted) {
      if (dayOf(line.at) !== day) {
        day = dayOf(line.at);
        lines.push({ kind: "day", key: `d${day}`, at: line.at });
      }
      lines.push(line);
    }
    return lines;
  }
}

/** Compares messages as their lines are sorted. @param {CaseMessage} a @param {CaseMessage} b */
const compare = (a, b) => Date.parse(a.created_at) - Date.parse(b.created_at) || (a.id < b.id ? -1 : 1);

/** Of the same moment: a case is opened before its first message, and everything else follows from a message. @param {Line} line */
const rank = (line) => (line.kind === "message" ? 1 : line.kind === "event" && line.event.kind === "created" ? 0 : 2);

/**
 * The newer state of a message: one that has ended, or the one with more text.
 * @param {CaseMessage | undefined} there
 * @param {CaseMessage} come
 */
function newer(there, come) {
  if (!there || come.status !== "streaming") return come;
  return there.status !== "streaming" || there.text.length > come.text.length ? there : come;
}
