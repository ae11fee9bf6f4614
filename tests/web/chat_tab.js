// A tab of the chat page without its elements: the scripts that decide what is shown are the page's own; what shows it,
// and the server, are stand-ins that write down what they are told.

import { FakeChannels, FakeEventSource, FakeLocks, place, settle } from "./fakes.js";

import { mock } from "node:test";

import { SettingsState } from "../../app/ui/components/settings/settings_state.js";
import { MessageCommands } from "../../app/ui/pages/chat/message_commands.js";
import { Navigation } from "../../app/ui/pages/chat/navigation.js";
import { OpenConversation } from "../../app/ui/pages/chat/open_conversation.js";
import { TurnEvents } from "../../app/ui/pages/chat/turn_events.js";
import { Turns } from "../../app/ui/pages/chat/turns.js";
import { api } from "../../app/ui/shared/api.js";
import { CrossTab } from "../../app/ui/pages/chat/cross_tab.js";

/** @type {any} no file is attached */
const NO_FILES = { isReading: false, files: [], withFiles: (/** @type {string} */ text) => text, forget: () => undefined, keepFor: () => undefined };

const error = (status, code, message) => [status, { error: { code, message } }];
const NOT_FOUND = error(404, "not_found", "There is no such conversation.");

/** The part of the server that the chat page asks. Replies stay unfinished until `reply` ends them. */
export class FakeServer {
  /** All requests, as "METHOD path". @type {string[]} */
  requests = [];
  /** The bodies of requests for a turn, also of those that were refused or lost. */
  turnBodies = [];
  /** The questions that were marked as answered by a passage. */
  marked = [];
  #conversations = new Map();
  #turns = new Map(); // by request id
  #rules = [];
  #next = 1;

  constructor() {
    globalThis.fetch = (path, options = {}) => this.#fetch(path, options);
  }

  /** Adds a conversation of these texts, the user's first, then the reply. */
  add(id, texts, settings = {}) {
    const messages = texts.map((content, index) => ({
      id: `${id}${index}`,
      role: index % 2 ? "assistant" : "user",
      content,
      status: "complete",
    }));
    this.#conversations.set(id, { id, title: `About ${id}`, settings, messages, has_earlier: false, active_turn_id: null, temporary: false });
    return this.get(id);
  }

  get(id) {
    return this.#conversations.get(id);
  }

  delete(id) {
    this.#conversations.delete(id);
  }

  /** Holds requests whose "METHOD path" contains `part` until `letGo` is called; `lost`: their responses are lost then. */
  hold(part) {
    const rule = { part };
    rule.before = new Promise((resolve) => {
      rule.letGo = async ({ lost = false } = {}) => {
        rule.lost = lost;
        this.#rules = this.#rules.filter((each) => each !== rule);
        resolve();
        await settle();
      };
    });
    this.#rules.push(rule);
    return rule;
  }

  /** Answers the next request whose "METHOD path" contains `part` so; undefined: there is no answer. */
  answer(part, answer) {
    this.#rules.push({ part, once: true, answer: () => answer });
  }

  /** Does what the next such request asks, and loses the response. */
  loseResponse(part) {
    this.#rules.push({ part, once: true, lost: true });
  }

  /** A user, perhaps of another browser, sends a message. Its reply is complete. */
  ask(id, text) {
    const { turn_id: turn } = this.#startTurn({ conversation_id: id, text, tip_id: undefined, request_id: `elsewhere ${this.#next}` })[1];
    this.finish(turn, "an answer");
  }

  finish(turn, content, status = "complete") {
    const conversation = [...this.#conversations.values()].find(({ active_turn_id }) => active_turn_id === turn);
    Object.assign(conversation.messages.at(-1), { content, status });
    conversation.active_turn_id = null;
  }

  async #fetch(path, options) {
    const line = `${options.method ?? "GET"} ${path}`;
    this.requests.push(line);
    const body = options.body ? JSON.parse(options.body) : null;
    if (line === "POST /api/turns") this.turnBodies.push(body);
    const rule = this.#rules.find(({ part }) => line.includes(part));
    if (rule?.once) this.#rules.splice(this.#rules.indexOf(rule), 1);
    await rule?.before;
    const answer = rule?.answer ? rule.answer() : this.#route(line, body);
    if (answer === undefined || rule?.lost) throw new TypeError("Failed to fetch");
    const [status, content] = answer;
    return new Response(content === null || typeof content === "string" ? content : JSON.stringify(content), { status });
  }

