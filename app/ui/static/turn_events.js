// The events of replies in flight. All tabs of a browser share one event stream, because a browser
// opens only six connections to a host: the tab that holds a lock reads for all of them and passes
// events on. A tab wants the lock as long as it follows a turn and a while after, so when the reader
// closes or is done the next one takes over, and each tab continues at its own offset. In that while
// the stream stays open, and the reply to another message is told in it without another request.

import { api, randomId } from "./api.js";
import { crossTab } from "./cross_tab.js";

const LOCK = "deskmate-turn-events";
const EVENT_NAMES = ["text", "progress", "notice", "end", "gone"];
const FIRST_RETRY_MS = 400;
const MAX_RETRY_MS = 5000;
const LINGER_MS = 60_000;
const SILENT_MS = 3000; // nothing of a reply in so long: the stream may be dead, as after a sleep of the machine
const CAN_SHARE = navigator.locks !== undefined && crossTab.isAvailable;

// Offsets count characters as Python does: code points, not UTF-16 units.
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

// Opens the browser's one stream while this tab is the reader.
class Reader {
  constructor(deliver, report, announce) {
    this.deliver = deliver; // (turnId, name, data)
    this.report = report; // (connected)
    this.announce = announce; // (streamId, or null while there is no open stream)
    this.streamId = null;
    this.positions = new Map(); // turn id -> offset reached
    this.source = null;
    this.retryMs = FIRST_RETRY_MS;
    this.timer = null;
  }

  // `inStreamId`: the stream in which the server tells of the turn already.
  follow(turnId, offset, inStreamId = null) {
    const reached = this.positions.get(turnId);
    if (reached !== undefined && reached <= offset) return;
    this.positions.set(turnId, offset);
    if (inStreamId === null || inStreamId !== this.streamId) {
      this.#scheduleOpen(10); // several tabs answer at once; one opening serves them all
      return;
    }
    setTimeout(() => {
      if (this.streamId === inStreamId && this.positions.get(turnId) === offset) this.#scheduleOpen(0);
    }, SILENT_MS);
  }

  close() {
    clearTimeout(this.timer);
    this.source?.close();
    this.source = null;
    this.#setStreamId(null);
  }

  #setStreamId(streamId) {
    if (streamId === this.streamId) return;
    this.streamId = streamId;
    this.announce(streamId);
  }

  #scheduleOpen(milliseconds) {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.#open(), milliseconds);
  }

  #open() {
    this.close();
    if (this.positions.size === 0) return;
    const turns = [...this.positions].map(([turn, offset]) => ["turn", `${turn}:${offset}`]);
    const streamId = randomId();
    const source = new EventSource(`/api/events?${new URLSearchParams([...turns, ["stream_id", streamId]])}`);
    this.source = source;
    source.onopen = () => {
      this.retryMs = FIRST_RETRY_MS;
      this.#setStreamId(streamId);
      this.report(true);
    };
    source.onerror = () => {
      // Refused, and not cut off: should the session have ended, asking who one is leads to the way in.
      if (source.readyState === EventSource.CLOSED) api.account().catch(() => {});
      this.close(); // its own retry would ask again from where this stream began
      if (this.positions.size === 0) return; // nobody waits for anything
      this.report(false);
      this.#scheduleOpen(this.retryMs);
      this.retryMs = Math.min(this.retryMs * 2, MAX_RETRY_MS);
    };
    for (const name of EVENT_NAMES) {
      source.addEventListener(name, (event) => this.#receive(name, JSON.parse(event.data)));
    }
  }

  #receive(name, data) {
    const turnId = data.turn_id;
    if (name === "text") this.positions.set(turnId, data.offset);
    if (name === "end" || name === "gone") this.positions.delete(turnId);
    this.deliver(turnId, name, data);
  }
}

class TurnEvents {
  #followed = new Map(); // turn id -> {offset, listener}
  #reader = null;
  #releaseLock = null; // gives up the lock, or the place in its queue
  #releaseTimer = null; // a timer: then it is left
  #streamId = null; // of the browser's stream, while one is open
  #pendingSends = 0; // messages on their way
  #earlyEvents = new Map(); // turn id -> what came of it before this tab knew that it is its own: [name, data]

