// Events of replies in flight. All tabs of a browser share one event stream, because a browser opens only
// six HTTP/1.1 connections per host. The tab that holds a Web Lock reads the stream and broadcasts the events. A tab
// holds or waits for the lock while it follows a turn and for LINGER_MS after, so when the reading tab closes or is
// done, the next one takes over and each tab continues at its own offset. While the stream lingers, the reply to the
// next message comes through it without another request.

import { api, randomId } from "../../shared/api.js";
import { crossTab } from "./cross_tab.js";

/** @import { TurnCitations, TurnEnd, TurnNotice, TurnProgress, TurnReasoning, TurnText, TurnToolUse } from "../../shared/api_types.js" */

/**
 * What a follower of a reply is told.
 * @typedef {object} Listener
 * @property {(text: string) => unknown} text  new text
 * @property {(text: string, state: {seconds: number | null, ended: boolean}) => unknown} reasoning  new thinking
 * @property {(use: import("../../components/chat/types.js").ToolUse) => unknown} toolUse  a call of a tool, new or changed
 * @property {(citations: TurnCitations["citations"]) => unknown} citations  all that the reply cites so far
 * @property {(progress: TurnProgress) => unknown} progress
 * @property {(message: string) => unknown} notice
 * @property {(end: TurnEnd) => unknown} end
 * @property {() => unknown} gone  the conversation was deleted
 * @property {(connected: boolean) => unknown} connection
 */

/**
 * The data of an event, by the event's name.
 * @typedef {{text: TurnText, reasoning: TurnReasoning, tool_use: TurnToolUse, citations: TurnCitations, progress: TurnProgress, notice: TurnNotice, end: TurnEnd, gone: object}} EventData
 * @typedef {[offset: number, reasoningOffset: number]} Position  in code points
 * @typedef {{[Name in keyof EventData]: [name: Name, data: EventData[Name]]}[keyof EventData]} TurnEvent
 */

const LOCK = "deskmate-turn-events";
/** @type {(keyof EventData)[]} */
const EVENT_NAMES = ["text", "reasoning", "tool_use", "citations", "progress", "notice", "end", "gone"];
const FIRST_RETRY_MS = 400;
const MAX_RETRY_MS = 5000;
const LINGER_MS = 60_000;
const SILENT_MS = 3000; // without an event for this long, the stream may be dead (the computer slept): reopen it

/** Length in code points. Offsets count these, as Python does, not UTF-16 units. @param {string} text */
export function codePoints(text) {
  let count = text.length;
  for (let i = 0; i < text.length; i++) {
    const unit = text.charCodeAt(i);
    if (unit >= 0xd800 && unit <= 0xdbff && i + 1 < text.length) {
      count--;
      i++;
    }
  }
  return count;
}

/** A position as the server reads it. @param {Position} position */
const written = ([offset, reasoningOffset]) => (reasoningOffset > 0 ? `${offset}.${reasoningOffset}` : `${offset}`);

// Reads the browser's shared event stream while this tab holds the lock.
class Reader {
  /**
   * @param {(turnId: string, event: TurnEvent) => void} deliver
   * @param {(connected: boolean) => void} report
   * @param {(streamId: string | null) => void} announce  null: no stream is open
   */
  constructor(deliver, report, announce) {
    this.deliver = deliver;
    this.report = report;
    this.announce = announce;
    /** @type {string | null} */
    this.streamId = null;
    /** @type {Map<string, Position>} the position reached, by turn id */
    this.positions = new Map();
    /** @type {EventSource | null} */
    this.source = null;
    this.retryMs = FIRST_RETRY_MS;
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.timer = undefined;
  }

  /**
   * @param {string} turnId
   * @param {Position} wanted
   * @param {string | null} inStreamId  the stream that carries the turn
   */
  follow(turnId, wanted, inStreamId = null) {
    const reached = this.positions.get(turnId);
    if (reached !== undefined && reached.every((offset, index) => offset <= wanted[index])) return;
    /** @type {Position} */
    const position = reached ? [Math.min(reached[0], wanted[0]), Math.min(reached[1], wanted[1])] : wanted;
    this.positions.set(turnId, position);
    if (inStreamId === null || inStreamId !== this.streamId) {
      this.#scheduleOpen(10); // several tabs subscribe at once; open one stream for all of them
      return;
    }
    setTimeout(() => {
      if (this.streamId === inStreamId && this.positions.get(turnId) === position) this.#scheduleOpen(0);
    }, SILENT_MS);
  }

  close() {
    clearTimeout(this.timer);
    this.source?.close();
    this.source = null;
    this.#setStreamId(null);
  }

