import { FakeLocks, pass, settle } from "./fakes.js";

import assert from "node:assert/strict";
import { beforeEach, mock, test } from "node:test";

import { WidgetError } from "../../app/ui/widget/api.js";
import { Outbox } from "../../app/ui/widget/outbox.js";
import { Store } from "../../app/ui/widget/store.js";

/** The localStorage of a browser. */
class FakeStorage {
  #items = new Map();
  isFull = false;

  get length() {
    return this.#items.size;
  }

  key(index) {
    return [...this.#items.keys()][index] ?? null;
  }

  getItem(key) {
    return this.#items.get(key) ?? null;
  }

  setItem(key, value) {
    if (this.isFull) throw new DOMException("full", "QuotaExceededError");
    this.#items.set(key, value);
  }

  removeItem(key) {
    this.#items.delete(key);
  }
}

/** A server that stores each id once, and answers when the test lets it. */
class FakeServer {
  /** @type {{client_id: string, text: string}[]} */
  received = [];
  /** @type {(() => void)[]} */
  held = [];
  failure = null;
  isHolding = false;

  send = async (message) => {
    this.received.push(message);
    if (this.isHolding) await new Promise((resolve) => this.held.push(resolve));
    if (this.failure) throw this.failure;
  };

  get texts() {
    return this.received.map((message) => message.text);
  }
}

const offline = () => new WidgetError("There is no connection.", 0, "unreachable");

let storage;
let locks;
let server;

beforeEach(() => {
  mock.timers.reset();
  mock.timers.enable({ apis: ["setTimeout"] });
  storage = new FakeStorage();
  const fake = new FakeLocks();
  locks = { request: (name, options, work) => fake.request(name, { signal: new AbortController().signal }, work) };
  server = new FakeServer();
});

const openTab = ({ area = storage, lock = locks } = {}) => new Outbox(new Store("desk:", area), lock, server.send, () => {});

test("messages are sent once, in the order in which they were written, and leave the storage", async () => {
  const tab = openTab();
  tab.add("one");
  tab.add("two");
  await settle();
  assert.deepEqual(server.texts, ["one", "two"]);
  assert.equal(storage.length, 0);
});

test("two tabs do not send a message twice, however their work overlaps", async () => {
  server.isHolding = true;
  const [first, second] = [openTab(), openTab()];
  first.add("hello");
  await settle();
  second.flush();
  second.add("from the second tab");
  await settle();
  assert.deepEqual(server.texts, ["hello"]);
  server.isHolding = false;
  server.held.forEach((answer) => answer());
  await settle();
  assert.deepEqual(server.texts, ["hello", "from the second tab"]);
});

test("a message that is written offline survives a reload and goes out with the same id", async () => {
  server.failure = offline();
  const before = openTab();
  before.add("still there?");
  await settle();
  const [{ client_id: id }] = before.list();
  server.failure = null;
  const after = openTab();
  assert.equal(after.list()[0].text, "still there?");
  after.flush();
  await settle();
  assert.deepEqual(server.received.map((message) => message.client_id), [id, id]);
  assert.deepEqual(after.list(), []);
});

test("a failed attempt is repeated later, and the one after it waits longer", async () => {
  server.failure = offline();
  openTab().add("hello");
  await settle();
  await pass(2000);
  assert.equal(server.received.length, 2);
  await pass(2000);
  assert.equal(server.received.length, 2);
  await pass(2000);
  assert.equal(server.received.length, 3);
});

test("a wish to wait is followed", async () => {
  server.failure = new WidgetError("Slow down.", 429, "too_many", 30);
  openTab().add("hello");
  await settle();
  await pass(29_000);
  assert.equal(server.received.length, 1);
  await pass(1000);
  assert.equal(server.received.length, 2);
});

test("a refused message says why, does not hold up the next one, and can be sent again or discarded", async () => {
  server.failure = new WidgetError("The message is too long.", 422, "too_long");
  const tab = openTab();
  tab.add("too long");
  await settle();
  server.failure = null;
  tab.add("short");
  await settle();
  assert.deepEqual(tab.list().map(({ text, problem }) => [text, problem]), [["too long", "The message is too long."]]);
  tab.retry(tab.list()[0].client_id);
  await settle();
  assert.deepEqual(server.texts, ["too long", "short", "too long"]);
  assert.deepEqual(tab.list(), []);
});

test("a message that another tab discards while it is sent does not come back as refused", async () => {
  server.isHolding = true;
  server.failure = new WidgetError("No.", 422, "no");
  const [first, second] = [openTab(), openTab()];
  first.add("hello");
  await settle();
  second.drop(second.list()[0].client_id);
  server.held.forEach((answer) => answer());
  await settle();
  assert.deepEqual(first.list(), []);
});

test("where storage is refused or full, messages wait in memory", async () => {
  const full = new FakeStorage();
  full.isFull = true;
  for (const area of [null, full]) {
    server = new FakeServer();
    server.failure = offline();
    const tab = openTab({ area });
    tab.add("hello");
    await settle();
    assert.deepEqual(tab.list().map(({ text }) => text), ["hello"]);
    server.failure = null;
    await pass(2000);
    assert.deepEqual(tab.list(), []);
  }
});

test("without locks, a tab still sends one message at a time", async () => {
  const tab = openTab({ lock: undefined });
  server.isHolding = true;
  tab.add("one");
  tab.flush();
  tab.flush();
  await settle();
  assert.deepEqual(server.texts, ["one"]);
});

test("what other scripts leave in the storage is not taken for a message", () => {
  storage.setItem("desk:outbox:x", "{");
  storage.setItem("desk:outbox:y", '{"text": 1}');
  storage.setItem("another", "value");
  assert.deepEqual(openTab().list(), []);
});
