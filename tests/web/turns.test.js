import { freshBrowser, openTab } from "./chat_tab.js";
import { pass, settle } from "./fakes.js";

import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";

let browser;
let server;
let tab;

beforeEach(() => {
  browser = freshBrowser();
  ({ server } = browser);
  server.add("a", ["question a", "answer a"], { seed: null });
  server.add("b", ["question b", "answer b"], { seed: null });
  tab = openTab(browser);
});

const seed = (number) => ({ seed: number });
/** The seeds that were saved, in order. */
const saves = () => server.requests.filter((line) => line.startsWith("PATCH")).length;

test("an empty message is refused with a sentence, and stays", async () => {
  for (const text of ["", "   \n "]) {
    tab.composer.error = "";
    await tab.send(text);
    assert.match(tab.composer.error, /is empty/);
    assert.equal(tab.composer.text, text);
  }
  assert.deepEqual([server.requests, tab.messages.texts], [[], []]);
});

test("a message is not sent while a reply is written, nor to a chat that is still opening", async () => {
  const opening = server.hold("/conversations/a");
  tab.open("a");
  await tab.send("where does this go?");
  assert.match(tab.composer.error, /still opening/);
  await opening.letGo();
  await tab.send("goes to a");
  await tab.send("too soon");
  assert.match(tab.composer.error, /still being written/);
  assert.equal(tab.composer.text, "too soon");
  assert.deepEqual(server.turnBodies.map((body) => [body.conversation_id, body.text]), [["a", "goes to a"]]);
});

test("what the server does not accept stays in the box, with the reason", async () => {
  server.answer("POST /api/turns", [502, "<h1>Bad gateway</h1>"]);
  await tab.send("through a broken proxy");
  assert.match(tab.composer.error, /502/);
  assert.doesNotMatch(tab.composer.error, /<h1>/);
  server.answer("POST /api/turns", undefined);
  await tab.send("nobody hears this");
  assert.match(tab.composer.error, /cannot be reached/);
  assert.equal(tab.composer.text, "nobody hears this");
  assert.deepEqual([tab.messages.texts, tab.welcome.shown], [[], null]);
  assert.ok(!tab.composer.calls.some((call) => call.startsWith("clearSent")));
  await tab.send("nobody hears this");
  assert.equal(tab.composer.error, "");
  assert.deepEqual(tab.messages.texts, ["nobody hears this", ""]);
});

test("the first message of a new chat makes its conversation, with its draft, settings and address", async () => {
  await tab.open(null);
  tab.settings.change(seed(7));
  tab.welcome.temporary = true;
  await tab.send("hello");
  const [{ settings, temporary, conversation_id: from }] = server.turnBodies;
  assert.deepEqual([settings, temporary, from], [seed(7), true, null]);
  assert.equal(location.pathname + location.search, "/?c=new1");
  assert.equal(tab.openConversation.isNew, true, "its title is still to come");
  assert.deepEqual([tab.welcome.shown, tab.title, tab.mark], [null, "Temporary chat", true]);
  assert.deepEqual(tab.composer.calls.slice(-3), ["clearSent hello null", "keepDraftFor new1", "takeFocus"]);
  server.finish("t1", "");
  await tab.openConversation.reopen();
  await tab.send("and on");
  assert.equal(tab.openConversation.isNew, false);
  assert.equal(server.turnBodies[1].temporary, false, "only a new chat can become temporary");
});

test("a chat that is left while a message is sent shows nothing of it", async () => {
  await tab.open("a");
  const sending = server.hold("POST /api/turns");
  tab.send("already under way");
  await settle();
  await tab.open("b");
  const listed = tab.listed;
  const focused = tab.composer.calls.filter((call) => call === "takeFocus").length;
  await sending.letGo();
  assert.deepEqual(tab.messages.texts, ["question b", "answer b"]);
  assert.equal(tab.composer.calls.filter((call) => call === "takeFocus").length, focused);
  assert.ok(tab.composer.calls.includes("clearSent already under way a"));
  assert.ok(tab.listed > listed, "the list shows it");
  assert.equal(location.search, "?c=b");
});

test("what another browser asked is shown before anything follows it", async () => {
  await tab.open("a");
  server.ask("a", "asked elsewhere");
  await tab.send("not knowing of that");
  assert.deepEqual(tab.messages.texts.slice(2), ["asked elsewhere", "an answer"]);
  assert.match(tab.composer.error, /changed elsewhere/);
  assert.equal(tab.composer.text, "not knowing of that");
  await tab.send("not knowing of that");
  assert.deepEqual(tab.messages.texts.slice(4), ["not knowing of that", ""]);
});

