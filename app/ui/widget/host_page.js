// The website that shows the frame. Its window and its origin are checked with each message, and messages go to it alone.

/** @typedef {{type: "hello" | "opened" | "closed"} | {type: "identify", token: string | null}} HostMessage */

export class HostPage {
  /** Null until the website has said something. @type {string | null} */
  origin = null;

  /**
   * @param {Window} self
   * @param {string[]} allowed  the inbox's origins
   * @param {(message: HostMessage) => void} onMessage
   */
  constructor(self, allowed, onMessage) {
    this.self = self;
    this.allowed = new Set([...allowed, self.origin]);
    this.onMessage = onMessage;
    self.addEventListener("message", (event) => this.receive(event));
  }

  /** Whether the chat is shown by a website, and not as a page of its own. */
  get isThere() {
    return this.self.parent !== this.self;
  }

  /** @param {{source: unknown, origin: string, data: any}} event */
  receive({ source, origin, data }) {
    if (!this.isThere || source !== this.self.parent || !this.allowed.has(origin)) return;
    if (data?.deskmate !== 1) return;
    const isKnown = ["hello", "opened", "closed"].includes(data.type);
    const isIdentity = data.type === "identify" && (data.token === null || typeof data.token === "string");
    if (!isKnown && !isIdentity) return;
    this.origin = origin;
    this.onMessage(data);
  }

  /** @param {{type: "close"} | {type: "unread", count: number}} message */
  tell(message) {
    if (this.isThere && this.origin !== null) this.self.parent.postMessage({ deskmate: 1, ...message }, this.origin);
  }
}