  #route(line, body) {
    const [method, path] = line.split(" ");
    const { pathname, searchParams } = new URL(path, "http://desk");
    const [, , kind, id, action] = pathname.split("/");
    if (kind === "turns" && action === "stop") return [204, null];
    if (kind === "turns") return this.#startTurn(body);
    if (kind === "conversations" && method === "GET") return this.#load(id, searchParams.get("at"));
    if (kind === "conversations") {
      Object.assign(this.get(id), body);
      return [204, null];
    }
    if (kind === "messages") return this.#change(id, action ?? "delete", body);
    if (kind === "deletions") return [204, null];
    if (kind === "kb") {
      this.marked.push(body);
      return [201, { answer: "Ten days." }];
    }
    return [404, {}];
  }

  #load(id, at) {
    const conversation = this.get(id);
    if (!conversation) return NOT_FOUND;
    if (at !== null && !conversation.messages.some((message) => message.id === at)) return error(422, "invalid_input", "Not shown.");
    return [200, structuredClone(conversation)];
  }

  #startTurn(body) {
    const known = this.#turns.get(body.request_id);
    if (known) return [200, known];
    const id = body.conversation_id ?? `new${this.#next}`;
    if (body.conversation_id === null) this.add(id, []);
    const conversation = this.get(id);
    if (!conversation) return NOT_FOUND;
    const tip = conversation.messages.at(-1)?.id ?? null;
    if (body.tip_id !== undefined && body.tip_id !== tip) return error(409, "conflict", "This conversation was changed elsewhere.");
    return [200, this.#reply(conversation, body)];
  }

  #reply(conversation, { text, temporary = false, request_id }) {
    const number = this.#next++;
    const turn = { turn_id: `t${number}`, conversation_id: conversation.id, user_message_id: `u${number}`, message_id: `r${number}`, in_stream: false };
    conversation.temporary = temporary;
    conversation.messages.push({ id: turn.user_message_id, role: "user", content: text ?? "", status: "complete" });
    conversation.messages.push({ id: turn.message_id, role: "assistant", content: "", status: "streaming", turn_id: turn.turn_id });
    conversation.active_turn_id = turn.turn_id;
    this.#turns.set(request_id, turn);
    return turn;
  }

  #change(id, action, body) {
    const conversation = [...this.#conversations.values()].find(({ messages }) => messages.some((message) => message.id === id));
    if (!conversation) return NOT_FOUND;
    const at = conversation.messages.findIndex((message) => message.id === id);
    const ref = { conversation_id: conversation.id };
    if (action === "show") return [200, ref];
    if (action === "branch") return [200, { conversation_id: this.add(`${conversation.id}-branch`, conversation.messages.slice(0, at + 1).map(({ content }) => content)).id }];
    const removed = conversation.messages.splice(at);
    if (action === "delete") return [200, { ...ref, deletion_id: "d", messages: removed.length }];
    conversation.asked = body;
    return [200, this.#reply(conversation, { text: body.text, request_id: body.request_id })];
  }
}

/** A reply on the page. */
class FakeReply {
  constructor(message) {
    this.message = message;
    this.source = message.content;
    this.thoughts = { source: message.reasoning ?? "" };
    this.note = "";
  }

  append(text, onRendered) {
    this.source += text;
    onRendered();
  }

  progress() {}

  notice(text) {
    this.note = text;
  }

  end({ status, error }) {
    Object.assign(this.message, { status });
    this.note = error ?? "";
  }
}

/** The messages on the page. */
class FakeMessages {
  items = [];
  following = true;

  place = 0;
  writing = null;
  calls = [];

  clear() {
    this.items = [];
  }

  add(message) {
    const reply = message.role === "assistant" ? new FakeReply({ ...message }) : null;
    this.items.push({ id: message.id, content: message.content, reply });
    return reply;
  }

  addAbove(messages) {
    this.items.unshift(...messages.map(({ id, content }) => ({ id, content, reply: null })));
  }

  holds(id) {
    return this.items.some((item) => item.id === id);
  }

  lookAt(id) {
    this.calls.push(`lookAt ${id}`);
    return this.holds(id);
  }

  offerReply() {}
  returnTo() {}
  followDown() {}

  toLatest() {
    this.following = true;
    this.calls.push("toLatest");
  }

  goOnWriting({ id }) {
    this.calls.push(`goOnWriting ${id}`);
  }

  focusVersion(id, step) {
    this.calls.push(`focusVersion ${id} ${step}`);
  }

  stay() {
    this.following = false;
  }

  /** What the page shows, a line each. */
  get texts() {
    return this.items.map(({ content, reply }) => reply?.source ?? content);
  }

  get lastReply() {
    return this.items.at(-1).reply;
  }
}

/** The message box. */
class FakeComposer {
  text = "";
  error = "";
  lastMessage = null;
  calls = [];

  showError(text) {
    this.error = text;
  }

  warnReplyInProgress() {
    this.error = "A reply is still being written.";
  }

  clearSent(text, from) {
    this.calls.push(`clearSent ${text} ${from}`);
    this.text = "";
  }

  useDraft(id) {
    this.calls.push(`useDraft ${id}`);
  }

  keepDraftFor(id) {
    this.calls.push(`keepDraftFor ${id}`);
  }

