// Messages between the tabs of this browser. Without BroadcastChannel each tab works alone.

/** @typedef {Record<string, any>} Content  what goes with a message's type */

export class CrossTab {
  /** @type {Map<string, ((content: Content) => unknown)[]>} */
  #listeners = new Map();

  /** @param {BroadcastChannel | null} channel */
  constructor(channel) {
    this.channel = channel;
    this.isAvailable = channel !== null;
    if (!channel) return;
    channel.onmessage = ({ data }) => {
      for (const listener of this.#listeners.get(data.type) ?? []) listener(data);
    };
  }

  /** Sends a message to the other tabs. @param {string} type @param {Content} content */
  broadcast(type, content = {}) {
    this.channel?.postMessage({ type, ...content });
  }

  /** @param {string} type @param {(content: Content) => unknown} listener */
  on(type, listener) {
    this.#listeners.set(type, [...(this.#listeners.get(type) ?? []), listener]);
  }
}

export const crossTab = new CrossTab("BroadcastChannel" in globalThis ? new BroadcastChannel("deskmate") : null);
