// Stands in for the browser where Node has nothing of the kind. Import it before the scripts under test: they look for
// these globals when they load.

import { mock } from "node:test";

/** Listeners of the window, by event. @type {Map<string, ((event: object) => unknown)[]>} */
const windowListeners = new Map();

/** Raises an event of the window. */
export const raise = (event) => (windowListeners.get(event) ?? []).forEach((listener) => listener({}));

/** Where the page is, and where it has gone since. */
export const place = { pathname: "/", search: "", hash: "", origin: "http://desk", went: [], reloads: 0 };

delete globalThis.BroadcastChannel; // Node's own would keep the process alive
Object.assign(globalThis, {
  addEventListener: (event, listener) => windowListeners.set(event, [...(windowListeners.get(event) ?? []), listener]),
  location: Object.assign(place, {
    assign: (address) => place.went.push(address),
    reload: () => place.reloads++,
  }),
});

/** Lets everything happen that waits for promises, not for timers. */
export const settle = async () => {
  for (let turn = 0; turn < 20; turn++) await Promise.resolve();
};

/** Lets `milliseconds` of the mocked time pass. */
export async function pass(milliseconds) {
  await settle();
  mock.timers.tick(milliseconds);
  await settle();
}

/** The browser's BroadcastChannels of one name: each reaches all the others. */
export class FakeChannels {
  #open = new Set();

  open() {
    const channel = {
      onmessage: null,
      postMessage: (data) => {
        const copy = structuredClone(data);
        for (const other of this.#open) if (other !== channel) other.onmessage?.({ data: copy });
      },
      close: () => this.#open.delete(channel),
    };
    this.#open.add(channel);
    return channel;
  }
}

/** The browser's Web Locks, for one name: held by one tab, the others wait in line. */
export class FakeLocks {
  #waiting = [];
  #held = false;

  request(name, { signal }, work) {
    return new Promise((resolve, reject) => {
      const request = { work, resolve, reject };
      this.#waiting.push(request);
      signal.addEventListener("abort", () => {
        if (!this.#waiting.includes(request)) return;
        this.#waiting = this.#waiting.filter((each) => each !== request);
        reject(new DOMException("aborted", "AbortError"));
      });
      queueMicrotask(() => this.#next());
    });
  }

  async #next() {
    if (this.#held || this.#waiting.length === 0) return;
    this.#held = true;
    const { work, resolve, reject } = this.#waiting.shift();
    await Promise.resolve(work()).then(resolve, reject);
    this.#held = false;
    this.#next();
  }
}

/** An EventSource whose server is the test. */
export class FakeEventSource {
  static CLOSED = 2;
  /** All that were opened, the last one last. @type {FakeEventSource[]} */
  static opened = [];

  constructor(url) {
    this.parameters = new URLSearchParams(url.split("?")[1]);
    this.readyState = 0;
    this.listeners = {};
    FakeEventSource.opened.push(this);
  }

  static get last() {
    return FakeEventSource.opened.at(-1);
  }

  /** The turns it asks for, as "id:offset". */
  get turns() {
    return this.parameters.getAll("turn");
  }

  get isOpen() {
    return this.readyState !== FakeEventSource.CLOSED;
  }

  addEventListener(name, listener) {
    this.listeners[name] = listener;
  }

  close() {
    this.readyState = FakeEventSource.CLOSED;
  }

  accept() {
    this.readyState = 1;
    this.onopen();
    return this;
  }

  send(name, data) {
    if (this.isOpen) this.listeners[name]({ data: JSON.stringify(data) });
  }

  /** The connection is lost, or was refused by the server. */
  fail({ refused = false } = {}) {
    this.readyState = refused ? FakeEventSource.CLOSED : 0;
    this.onerror();
  }
}

/** Answers requests: `answers` maps "GET /path" to a body, [status, body], or a function of the request that gives one. */
export function fakeFetch(answers) {
  const requests = [];
  globalThis.fetch = async (path, options = {}) => {
    const request = { method: options.method ?? "GET", path, ...options };
    requests.push(request);
    let answer = answers[`${request.method} ${path}`];
    if (typeof answer === "function") answer = await answer(request);
    if (answer === undefined) throw new TypeError("Failed to fetch");
    const [status, body] = Array.isArray(answer) && typeof answer[0] === "number" ? answer : [200, answer];
    return new Response(body === null ? null : typeof body === "string" ? body : JSON.stringify(body), { status });
  };
  return requests;
}
