// Event streams of cases. A browser opens only six HTTP/1.1 connections per host: the tabs share the list's stream (the
// tab that holds a Web Lock reads it and broadcasts), and a case's stream is open while its tab is visible.

import { api } from "../../shared/api.js";

/** @typedef {(name: string, data: any) => unknown} OnEvent */

const FIRST_RETRY_MS = 500;
const MAX_RETRY_MS = 10_000;
const LOCK = "deskmate-case-events";

/** A stream that opens itself again. `onOpen` is called each time: what happened before then may have been missed. */
export class Stream {
  /** @type {EventSource | null} */
  #source = null;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #timer;
  #retryMs = FIRST_RETRY_MS;

  /**
   * @param {string} path
   * @param {string[]} names  of its events
   * @param {{onEvent: OnEvent, onOpen: () => unknown, onLost: () => unknown}} host
   */
  constructor(path, names, host) {
    this.path = path;
    this.names = names;
    this.host = host;
  }

  open() {
    this.close();
    const source = new EventSource(this.path);
    this.#source = source;
    source.onopen = () => {
      this.#retryMs = FIRST_RETRY_MS;
      this.host.onOpen();
    };
    source.onerror = () => {
      // CLOSED means refused, not disconnected. If the session has ended, this request redirects to the sign-in page.
      if (source.readyState === EventSource.CLOSED) api.account().catch(() => undefined);
      this.close();
      this.host.onLost();
      this.#timer = setTimeout(() => this.open(), this.#retryMs);
      this.#retryMs = Math.min(this.#retryMs * 2, MAX_RETRY_MS);
    };
    for (const name of this.names) source.addEventListener(name, (event) => this.host.onEvent(name, JSON.parse(event.data)));
  }

  close() {
    clearTimeout(this.#timer);
    this.#source?.close();
    this.#source = null;
  }
}

/**
 * Reads the list's stream for all tabs of this browser, or hears it from the tab that does. Without Web Locks or
 * BroadcastChannel, each tab has its own.
 * @param {string} path
 * @param {string[]} names
 * @param {{onEvent: OnEvent, onOpen: () => unknown, onLost: () => unknown}} host
 * @param {{locks?: LockManager, channel?: BroadcastChannel | null}} [browser]
 */
export function shareStream(path, names, host, { locks = navigator.locks, channel = openChannel() } = {}) {
  /** @param {keyof typeof host} call @param {any[]} values */
  const tell = (call, ...values) => {
    channel?.postMessage({ call, values });
    /** @type {(...values: any[]) => unknown} */ (host[call])(...values);
  };
  const stream = new Stream(path, names, {
    onEvent: (name, data) => tell("onEvent", name, data),
    onOpen: () => tell("onOpen"),
    onLost: () => tell("onLost"),
  });
  if (!locks || !channel) {
    stream.open();
    return;
  }
  channel.onmessage = ({ data: { call, values } }) => /** @type {(...values: any[]) => unknown} */ (host[/** @type {keyof typeof host} */ (call)])(...values);
  locks.request(LOCK, { signal: new AbortController().signal }, () => {
    stream.open();
    return new Promise(() => undefined); // until the tab is closed
  });
}

const openChannel = () => ("BroadcastChannel" in globalThis ? new BroadcastChannel(LOCK) : null);