test("another reply that the server refuses leaves what is shown, and says why", async () => {
  await tab.open("a");
  server.answer("POST /api/messages/a1/regenerate", [503, { error: { code: "engine_unavailable", message: "The model is loading." } }]);
  assert.equal(await tab.handlers.regenerate({ id: "a1" }), false);
  assert.equal(tab.composer.error, "The model is loading.");
  assert.deepEqual(tab.messages.texts, ["question a", "answer a"]);
  server.answer("POST /api/messages/a1/regenerate", [409, { error: { code: "conflict", message: "Changed elsewhere." } }]);
  server.ask("a", "asked elsewhere");
  await tab.handlers.regenerate({ id: "a1" });
  assert.equal(tab.messages.texts.length, 4);
});

test("another reply carries the settings that are not saved yet, which are then saved with it", async () => {
  await tab.open("a");
  tab.settings.change(seed(4));
  const { listed } = tab;
  tab.composer.error = "an earlier error";
  tab.messages.following = false; // the user has scrolled up
  const asked = await tab.handlers.regenerate({ id: "a1" });
  assert.deepEqual([asked, tab.composer.error, tab.composer.calls.at(-1)], [true, "", "takeFocus"]);
  assert.deepEqual(server.get("a").asked.settings, seed(4));
  assert.equal(tab.messages.following, true, "the reply is in view");
  assert.ok(tab.listed > listed, "the list shows it");
  await pass(400);
  assert.equal(saves(), 0);
});

test("no other reply is asked for if a choice made just before has failed", async () => {
  await tab.open("a");
  tab.pendingChoice = () => Promise.reject(new Error("The server did not answer."));
  assert.equal(await tab.handlers.regenerate({ id: "a1" }), false);
  assert.equal(tab.composer.error, "The server did not answer.");
  assert.equal(server.get("a").asked, undefined);
});

test("a choice that was made just before goes with the message", async () => {
  await tab.open("a");
  let apply;
  tab.pendingChoice = () => new Promise((resolve) => (apply = resolve));
  tab.send("with the preset");
  await settle();
  assert.equal(server.turnBodies.length, 0);
  tab.settings.change(seed(3));
  apply();
  await settle();
  assert.deepEqual(server.turnBodies[0].settings, seed(3));
});

test("a choice that fails, or a chat that is left meanwhile, holds the message back", async () => {
  await tab.open("a");
  tab.pendingChoice = () => Promise.reject(new Error("The server did not answer."));
  await tab.send("not sent");
  assert.equal(tab.composer.error, "The server did not answer.");
  let apply;
  tab.pendingChoice = () => new Promise((resolve) => (apply = resolve));
  tab.send("not sent either");
  await tab.open("b");
  apply();
  await settle();
  assert.equal(tab.composer.text, "not sent either");
  assert.equal(server.turnBodies.length, 0);
});

test("settings are saved though their message is refused", async () => {
  await tab.open("a");
  tab.settings.change(seed(77));
  server.answer("POST /api/turns", undefined);
  await tab.send("does not arrive");
  assert.equal(saves(), 0);
  await pass(400);
  assert.deepEqual(server.get("a").settings, seed(77));
});

test("settings that went with a message outlast an older save", async () => {
  await tab.open("a");
  const saving = server.hold("PATCH");
  tab.settings.change(seed(1));
  await pass(400);
  tab.settings.change(seed(2));
  await tab.send("with the second seed");
  assert.deepEqual(server.turnBodies[0].settings, seed(2));
  await saving.letGo();
  await pass(400);
  assert.deepEqual(server.get("a").settings, seed(2));
});

test("settings are saved in their order, and shown as they were left before the server knows them", async () => {
  await tab.open("a");
  const saving = server.hold("PATCH");
  tab.settings.change(seed(1));
  await pass(400);
  tab.settings.change(seed(2));
  await tab.open("b");
  assert.equal(tab.settings.value.seed, null);
  await tab.open("a");
  assert.equal(tab.settings.value.seed, 2);
  await saving.letGo();
  await pass(400);
  assert.deepEqual([saves(), server.get("a").settings], [2, seed(2)]);
});

test("settings that were saved while an older answer was under way stay", async () => {
  await tab.open("a");
  const saving = server.hold("PATCH");
  tab.settings.change(seed(5));
  await tab.open("b");
  const before = structuredClone(server.get("a"));
  const opening = server.hold("GET /api/conversations/a");
  tab.open("a");
  await settle();
  await saving.letGo();
  assert.deepEqual(server.get("a").settings, seed(5));
  server.get("a").settings = before.settings; // the server has answered before the save, and the answer is late
  await opening.letGo();
  assert.deepEqual(tab.messages.texts, ["question a", "answer a"]);
  assert.equal(tab.settings.value.seed, 5);
});

test("a stop that does not reach the server says so", async () => {
  await tab.open("a");
  await tab.send("a long story");
  server.answer("/stop", undefined);
  await tab.turns.stop();
  assert.match(tab.composer.error, /cannot be reached/);
  await tab.turns.stop();
  assert.equal(server.requests.at(-1), "POST /api/turns/t1/stop");
});