  /** @param {string | null} streamId */
  #setStreamId(streamId) {
    if (streamId === this.streamId) return;
    this.streamId = streamId;
    this.announce(streamId);
  }

  /** @param {number} milliseconds */
  #scheduleOpen(milliseconds) {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.#open(), milliseconds);
  }

  #open() {
    this.close();
    if (this.positions.size === 0) return;
    const turns = [...this.positions].map(([turn, position]) => ["turn", `${turn}:${written(position)}`]);
    const streamId = randomId();
    const source = new EventSource(`/api/events?${new URLSearchParams([...turns, ["stream_id", streamId]])}`);
    this.source = source;
    source.onopen = () => {
      this.retryMs = FIRST_RETRY_MS;
      this.#setStreamId(streamId);
      this.report(true);
    };
    source.onerror = () => {
      // CLOSED means refused, not disconnected. If the session has ended, this request redirects to the sign-in page.
      if (source.readyState === EventSource.CLOSED) api.account().catch(() => {});
      this.close(); // EventSource's own retry would start again from this stream's first offsets
      if (this.positions.size === 0) return; // no turn is followed
      this.report(false);
      this.#scheduleOpen(this.retryMs);
      this.retryMs = Math.min(this.retryMs * 2, MAX_RETRY_MS);
    };
    for (const name of EVENT_NAMES) {
      source.addEventListener(name, (event) => this.#receive(name, JSON.parse(event.data)));
    }
  }

  /** @param {keyof EventData} name @param {any} data  as the server sent it */
  #receive(name, data) {
    const turnId = data.turn_id;
    const [offset, reasoningOffset] = this.positions.get(turnId) ?? [0, 0];
    if (name === "text") this.positions.set(turnId, [data.offset, reasoningOffset]);
    if (name === "reasoning") this.positions.set(turnId, [offset, data.offset]);
    if (name === "end" || name === "gone") this.positions.delete(turnId);
    this.deliver(turnId, [name, data]);
  }
}

export class TurnEvents {
  /** @type {Map<string, {position: Position, listener: Listener}>} by turn id */
  #followed = new Map();
  /** @type {Reader | null} */
  #reader = null;
  /** @type {(() => void) | null} releases the lock, or leaves its queue */
  #releaseLock = null;
  /** @type {ReturnType<typeof setTimeout> | undefined} timer that calls #releaseLock after LINGER_MS */
  #releaseTimer;
  /** @type {string | null} id of the browser's stream, or null while none is open */
  #streamId = null;
  #pendingSends = 0; // messages being sent
  /** @type {Map<string, TurnEvent[]>} by turn id: events that arrived before this tab knew the id */
  #earlyEvents = new Map();

