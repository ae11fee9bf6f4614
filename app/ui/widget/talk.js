// The visitor's talk: the session, its events and the messages on their way. Knows nothing of the page.

import { errorText, WidgetError } from "./api.js";
import { EventStream } from "./event_stream.js";
import { Outbox } from "./outbox.js";
import { INITIAL, reduce } from "./talk_state.js";

/** @import { WidgetApi } from "./api.js" */
/** @import { ServerEvent } from "./event_stream.js" */
/** @import { Store } from "./store.js" */
/** @import { CaseState, Pending, StoredFile, TalkEvent, TalkState } from "./types.js" */

const FIRST_RETRY_MS = 1000;
const MAX_RETRY_MS = 30_000;
/** A person who has stopped typing without a word. */
const TYPING_MS = 12_000;

/** @typedef {{request: (name: string, options: any, work: () => Promise<any>) => Promise<any>}} Locks */

export class Talk {
  /** @type {TalkState} */
  state = INITIAL;
  /** @type {string | null} what the website said about who the visitor is */
  #identity = null;
  /** @type {EventStream | null} */
  #stream = null;
  /** @type {Promise<void> | null} a session that is being started */
  #starting = null;
  #retryMs = FIRST_RETRY_MS;
  #caseUpdates = 0; // states of the case that came by event or session, or went with the visitor
  /** @type {string | null} the last reply of a person that the server knows as read */
  #read = null;
  /** @type {(() => void) | null} */
  #wake = null;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #typingTimer;

  /**
   * @param {WidgetApi} api
   * @param {Store} store
   * @param {Locks | undefined} locks
   * @param {{language: string, time_zone: string}} visitor
   * @param {() => void} onChange
   */
  constructor(api, store, locks, visitor, onChange) {
    this.api = api;
    this.store = store;
    this.locks = locks;
    this.visitor = visitor;
    this.onChange = onChange;
    this.outbox = new Outbox(store, locks, (message) => this.#send(message), onChange);
  }

  /** Starts or continues the talk; again if something was missed. Resolves once it stands, or cannot. */
  start() {
    this.#starting ??= this.#start().finally(() => (this.#starting = null));
    return this.#starting;
  }

  /** @param {string | null} token  null: the visitor has signed out, and this device forgets the talk */
  async identify(token) {
    if (token === this.#identity && token !== null) return;
    await this.#starting;
    this.#identity = token;
    if (token === null) {
      this.outbox.clear();
      this.store.remove("token");
      this.store.remove("draft");
    }
    this.api.token = null;
    this.state = INITIAL;
    this.#caseUpdates += 1;
    await this.start();
  }

  /** The browser is online again, or another tab has changed what is stored. @param {string | null} key */
  wake(key = null) {
    if (key === `${this.store.prefix}token` && this.store.get("token") !== this.api.token) {
      if (this.store.get("token") === null) this.state = INITIAL; // forgotten in another tab
      void this.start();
    }
    this.#wake?.();
    this.#stream?.wake();
    this.onChange();
    if (key === null) void this.outbox.flush();
  }

  /** @param {string} text @param {StoredFile[]} files */
  write(text, files = []) {
    return this.outbox.add(text, files);
  }

  async askForPerson() {
    await this.#withSession(() => this.#takeCase(this.api.askForPerson()));
  }

  /** @param {number} score @param {string} comment */
  async rate(score, comment) {
    await this.#withSession(() => this.api.rate(score, comment));
    if (this.state.case) this.#dispatch({ type: "case", case: { ...this.state.case, rating: false } });
  }

  /** The visitor sees the talk: what people wrote needs no e-mail. A failure is no matter: the next look says it again. */
  async markRead() {
    const id = this.state.messages.findLast(({ author, status }) => author.kind === "agent" && status === "complete")?.id;
    if (!id || id === this.#read || this.api.token === null) return;
    this.#read = id;
    try {
      await this.api.markRead(id);
    } catch {
      if (this.#read === id) this.#read = null;
    }
  }

  /** @param {string} email */
  async leaveEmail(email) {
    const name = this.state.contact?.name ?? "";
    await this.#withSession(async () => {
      const { token } = this.api;
      const contact = await this.api.changeContact({ name, email });
      if (this.api.token === token) this.#dispatch({ type: "contact", contact });
    });
  }

  /** @param {TalkEvent} event */
  #dispatch(event) {
    const before = this.state;
    this.state = reduce(before, event);
    if (this.state === before) return;
    if (this.state.isStale && !before.isStale) void this.start();
    this.onChange();
  }

  async #start() {
    this.#stream?.close();
    for (;;) {
      try {
        await this.#exclusively(() => this.#startSession());
        break;
      } catch (error) {
        const isRefusal = error instanceof WidgetError && !(error.isTemporary && error.status !== 401);
        if (isRefusal && this.#identity !== null) {
          console.warn(`Deskmate did not accept the token of identify(): ${error.message}`);
          this.#identity = null;
          continue;
        }
        if (isRefusal || !(error instanceof WidgetError)) {
          this.#dispatch({ type: "problem", problem: errorText(error) });
          return;
        }
        this.#dispatch({ type: "connection", isOnline: false });
        await this.#pause(error.retryAfterS);
      }
    }
    this.#retryMs = FIRST_RETRY_MS;
    void this.outbox.flush();
  }