  deleteDraft(id) {
    this.calls.push(`deleteDraft ${id}`);
  }

  takeFocus(before) {
    this.calls.push("takeFocus");
    this.focusBefore = before;
  }
}

/** Prepares the browser in which the tabs are. Call it before each test. */
export function freshBrowser() {
  mock.timers.reset();
  mock.timers.enable({ apis: ["setTimeout"] });
  globalThis.EventSource = FakeEventSource;
  FakeEventSource.opened = [];
  Object.assign(place, { pathname: "/", search: "" });
  const entries = ["/"];
  const go = (address) => {
    const { pathname, search } = new URL(address, "http://desk");
    Object.assign(place, { pathname, search });
    entries.push(address);
  };
  const history = {
    entries,
    pushState: (_state, _title, address) => go(address),
    replaceState: (_state, _title, address) => {
      entries.pop();
      go(address);
    },
  };
  const element = () => ({ append() {}, setAttribute() {}, replaceChildren() {} });
  Object.assign(globalThis, { history });
  globalThis.document = { title: "", visibilityState: "visible", activeElement: null, body: element(), createElement: element };
  return { server: new FakeServer(), channels: new FakeChannels(), locks: new FakeLocks() };
}

const EMPTY_SETTINGS = Object.freeze({ seed: null });

/** A tab of the browser, at a new chat. */
export function openTab({ channels, locks }) {
  const crossTab = new CrossTab(channels.open());
  const messages = new FakeMessages();
  const handlers = {};
  const composer = new FakeComposer();
  const tab = { messages, composer, handlers, title: "", mark: false, overlays: 0, replying: false, connected: true, listed: 0, errors: [], sent: [], marked: [], toasts: [] };
  const welcome = { temporary: false, shown: null, show: (how) => (welcome.shown = how), hide: () => (welcome.shown = null) };
  const stored = {};
  const state = new SettingsState({
    empty: EMPTY_SETTINGS,
    save: (id, values, keepalive) => api.changeConversation(id, { settings: values }, keepalive),
    onSaveFailed: () => undefined,
    note: { textContent: "" },
    storage: { read: (_area, key) => stored[key] ?? null, write: (_area, key, value) => (stored[key] = value) },
    now: () => performance.now(), // the clock by which OpenConversation says when it asked
  });
  const settings = Object.assign(state, { pendingChoice: () => tab.pendingChoice?.() ?? null });
  const header = {
    get isTemporary() {
      return tab.mark;
    },
    markTemporary: (temporary) => (tab.mark = temporary),
    setTitle: (title) => (tab.title = title),
  };
  const host = {
    composer,
    askAgain: (start) => tab.turns.askAgain(start),
    branch: (id) => tab.commands.branch(id),
    mark: (id, citation) => tab.commands.mark(id, citation),
    deleteMessage: (id) => tab.commands.delete(id),
    warnReplyInProgress: () => composer.warnReplyInProgress(),
    onConversationShown: (conversation, how) => tab.navigation.onConversationShown(conversation, how),
    onMessageSent: () => tab.sent.push(composer.lastMessage),
    onConversationMissing: () => tab.navigation.onConversationMissing(),
    setReplying: (active) => (tab.replying = active),
    setConnected: (connected) => (tab.connected = connected),
    reportError: (failure) => {
      tab.errors.push(failure);
      composer.showError(failure.message);
    },
  };
  const view = { messages, earlier: { disabled: false }, setProps: (props) => Object.assign(tab, props), handle: (more) => Object.assign(handlers, more) };
  const openConversation = new OpenConversation(host, view, { crossTab, turnEvents: new TurnEvents(crossTab, locks) });
  const parts = { openConversation, composer, settings, welcome, crossTab, header };
  const refreshList = () => tab.listed++;
  const { reportError } = host;
  Object.assign(tab, {
    openConversation,
    earlier: view.earlier,
    settings,
    welcome,
    crossTab,
    navigation: new Navigation(
      { ...parts, conversations: { markCurrent: (id) => tab.marked.push(id) }, panels: { closeOverlays: () => tab.overlays++ } },
      { refreshList },
    ),
    turns: new Turns({ ...parts, attached: NO_FILES }, { onCreated: (id, temporary) => tab.navigation.onCreated(id, temporary), refreshList, reportError }),
    commands: new MessageCommands(
      { ...parts, toast: { show: (text, name, action) => tab.toasts.push({ text, name, action }) } },
      { navigate: (id) => tab.navigation.navigate(id), refreshList, reportError },
    ),
    /** Opens a conversation, or a new chat, as a click in the list does. */
    open: async (id, options) => {
      await tab.navigation.navigate(id, options);
      await settle();
    },
    /** Presses Enter with this text in the box. */
    send: async (text) => {
      composer.text = text;
      await tab.turns.send();
      await settle();
    },
  });
  return tab;
}
