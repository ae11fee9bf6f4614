import { freshBrowser, openTab } from "./chat_tab.js";
import { raise, settle } from "./fakes.js";

import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";

let browser;
let server;
let tab;

beforeEach(() => {
  browser = freshBrowser();
  ({ server } = browser);
  server.add("a", ["question a", "answer a"]);
  server.add("b", ["question b", "answer b"]);
  tab = openTab(browser);
});

const address = () => location.pathname + location.search;
const tellFrom = async (other, type, content) => {
  other.crossTab.broadcast(type, content);
  await settle();
};

test("opening a conversation goes into the address, the title, the list and the box; going back does too", async () => {
  await tab.open("a");
  assert.deepEqual([address(), document.title, tab.marked.at(-1)], ["/?c=a", "About a · Deskmate", "a"]);
  assert.ok(tab.composer.calls.includes("useDraft a"));
  await tab.open("b", { at: "b1" });
  assert.equal(address(), "/?c=b&m=b1");
  const entries = history.entries.length;
  Object.assign(location, { search: "?from=mail&c=a" });
  raise("popstate");
  await settle();
  assert.deepEqual([tab.openConversation.conversationId, tab.title, history.entries.length], ["a", "About a", entries]);
  await tab.open(null);
  assert.deepEqual([address(), tab.title, tab.marked.at(-1)], ["/", "New chat", null]);
});

test("opening a conversation closes the panels over the chat; the focus goes to the box, unless the user did not open it", async () => {
  document.activeElement = { name: "the row in the list" };
  await tab.open("a");
  assert.deepEqual([tab.overlays, tab.composer.focusBefore], [1, document.activeElement]);
  tab.navigation.onConversationMissing();
  assert.equal(tab.composer.focusBefore, null);
});

test("an unknown conversation is said to be missing, and a new chat is shown", async () => {
  await tab.open("unknown");
  assert.match(tab.composer.error, /does not exist/);
  assert.deepEqual(history.entries, ["/", "/"], "going back does not lead to it again");
  assert.deepEqual(tab.welcome.shown, { exists: false });
  assert.equal(tab.openConversation.targetConversationId, null);
});

test("a temporary chat whose server is gone has ended", async () => {
  Object.assign(server.get("a"), { temporary: true });
  await tab.open("a");
  assert.equal(tab.mark, true);
  server.delete("a");
  await tab.openConversation.reopen();
  assert.match(tab.composer.error, /temporary chat has ended/);
  assert.equal(tab.mark, false);
});

test("a conversation without messages shows the welcome screen, which cannot make it temporary", async () => {
  server.add("empty", []);
  await tab.open("empty");
  assert.deepEqual(tab.welcome.shown, { exists: true });
  await tab.open("a");
  assert.equal(tab.welcome.shown, null);
  await tab.open(null);
  assert.deepEqual(tab.welcome.shown, { exists: false });
});

test("a conversation that is loaded again leaves draft, settings and focus alone", async () => {
  await tab.open("a");
  const calls = tab.composer.calls.length;
  tab.settings.change({ seed: 3 });
  tab.messages.writing = { id: "a0", from: 0, to: 0 };
  await tab.openConversation.reopen();
  assert.ok(tab.messages.calls.includes("goOnWriting a0"), "and an edit that is being written");
  assert.equal(tab.composer.calls.length, calls);
  assert.equal(tab.settings.value.seed, 3);
});

test("the title is the list's, as soon as that has another", async () => {
  await tab.open("a");
  tab.navigation.onListed([{ id: "b", title: "Other" }, { id: "a", title: "A better title" }]);
  assert.deepEqual([tab.title, document.title], ["A better title", "A better title · Deskmate"]);
  tab.navigation.onListed([{ id: "b", title: "Other" }]);
  assert.equal(tab.title, "A better title");
});

test("the open conversation is marked as read, once its reply has ended and while somebody can see it", async () => {
  const other = openTab(browser);
  await tab.open("a");
  const item = { id: "a", title: "About a", unread: true, streaming: false };
  const patches = () => server.requests.filter((line) => line.startsWith("PATCH")).length;
  tab.navigation.onListed([{ ...item, streaming: true }]);
  tab.navigation.onListed([{ ...item, id: "b" }]);
  document.visibilityState = "hidden";
  tab.navigation.onListed([item]);
  await settle();
  assert.equal(patches(), 0);
  document.visibilityState = "visible";
  const listed = other.listed;
  tab.navigation.onListed([item]);
  await settle();
  assert.deepEqual([patches(), server.get("a").unread], [1, false]);
  assert.equal(other.listed, listed + 1, "the other tabs' lists show it");
});

test("a conversation that is renamed has its title in all tabs that show it, and is not loaded again", async () => {
  const [other, elsewhere] = [openTab(browser), openTab(browser)];
  await tab.open("a");
  await other.open("a");
  await elsewhere.open("b");
  const before = server.requests.length;
  tab.navigation.onRenamed("a", "Rose <b>quartz</b>");
  await settle();
  assert.deepEqual([tab, other, elsewhere].map(({ title }) => title), ["Rose <b>quartz</b>", "Rose <b>quartz</b>", "About b"]);
  assert.equal(server.requests.length, before);
});

test("a conversation that is deleted is left in all tabs that show it or are opening it; the others stay", async () => {
  const [other, elsewhere, opening] = [openTab(browser), openTab(browser), openTab(browser)];
  await tab.open("a");
  await other.open("a");
  await elsewhere.open("b");
  await opening.open("b");
  const held = server.hold("/conversations/a");
  opening.open("a");
  tab.navigation.onDeleted("a");
  await settle();
  await held.letGo(); // the response is from before
  assert.deepEqual([tab, other, elsewhere, opening].map(({ openConversation }) => openConversation.targetConversationId), [null, null, "b", null]);
  assert.deepEqual([tab, other, elsewhere, opening].map(({ composer }) => composer.error !== ""), [false, true, false, true]);
  assert.ok(tab.composer.calls.includes("deleteDraft a"));
});

test("news of other conversations only reach the list", async () => {
  const other = openTab(browser);
  await tab.open("a");
  const { listed } = tab;
  const before = server.requests.length;
  await tellFrom(other, "conversation-changed", { id: "b" });
  await tellFrom(other, "conversation-deleted", { id: "b" });
  assert.deepEqual([tab.listed - listed, server.requests.length - before, tab.composer.error], [2, 0, ""]);
});

test("a conversation that could not be loaded is opened once the server is back, unless the user has gone on", async () => {
  await tab.open("a");
  server.answer("/conversations/b", undefined);
  server.answer("/conversations/a", undefined);
  await tab.open("b");
  assert.deepEqual([address(), tab.openConversation.targetConversationId], ["/?c=b", "a"]);
  await tab.navigation.openMissed();
  assert.deepEqual([address(), tab.title, tab.marked.at(-1)], ["/?c=b", "About b", "b"]);
  server.answer("/conversations/a", undefined);
  server.answer("/conversations/b", undefined);
  await tab.open("a");
  await tab.open(null);
  const before = server.requests.length;
  await tab.navigation.openMissed();
  assert.deepEqual([tab.title, server.requests.length], ["New chat", before]);
});
