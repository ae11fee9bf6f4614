import { freshBrowser, openTab } from "./chat_tab.js";
import { FakeEventSource, pass, settle } from "./fakes.js";

import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";

let browser;
let server;

beforeEach(() => {
  browser = freshBrowser();
  ({ server } = browser);
  server.add("a", ["question a", "answer a"]);
  server.add("b", ["question b", "answer b"]);
});

/** The event stream accepts the connection that is open last. */
async function accept() {
  await pass(10);
  return FakeEventSource.last.accept();
}

const text = (turn_id, content, offset) => FakeEventSource.last.send("text", { turn_id, text: content, offset });
const end = (turn_id, offset, rest = {}) => FakeEventSource.last.send("end", { turn_id, offset, status: "complete", ...rest });

test("a message is shown with its reply, which grows until it has ended", async () => {
  const tab = openTab(browser);
  await tab.open("a");
  await tab.send("and now?");
  assert.deepEqual(tab.messages.texts, ["question a", "answer a", "and now?", ""]);
  assert.equal(tab.replying, true);
  assert.deepEqual(tab.sent, ["and now?"]);
  await accept();
  assert.deepEqual(FakeEventSource.last.turns, ["t1:0"]);
  text("t1", "It ", 3);
  text("t1", "ends.", 8);
  assert.equal(tab.messages.lastReply.source, "It ends.");
  end("t1", 8);
  assert.deepEqual([tab.replying, tab.openConversation.activeTurnId], [false, null]);
  assert.equal(server.requests.filter((line) => line.startsWith("GET /api/conversations/a")).length, 1, "it is not loaded again");
});

test("a reply in flight is followed from the text that the server has", async () => {
  server.ask("a", "again");
  Object.assign(server.get("a").messages.at(-1), { content: "😀 half", status: "streaming", turn_id: "t1" });
  const tab = openTab(browser);
  await tab.open("a");
  await accept();
  assert.deepEqual(FakeEventSource.last.turns, ["t1:6"]);
});

test("of two conversations the one opened last is shown, whichever response is last", async () => {
  const tab = openTab(browser);
  const slow = server.hold("/conversations/a");
  tab.open("a");
  await tab.open("b");
  await slow.letGo();
  assert.deepEqual(tab.messages.texts, ["question b", "answer b"]);
  assert.equal(tab.openConversation.conversationId, "b");
  const slower = server.hold("/conversations/a");
  tab.open("a");
  await tab.open(null);
  await slower.letGo();
  assert.deepEqual(tab.messages.texts, []);
});

test("news of a chat that the user leaves do not hold the next one back", async () => {
  const [tab, other] = [openTab(browser), openTab(browser)];
  await tab.open("a");
  const opening = server.hold("/conversations/b");
  tab.open("b");
  other.crossTab.broadcast("conversation-changed", { id: "a" });
  await settle();
  await opening.letGo();
  assert.deepEqual(tab.messages.texts, ["question b", "answer b"]);
});

test("a chat that cannot be loaded leaves the shown one, with what that missed meanwhile", async () => {
  const tab = openTab(browser);
  await tab.open("a");
  const opening = server.hold("/conversations/b");
  tab.open("b");
  server.ask("a", "meanwhile");
  tab.crossTab.channel.onmessage({ data: { type: "conversation-changed", id: "a" } });
  await settle();
  assert.equal(tab.messages.texts.length, 2, "not while another one is opening");
  await opening.letGo({ lost: true });
  assert.match(tab.composer.error, /cannot be reached/);
  assert.deepEqual(tab.messages.texts, ["question a", "answer a", "meanwhile", "an answer"]);
  assert.equal(tab.openConversation.targetConversationId, "a");
});

test("a message that is on another branch is shown there; one that was deleted leaves the conversation open", async () => {
  const tab = openTab(browser);
  await tab.open("a", { at: "a1" });
  assert.ok(tab.messages.calls.includes("lookAt a1"));
  server.answer("at=elsewhere", [422, { error: { code: "invalid_input", message: "Not shown." } }]);
  server.answer("at=elsewhere", [200, server.get("b")]);
  server.answer("POST /api/messages/elsewhere/show", [200, { conversation_id: "b" }]);
  await tab.open("b", { at: "elsewhere" });
  assert.ok(server.requests.includes("POST /api/messages/elsewhere/show"));
  assert.ok(tab.messages.calls.includes("lookAt elsewhere"));
  assert.equal(tab.openConversation.conversationId, "b");
  server.answer("at=gone", [404, { error: { code: "not_found", message: "Gone." } }]);
  await tab.open("a", { at: "gone" });
  assert.deepEqual([tab.openConversation.conversationId, tab.errors], ["a", []]);
});

