import { freshBrowser, openTab } from "./chat_tab.js";
import { settle } from "./fakes.js";

import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";

import { announce, prepareAnnouncements } from "../../app/ui/shared/dom.js";

/** What was announced last. */
const announced = () => prepareAnnouncements().textContent;

let browser;
let server;
let tab;

beforeEach(async () => {
  browser = freshBrowser();
  ({ server } = browser);
  server.add("a", ["one", "first", "two", "second"]);
  server.add("b", ["question b", "answer b"]);
  tab = openTab(browser);
  await tab.open("a");
});

test("a message is deleted with what follows, in all tabs, and comes back", async () => {
  const other = openTab(browser);
  await other.open("a");
  const messages = structuredClone(server.get("a").messages);
  await tab.commands.delete("a2");
  await settle();
  assert.deepEqual([tab, other].map((each) => each.messages.texts), [["one", "first"], ["one", "first"]]);
  const { text, name, action } = tab.toasts.at(-1);
  assert.deepEqual([text, name], ["2 messages were deleted.", "Undo"]);
  server.get("a").messages = messages;
  await action();
  await settle();
  assert.equal(announced(), "The messages were restored.");
  assert.ok(server.requests.includes("POST /api/deletions/d/undo"));
  assert.deepEqual([tab, other].map((each) => each.messages.texts.length), [4, 4]);
});

test("one message is one, and undoing it leaves a chat that was opened since", async () => {
  await tab.commands.delete("a3");
  assert.equal(tab.toasts.at(-1).text, "The message was deleted.");
  await tab.open("b");
  const before = server.requests.length;
  await tab.toasts.at(-1).action();
  assert.deepEqual(server.requests.slice(before), ["POST /api/deletions/d/undo"]);
  assert.equal(tab.openConversation.conversationId, "b");
});

test("a deletion or its undoing that fails says why, and changes nothing", async () => {
  server.answer("DELETE /api/messages/a2", [409, { error: { code: "conflict", message: "A reply is being written." } }]);
  await tab.commands.delete("a2");
  assert.equal(tab.composer.error, "A reply is being written.");
  assert.deepEqual([tab.messages.texts.length, tab.toasts], [4, []]);
  await tab.commands.delete("a2");
  announce("");
  server.answer("/undo", [404, { error: { code: "not_found", message: "It is too late to undo this." } }]);
  await tab.toasts.at(-1).action();
  assert.equal(tab.composer.error, "It is too late to undo this.");
  assert.equal(announced(), "");
  assert.equal(tab.toasts.length, 1);
});

test("undoing that did not reach the server, or had to wait for a reply, is offered again", async () => {
  await tab.commands.delete("a2");
  server.answer("/undo", undefined);
  await tab.toasts.at(-1).action();
  assert.match(tab.composer.error, /cannot be reached/);
  server.answer("/undo", [409, { error: { code: "conflict", message: "A reply is still being written." } }]);
  await tab.toasts[1].action();
  assert.deepEqual(tab.toasts.map(({ text, name }) => [text, name]), Array(3).fill(["2 messages were deleted.", "Undo"]));
  await tab.toasts[2].action();
  assert.equal(tab.toasts.length, 3);
  assert.equal(server.requests.filter((line) => line === "POST /api/deletions/d/undo").length, 3);
});

test("a branch is opened; one that cannot be made leaves the conversation open", async () => {
  const { listed } = tab;
  await tab.commands.branch("a1");
  assert.equal(announced(), "You are in a new conversation now.");
  assert.ok(tab.listed > listed, "the list shows it");
  assert.deepEqual([tab.openConversation.conversationId, tab.messages.texts], ["a-branch", ["one", "first"]]);
  assert.equal(location.search, "?c=a-branch");
  await tab.open("b");
  announce("");
  server.answer("/branch", undefined);
  await tab.commands.branch("b1");
  assert.equal(announced(), "");
  assert.match(tab.composer.error, /cannot be reached/);
  assert.equal(tab.openConversation.conversationId, "b");
});

test("a cited passage is marked as an answer to the message that the reply is to", async () => {
  const citation = { number: 1, title: "Terms", heading: "", text: "Ten days.", document_id: "d", version: 2, start: 3, end: 12 };
  await tab.handlers.mark({ id: "a3", citation });
  assert.equal(tab.toasts.at(-1)?.text, "Marked for evaluation: “Ten days.”");
  assert.deepEqual(server.marked, [{ question: "two", document_id: "d", version: 2, start: 3, end: 12 }]);
  server.answer("POST /api/kb/questions", [403, { error: { code: "not_allowed", message: "You may read this collection, but not mark questions." } }]);
  await tab.handlers.mark({ id: "a3", citation });
  assert.equal(tab.composer.error, "You may read this collection, but not mark questions.");
  assert.equal(tab.toasts.length, 1);
});
