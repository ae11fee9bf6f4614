// The events of replies in flight. All tabs of a browser share one event stream, because a browser
// opens only six connections to a host: the tab that holds a lock reads for all of them and passes
// events on. A tab wants the lock as long as it follows a turn and a while after, so when the reader
// closes or is done the next one takes over, and each tab continues at its own offset. In that while
// the stream stays open, and the reply to another message is told in it without another request.

import { api, randomId } from "./api.js";
import { tabs } from "./cross_tab.js";

const LOCK = "deskmate-turn-events";
const EVENT_NAMES = ["text", "progress", "notice", "end", "gone"];
const FIRST_RETRY_MS = 400;
const LONGEST_RETRY_MS = 5000;
const LINGER_MS = 60_000;
const SILENT_MS = 3000; // nothing of a reply in so long: the stream may be dead, as after a sleep of the machine
const SHARES = navigator.locks !== undefined && tabs.canTalk;

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

  // `told`: the stream in which the server tells of the turn already.
  follow(turnId, offset, told = null) {
    const reached = this.positions.get(turnId);
    if (reached !== undefined && reached <= offset) return;
    this.positions.set(turnId, offset);
    if (told === null || told !== this.streamId) {
      this.#openIn(10); // several tabs answer at once; one opening serves them all
      return;
    }
    setTimeout(() => {
      if (this.streamId === told && this.positions.get(turnId) === offset) this.#openIn(0);
    }, SILENT_MS);
  }

  close() {
    clearTimeout(this.timer);
    this.source?.close();
    this.source = null;
    this.#name(null);
  }

  #name(streamId) {
    if (streamId === this.streamId) return;
    this.streamId = streamId;
    this.announce(streamId);
  }

  #openIn(milliseconds) {
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
      this.#name(streamId);
      this.report(true);
    };
    source.onerror = () => {
      // Refused, and not cut off: should the session have ended, asking who one is leads to the way in.
      if (source.readyState === EventSource.CLOSED) api.account().catch(() => {});
      this.close(); // its own retry would ask again from where this stream began
      if (this.positions.size === 0) return; // nobody waits for anything
      this.report(false);
      this.#openIn(this.retryMs);
      this.retryMs = Math.min(this.retryMs * 2, LONGEST_RETRY_MS);
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
  #leave = null; // gives up the lock, or the place in its queue
  #lingering = null; // a timer: then it is left
  #streamId = null; // of the browser's stream, while one is open
  #expected = 0; // messages on their way
  #early = new Map(); // turn id -> what came of it before this tab knew that it is its own: [name, data]

  constructor() {
    tabs.on("follow", ({ turns, told }) => {
      for (const [turnId, offset] of turns) this.#reader?.follow(turnId, offset, told);
    });
    tabs.on("stream-named", ({ streamId }) => (this.#streamId = streamId));
    tabs.on("who-follows", () => this.#tellFollowed());
    tabs.on("turn-event", ({ turnId, name, data }) => this.#apply(turnId, name, data));
    tabs.on("stream-state", ({ connected }) => this.#report(connected));
  }

  // Before a message is sent: the stream that its reply can be told in, or null. What is told there before the answer
  // says which turn it is waits for `follow`; call `over` after that.
  expect() {
    this.#expected++;
    const over = () => {
      this.#expected--;
      if (this.#expected === 0) this.#early.clear();
    };
    return { streamId: this.#streamId, over };
  }

  // Calls listener.text(newText), .progress({processed, total}), .notice(message), .end(event), .gone()
  // and .connection(connected) until the turn ends or the returned function is called.
  // `told`: the stream in which the server tells of the turn already; null where it has to be asked.
  follow(turnId, offset, listener, told = null) {
    this.#followed.set(turnId, { offset, listener });
    clearTimeout(this.#lingering);
    if (!this.#leave) this.#enter();
    for (const [name, data] of this.#early.get(turnId) ?? []) this.#apply(turnId, name, data);
    if (this.#followed.has(turnId)) this.#ask(turnId, told);
    return () => {
      if (this.#followed.get(turnId)?.listener === listener) this.#drop(turnId);
    };
  }

  #enter() {
    if (!SHARES) {
      this.#lead();
      this.#leave = () => this.#resign();
      return;
    }
    const giveUp = new AbortController();
    const released = new Promise((resolve) => {
      this.#leave = () => {
        giveUp.abort();
        this.#resign();
        resolve();
      };
    });
    navigator.locks
      .request(LOCK, { signal: giveUp.signal }, () => {
        if (giveUp.signal.aborted) return undefined;
        this.#lead();
        return released;
      })
      .catch((error) => {
        if (error.name !== "AbortError") throw error;
      });
  }

  #lead() {
    this.#reader = new Reader(
      (turnId, name, data) => {
        tabs.tell("turn-event", { turnId, name, data });
        this.#apply(turnId, name, data);
      },
      (connected) => {
        tabs.tell("stream-state", { connected });
        this.#report(connected);
      },
      (streamId) => {
        tabs.tell("stream-named", { streamId });
        this.#streamId = streamId;
      },
    );
    for (const [turnId, { offset }] of this.#followed) this.#reader.follow(turnId, offset);
    tabs.tell("who-follows");
  }

  #resign() {
    this.#reader?.close();
    this.#reader = null;
  }

  #ask(turnId, told = null) {
    const { offset } = this.#followed.get(turnId);
    if (this.#reader) this.#reader.follow(turnId, offset, told);
    else tabs.tell("follow", { turns: [[turnId, offset]], told });
  }

  #tellFollowed() {
    if (this.#followed.size === 0) return;
    tabs.tell("follow", { turns: [...this.#followed].map(([turnId, { offset }]) => [turnId, offset]) });
  }

  #apply(turnId, name, data) {
    const followed = this.#followed.get(turnId);
    if (!followed) {
      if (this.#expected > 0) this.#early.set(turnId, [...(this.#early.get(turnId) ?? []), [name, data]]);
      return;
    }
    const { listener } = followed;
    if (name === "text") {
      // Another tab may have asked from an earlier place: take only what is new here.
      const start = data.offset - codePoints(data.text);
      if (data.offset <= followed.offset) return;
      if (start > followed.offset) {
        this.#ask(turnId);
        return;
      }
      const fresh = start === followed.offset ? data.text : [...data.text].slice(followed.offset - start).join("");
      followed.offset = data.offset;
      listener.text(fresh);
    } else if (name === "progress") listener.progress(data);
    else if (name === "notice") listener.notice(data.message);
    else {
      if (name === "end" && data.offset > followed.offset) {
        this.#ask(turnId); // text was missed on the way; the end comes again after it
        return;
      }
      this.#drop(turnId);
      if (name === "end") listener.end(data);
      else listener.gone();
    }
  }

  #report(connected) {
    for (const { listener } of [...this.#followed.values()]) listener.connection(connected);
  }

  #drop(turnId) {
    this.#followed.delete(turnId);
    if (this.#followed.size > 0 || !this.#leave) return;
    clearTimeout(this.#lingering);
    this.#lingering = setTimeout(
      () => {
        const leave = this.#leave;
        this.#leave = null;
        leave();
      },
      SHARES ? LINGER_MS : 0, // a stream for each tab would soon be too many
    );
  }
}

export const turnEvents = new TurnEvents();