test("a message whose response was lost is not sent twice", async () => {
  const tab = openTab(browser);
  server.loseResponse("POST /api/turns");
  await tab.send("only once, please");
  assert.match(tab.composer.error, /cannot be reached/);
  assert.equal(tab.composer.text, "only once, please");
  await tab.send("only once, please");
  assert.equal(tab.composer.text, "");
  assert.deepEqual(tab.messages.texts, ["only once, please", ""]);
  const [first, second] = server.turnBodies;
  assert.equal(first.request_id, second.request_id);
  assert.equal(server.get("new1").messages.length, 2);
});

test("only a retry of the same message has its id: not another text, and not what the server refused", async () => {
  const tab = openTab(browser);
  server.answer("POST /api/turns", undefined);
  await tab.send("lost");
  await tab.send("another text");
  server.finish("t1", "");
  await tab.openConversation.reopen();
  server.answer("POST /api/turns", [503, { error: { code: "engine_unavailable", message: "Loading." } }]);
  await tab.send("refused");
  await tab.send("refused");
  const ids = server.turnBodies.map(({ request_id: id }) => id);
  assert.equal(new Set(ids).size, ids.length);
  assert.deepEqual(server.turnBodies.map((body) => body.text), ["lost", "another text", "refused", "refused"]);
});

test("a retry that had arrived and is shown already is not shown twice", async () => {
  const [tab, other] = [openTab(browser), openTab(browser)];
  await tab.open("a");
  await other.open("a");
  server.loseResponse("POST /api/turns");
  await tab.send("once");
  other.crossTab.broadcast("conversation-changed", { id: "a" });
  await settle();
  server.finish("t1", "done");
  await tab.openConversation.reopen();
  await tab.send("once");
  assert.deepEqual(tab.messages.texts, ["question a", "answer a", "once", "done"]);
});

test("one message at a time: the second one waits for the reply to the first", async () => {
  const tab = openTab(browser);
  const sending = server.hold("POST /api/turns");
  const first = tab.openConversation.send("first", null, false);
  assert.equal(await tab.openConversation.send("second", null, false), null);
  await sending.letGo();
  assert.equal((await first).left, false);
  assert.equal(await tab.openConversation.send("third", null, false), null);
  assert.deepEqual(server.turnBodies.map((body) => body.text), ["first"]);
});

test("a reply that another tab continued after a crash is not joined to what the crash lost", async () => {
  const tab = openTab(browser);
  server.ask("a", "crash");
  const reply = Object.assign(server.get("a").messages.at(-1), { content: "Saved words", status: "streaming", turn_id: "t1" });
  await tab.open("a");
  await accept();
  text("t1", " that were lost", 26);
  assert.equal(tab.messages.lastReply.source, "Saved words that were lost");
  FakeEventSource.last.fail();
  assert.match(tab.messages.lastReply.note, /connection was lost/);
  assert.equal(tab.connected, false);
  // The server is back with the words it had saved, and another tab goes on from those.
  Object.assign(reply, { content: "Saved words and what came instead", status: "complete" });
  await pass(400);
  FakeEventSource.last.accept();
  await settle();
  assert.equal(tab.messages.lastReply.source, "Saved words and what came instead");
});

test("an end with less text than is shown loads what the server has", async () => {
  const tab = openTab(browser);
  await tab.open("a");
  await tab.send("go");
  await accept();
  text("t1", "more than was saved", 19);
  server.finish("t1", "more", "interrupted");
  end("t1", 4, { status: "interrupted" });
  await settle();
  assert.equal(tab.messages.lastReply.source, "more");
});

test("a reply that failed says why, keeps its text and is over", async () => {
  const tab = openTab(browser);
  await tab.send("this will fail");
  await accept();
  text("t1", "Half a sen", 10);
  end("t1", 10, { status: "error", error: "The engine ran out of memory." });
  const { source, message, note } = tab.messages.lastReply;
  assert.deepEqual([source, message.status, note], ["Half a sen", "error", "The engine ran out of memory."]);
  assert.deepEqual([tab.replying, tab.openConversation.activeTurnId], [false, null]);
});

test("a connection that comes back takes its notice away", async () => {
  const tab = openTab(browser);
  await tab.open("a");
  await tab.send("over a bad line");
  await accept();
  FakeEventSource.last.fail();
  assert.deepEqual([tab.connected, tab.replying], [false, true]);
  const { lastReply } = tab.messages;
  await pass(400);
  FakeEventSource.last.accept();
  assert.equal(lastReply.note, "");
  assert.equal(tab.connected, true);
});

test("a conversation that is deleted while it replies is gone, unless the user is leaving it already", async () => {
  for (const [leaving, message] of [[false, /does not exist/], [true, /^$/]]) {
    const tab = openTab(browser);
    await tab.open("a");
    await tab.send("go");
    await accept();
    const opening = server.hold("/conversations/b");
    if (leaving) tab.open("b");
    FakeEventSource.last.send("gone", { turn_id: tab.openConversation.activeTurnId });
    await settle();
    assert.match(tab.composer.error, message);
    await opening.letGo();
    assert.equal(tab.openConversation.conversationId, leaving ? "b" : null);
    server.add("a", ["question a", "answer a"]);
    await pass(60_000); // the stream that lingers is closed
  }
});