  /** Two tabs must not become two visitors. @param {() => Promise<void>} work */
  #exclusively(work) {
    return this.locks ? this.locks.request(`${this.store.prefix}session`, { mode: "exclusive" }, work) : work();
  }

  async #startSession() {
    const session = await this.api.startSession({ token: this.store.get("token"), identity: this.#identity, ...this.visitor });
    this.api.token = session.token;
    this.store.set("token", session.token);
    if (session.identity_error) console.warn(`Deskmate did not accept the token of identify(): ${session.identity_error}`);
    this.#receiveCase({ type: "session", session });
    this.#follow(session.last_event_id ?? null);
  }

  /** @param {string | null} lastEventId */
  #follow(lastEventId) {
    const stream = new EventStream((last, signal) => this.api.events(last, signal), {
      onEvent: (event) => {
        if (this.#stream === stream) this.#receive(event);
      },
      onConnection: (isOnline) => {
        if (this.#stream !== stream) return;
        this.#dispatch({ type: "connection", isOnline });
        if (isOnline) void this.outbox.flush();
      },
      onRefusal: (error) => {
        if (!(error instanceof WidgetError)) return true; // the connection broke
        if (error.status === 401) void this.start();
        return error.isTemporary && error.status !== 401;
      },
    });
    stream.lastEventId = lastEventId;
    this.#stream = stream;
    void stream.run();
  }

  /** @param {ServerEvent} event */
  #receive({ name, data: text }) {
    const data = JSON.parse(text);
    if (name === "message") this.#dispatch({ type: "message", message: data });
    else if (name === "delta") this.#dispatch({ type: "delta", ...data });
    else if (name === "case") this.#receiveCase({ type: "case", case: data });
    else if (name === "reset") void this.start();
    else if (name === "typing") this.#type(data.name ?? null);
  }

  /** An event or a session has the case. @param {TalkEvent} event */
  #receiveCase(event) {
    this.#caseUpdates += 1;
    this.#dispatch(event);
  }

  /** @param {string | null} name */
  #type(name) {
    clearTimeout(this.#typingTimer);
    this.#dispatch({ type: "typing", name });
    if (name !== null) this.#typingTimer = setTimeout(() => this.#dispatch({ type: "typing", name: null }), TYPING_MS);
  }

  /** @param {Pending} message */
  async #send({ client_id, text, files }) {
    // A message never waits here for a session: this tab would keep the other ones from sending. start() sends it later.
    if (this.api.token === null) throw new WidgetError("", 0, "no_session");
    const writing = this.api.write({ text, client_id, attachments: files.map(({ id }) => id) }).catch((error) => {
      if (error instanceof WidgetError && error.status === 401) void this.start();
      throw error;
    });
    const { token } = this.api;
    const { message } = await this.#takeCase(writing);
    if (this.api.token === token) this.#dispatch({ type: "message", message }); // else it is another visitor's talk by now
  }

  /**
   * Takes the case from an answer, unless an event or a session brought it meanwhile: that is newer, or a newer event
   * follows.
   * @template {{case?: CaseState | null}} Answer
   * @param {Promise<Answer>} answering
   */
  async #takeCase(answering) {
    const updates = this.#caseUpdates;
    const answer = await answering;
    if (answer.case && updates === this.#caseUpdates) this.#dispatch({ type: "case", case: answer.case });
    return answer;
  }

  /**
   * Does what needs a session, once more with a new one if the server doesn't know this one any more.
   * @template Result
   * @param {() => Promise<Result>} action
   * @returns {Promise<Result>}
   */
  async #withSession(action) {
    if (this.api.token === null) await this.start();
    try {
      return await action();
    } catch (error) {
      if (!(error instanceof WidgetError) || error.status !== 401) throw error;
    }
    await this.start();
    return action();
  }

  /** @param {number | null} retryAfterS */
  async #pause(retryAfterS) {
    const wanted = Math.max((retryAfterS ?? 0) * 1000, this.#retryMs) * (0.75 + Math.random() / 2);
    this.#retryMs = Math.min(this.#retryMs * 2, MAX_RETRY_MS);
    await new Promise((/** @type {(value?: unknown) => void} */ resolve) => {
      const timer = setTimeout(resolve, wanted);
      this.#wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
    this.#wake = null;
  }
}