  constructor() {
    crossTab.on("follow", ({ turns, inStreamId }) => {
      for (const [turnId, offset] of turns) this.#reader?.follow(turnId, offset, inStreamId);
    });
    crossTab.on("stream-named", ({ streamId }) => (this.#streamId = streamId));
    crossTab.on("who-follows", () => this.#broadcastFollowed());
    crossTab.on("turn-event", ({ turnId, name, data }) => this.#dispatch(turnId, name, data));
    crossTab.on("stream-state", ({ connected }) => this.#reportConnection(connected));
  }

  // Before a message is sent: the stream that its reply can be told in, or null. What is told there before the answer
  // says which turn it is waits for `follow`; call `done` after that.
  expect() {
    this.#pendingSends++;
    const done = () => {
      this.#pendingSends--;
      if (this.#pendingSends === 0) this.#earlyEvents.clear();
    };
    return { streamId: this.#streamId, done };
  }

  // Calls listener.text(newText), .progress({processed, total}), .notice(message), .end(event), .gone()
  // and .connection(connected) until the turn ends or the returned function is called.
  // `inStreamId`: the stream in which the server tells of the turn already; null where it has to be asked.
  follow(turnId, offset, listener, inStreamId = null) {
    this.#followed.set(turnId, { offset, listener });
    clearTimeout(this.#releaseTimer);
    if (!this.#releaseLock) this.#acquireLock();
    for (const [name, data] of this.#earlyEvents.get(turnId) ?? []) this.#dispatch(turnId, name, data);
    if (this.#followed.has(turnId)) this.#subscribe(turnId, inStreamId);
    return () => {
      if (this.#followed.get(turnId)?.listener === listener) this.#unfollow(turnId);
    };
  }

  #acquireLock() {
    if (!CAN_SHARE) {
      this.#startReader();
      this.#releaseLock = () => this.#stopReader();
      return;
    }
    const giveUp = new AbortController();
    const released = new Promise((resolve) => {
      this.#releaseLock = () => {
        giveUp.abort();
        this.#stopReader();
        resolve();
      };
    });
    navigator.locks
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
    this.#reader = new Reader(
      (turnId, name, data) => {
        crossTab.broadcast("turn-event", { turnId, name, data });
        this.#dispatch(turnId, name, data);
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
    for (const [turnId, { offset }] of this.#followed) this.#reader.follow(turnId, offset);
    crossTab.broadcast("who-follows");
  }

  #stopReader() {
    this.#reader?.close();
    this.#reader = null;
  }

  #subscribe(turnId, inStreamId = null) {
    const { offset } = this.#followed.get(turnId);
    if (this.#reader) this.#reader.follow(turnId, offset, inStreamId);
    else crossTab.broadcast("follow", { turns: [[turnId, offset]], inStreamId });
  }

  #broadcastFollowed() {
    if (this.#followed.size === 0) return;
    crossTab.broadcast("follow", { turns: [...this.#followed].map(([turnId, { offset }]) => [turnId, offset]) });
  }

  #dispatch(turnId, name, data) {
    const followed = this.#followed.get(turnId);
    if (!followed) {
      if (this.#pendingSends > 0) this.#earlyEvents.set(turnId, [...(this.#earlyEvents.get(turnId) ?? []), [name, data]]);
      return;
    }
    const { listener } = followed;
    if (name === "text") {
      // Another tab may have asked from an earlier place: take only what is new here.
      const start = data.offset - codePoints(data.text);
      if (data.offset <= followed.offset) return;
      if (start > followed.offset) {
        this.#subscribe(turnId);
        return;
      }
      const fresh = start === followed.offset ? data.text : [...data.text].slice(followed.offset - start).join("");
      followed.offset = data.offset;
      listener.text(fresh);
    } else if (name === "progress") listener.progress(data);
    else if (name === "notice") listener.notice(data.message);
    else {
      if (name === "end" && data.offset > followed.offset) {
        this.#subscribe(turnId); // text was missed on the way; the end comes again after it
        return;
      }
      this.#unfollow(turnId);
      if (name === "end") listener.end(data);
      else listener.gone();
    }
  }

  #reportConnection(connected) {
    for (const { listener } of [...this.#followed.values()]) listener.connection(connected);
  }

  #unfollow(turnId) {
    this.#followed.delete(turnId);
    if (this.#followed.size > 0 || !this.#releaseLock) return;
    clearTimeout(this.#releaseTimer);
    this.#releaseTimer = setTimeout(
      () => {
        const leave = this.#releaseLock;
        this.#releaseLock = null;
        leave();
      },
      CAN_SHARE ? LINGER_MS : 0, // a stream for each tab would soon be too many
    );
  }
}

export const turnEvents = new TurnEvents();