test("what one tab does shows in the other: a message, an edit, another version", async () => {
  const [tab, other] = [openTab(browser), openTab(browser)];
  await tab.open("a");
  await other.open("a");
  await tab.send("seen in both tabs");
  await settle();
  assert.deepEqual(other.messages.texts.slice(2), ["seen in both tabs", ""]);
  assert.equal(other.replying, true);
  await accept();
  text("t1", "to both", 7);
  end("t1", 7);
  server.finish("t1", "to both");
  assert.deepEqual([tab.messages.lastReply.source, other.messages.lastReply.source], ["to both", "to both"]);
  assert.equal(await tab.handlers.edit({ id: "u1", text: "changed" }), true);
  await settle();
  assert.deepEqual([tab, other].map(({ messages }) => messages.texts.at(-2)), ["changed", "changed"]);
  server.finish("t2", "other");
  await accept();
  end("t2", 0);
  await settle();
  server.get("a").messages[0].content = "another version";
  const scrolls = () => [tab, other].map(({ messages }) => messages.calls.filter((call) => call === "toLatest").length);
  const before = scrolls();
  await tab.handlers.version({ id: "a0", step: "next" });
  await settle();
  assert.deepEqual([tab, other].map(({ messages }) => messages.texts[0]), ["another version", "another version"]);
  assert.deepEqual(scrolls(), [before[0], before[1] + 1], "where the version was switched, the reader stays at it");
});

test("another version is shown once the server has it; one that it refuses leaves what is shown", async () => {
  const tab = openTab(browser);
  await tab.open("a");
  server.answer("POST /api/messages/b7/show", [404, { error: { code: "not_found", message: "It was deleted." } }]);
  const before = server.requests.length;
  await tab.handlers.version({ id: "b7", step: "next" });
  assert.equal(tab.composer.error, "It was deleted.");
  assert.deepEqual(server.requests.slice(before), ["POST /api/messages/b7/show"]);
  await tab.handlers.version({ id: "a0", step: "next" });
  assert.equal(server.requests.at(-2), "POST /api/messages/a0/show");
  assert.equal(tab.messages.calls.at(-1), "focusVersion a0 next");
});

test("while a reply is written nothing else begins", async () => {
  const tab = openTab(browser);
  await tab.open("a");
  await tab.send("a long story");
  const before = server.requests.length;
  for (const [name, detail] of [["edit", { id: "a0", text: "x" }], ["regenerate", { id: "a1" }], ["resume", { id: "a1" }]]) {
    tab.composer.error = "";
    assert.equal(await tab.handlers[name](detail), false, "an edit stays in its box");
    assert.match(tab.composer.error, /still being written/, name);
  }
  for (const [name, detail] of [["version", { id: "a0", step: "next" }], ["delete", { id: "a0" }]]) {
    tab.composer.error = "";
    await tab.handlers[name](detail);
    assert.match(tab.composer.error, /still being written/, name);
  }
  assert.equal(server.requests.length, before);
});

test("earlier messages come above the others, unless the conversation was left", async () => {
  const tab = openTab(browser);
  server.get("a").has_earlier = true;
  await tab.open("a");
  assert.equal(tab.has_earlier, true);
  server.answer("before=a0", [200, { messages: [{ id: "e", role: "user", content: "earlier" }], has_earlier: false }]);
  await tab.handlers.earlier();
  assert.deepEqual([tab.messages.texts, tab.has_earlier], [["earlier", "question a", "answer a"], false]);
  server.answer("before=e", undefined);
  await tab.handlers.earlier();
  assert.match(tab.composer.error, /cannot be reached/);
  assert.deepEqual([tab.messages.texts.length, tab.earlier.disabled], [3, false]);
  server.answer("before=e", [200, { messages: [{ id: "f", role: "user", content: "too late" }], has_earlier: true }]);
  const loading = tab.handlers.earlier();
  tab.navigation.navigate(null);
  await loading;
  assert.deepEqual([tab.messages.texts, tab.has_earlier], [[], false]);
});

test("a decision about a tool that comes too late shows what has become of the reply", async () => {
  const tab = openTab(browser);
  await tab.open("a");
  server.get("a").messages.at(-1).content = "decided elsewhere";
  server.answer("/messages/a1/tools", [422, { error: { code: "invalid_input", message: "This reply does not wait." } }]);
  await tab.handlers.decide({ id: "a1", allow: ["1"], allow_for_chat: [], deny: [] });
  await settle();
  assert.deepEqual(tab.messages.texts, ["question a", "decided elsewhere"]);
  assert.deepEqual(tab.errors.map(({ message }) => message), ["This reply does not wait."]);
});