  /**
   * @param {import("./cross_tab.js").CrossTab} crossTab
   * @param {LockManager | undefined} locks
   */
  constructor(crossTab, locks) {
    this.crossTab = crossTab;
    this.locks = crossTab.isAvailable ? locks : undefined; // without one of them, each tab has its own stream
    crossTab.on("follow", ({ turns, inStreamId }) => {
      for (const [turnId, position] of turns) this.#reader?.follow(turnId, position, inStreamId);
    });
    crossTab.on("stream-named", ({ streamId }) => {
      this.#streamId = streamId;
    });
    crossTab.on("who-follows", () => this.#broadcastFollowed());
    crossTab.on("turn-event", ({ turnId, name, data }) => this.#dispatch(turnId, /** @type {TurnEvent} */ ([name, data])));
    crossTab.on("stream-state", ({ connected }) => this.#reportConnection(connected));
  }

  // Call before sending a message. Returns the stream that can carry its reply, or null, and `done`. Events that arrive
  // before the response with the turn id are buffered until `follow`; call `done` after that.
  expect() {
    this.#pendingSends++;
    const done = () => {
      this.#pendingSends--;
      if (this.#pendingSends === 0) this.#earlyEvents.clear();
    };
    return { streamId: this.#streamId, done };
  }

  /**
   * Calls the listener until the turn ends or the returned function is called.
   * @param {string} turnId
   * @param {number | Position} start  of the text, or of both; in code points
   * @param {Listener} listener
   * @param {string | null} inStreamId  the stream that already carries the turn's events; null: subscribe to them
   */
  follow(turnId, start, listener, inStreamId = null) {
    /** @type {Position} */
    const position = typeof start === "number" ? [start, 0] : [...start];
    this.#followed.set(turnId, { position, listener });
    clearTimeout(this.#releaseTimer);
    if (!this.#releaseLock) this.#acquireLock();
    for (const event of this.#earlyEvents.get(turnId) ?? []) this.#dispatch(turnId, event);
    const followed = this.#followed.get(turnId);
    if (followed) this.#subscribe(turnId, followed.position, inStreamId);
    return () => {
      if (this.#followed.get(turnId)?.listener === listener) this.#unfollow(turnId);
    };
  }

  #acquireLock() {
    const { locks } = this;
    if (!locks) {
      this.#startReader();
      this.#releaseLock = () => this.#stopReader();
      return;
    }
    const giveUp = new AbortController();
    /** @type {Promise<void>} */
    const released = new Promise((resolve) => {
      this.#releaseLock = () => {
        giveUp.abort();
        this.#stopReader();
        resolve();
      };
    });
    locks
      .request(LOCK, { signal: giveUp.signal }, () => {
        if (giveUp.signal.aborted) return undefined;
        this.#startReader();
        return released;
      })
      .catch((error) => {
        if (error.name !== "AbortError") throw error;
      });
  }

  #startReader() {
    const { crossTab } = this;
    this.#reader = new Reader(
      (turnId, [name, data]) => {
        crossTab.broadcast("turn-event", { turnId, name, data });
        this.#dispatch(turnId, /** @type {TurnEvent} */ ([name, data]));
      },
      (connected) => {
        crossTab.broadcast("stream-state", { connected });
        this.#reportConnection(connected);
      },
      (streamId) => {
        crossTab.broadcast("stream-named", { streamId });
        this.#streamId = streamId;
      },
    );
    for (const [turnId, { position }] of this.#followed) this.#reader.follow(turnId, [...position]);
    crossTab.broadcast("who-follows");
  }

  #stopReader() {
    this.#reader?.close();
    this.#reader = null;
  }

  /** @param {string} turnId @param {Position} position @param {string | null} inStreamId */
  #subscribe(turnId, position, inStreamId = null) {
    if (this.#reader) this.#reader.follow(turnId, [...position], inStreamId);
    else this.crossTab.broadcast("follow", { turns: [[turnId, [...position]]], inStreamId });
  }

  #broadcastFollowed() {
    if (this.#followed.size === 0) return;
    this.crossTab.broadcast("follow", { turns: [...this.#followed].map(([turnId, { position }]) => [turnId, [...position]]) });
  }

  /** @param {string} turnId @param {TurnEvent} event */
  #dispatch(turnId, event) {
    const followed = this.#followed.get(turnId);
    if (!followed) {
      if (this.#pendingSends > 0) this.#earlyEvents.set(turnId, [...(this.#earlyEvents.get(turnId) ?? []), event]);
      return;
    }
    const { listener } = followed;
    const [name, data] = event;
    if (name === "text") {
      const fresh = this.#takeNew(turnId, followed.position, 0, data);
      if (fresh) listener.text(fresh);
    } else if (name === "reasoning") {
      const fresh = this.#takeNew(turnId, followed.position, 1, data);
      // What another tab asked for again is no news here, except for the end.
      const isNews = fresh !== "" || (data.ended && data.offset >= followed.position[1]);
      if (fresh !== null && isNews) listener.reasoning(fresh, data);
    } else if (name === "tool_use") {
      // Its card stands after text that another tab's stream has not brought yet: asked for again, both come in order.
      if (data.use.at > followed.position[0]) this.#subscribe(turnId, followed.position);
      else listener.toolUse(data.use);
    } else if (name === "citations") listener.citations(data.citations);
    else if (name === "progress") listener.progress(data);
    else if (name === "notice") listener.notice(data.message);
    else {
      const [offset, reasoningOffset] = followed.position;
      if (name === "end" && (data.offset > offset || (data.reasoning_offset ?? 0) > reasoningOffset)) {
        this.#subscribe(turnId, followed.position); // some text was missed; subscribe again, which also repeats the end event
        return;
      }
      this.#unfollow(turnId);
      if (name === "end") listener.end(data);
      else listener.gone();
    }
  }

  /**
   * The part of an event's text that this tab does not have: another tab may have subscribed from an earlier offset.
   * Null if text before it is missing, which is then asked for.
   * @param {string} turnId @param {Position} position @param {0 | 1} which @param {{text: string, offset: number}} data
   */
  #takeNew(turnId, position, which, { text, offset }) {
    const start = offset - codePoints(text);
    const reached = position[which];
    if (offset <= reached) return "";
    if (start > reached) {
      this.#subscribe(turnId, position);
      return null;
    }
    position[which] = offset;
    return start === reached ? text : [...text].slice(reached - start).join("");
  }

  /** @param {boolean} connected */
  #reportConnection(connected) {
    for (const { listener } of [...this.#followed.values()]) listener.connection(connected);
  }

  /** @param {string} turnId */
  #unfollow(turnId) {
    this.#followed.delete(turnId);
    if (this.#followed.size > 0 || !this.#releaseLock) return;
    clearTimeout(this.#releaseTimer);
    this.#releaseTimer = setTimeout(
      () => {
        const leave = this.#releaseLock;
        this.#releaseLock = null;
        leave?.();
      },
      this.locks ? LINGER_MS : 0, // without sharing, each tab has its own stream and must not keep it open
    );
  }
}

export const turnEvents = new TurnEvents(crossTab, navigator.locks);
