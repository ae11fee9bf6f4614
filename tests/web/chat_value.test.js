import assert from "node:assert/strict";
import { test } from "node:test";

import { changeOf, readValue } from "../../app/ui/components/chat/value.js";

const user = { role: "user", content: "Hi" };
const reply = { role: "assistant", content: "Hello" };

/** What becomes of each message of a value in the next one. */
const changes = (before, after) => {
  const shown = new Map(readValue(before).messages.map((message) => [message.id, message]));
  return readValue(after).messages.map((message) => (shown.has(message.id) ? changeOf(shown.get(message.id), message) : "new"));
};

test("a component without a value shows no messages", () => {
  for (const value of ["", null, undefined, []]) assert.deepEqual(readValue(value).messages, []);
});

test("a system message is not shown, and the others keep their positions in the value", () => {
  const { messages, places } = readValue([{ role: "system", content: "Be kind." }, user, { ...reply, id: "r" }]);
  assert.deepEqual(messages.map(({ content }) => content), ["Hi", "Hello"]);
  assert.deepEqual(places.get(messages[0].id), { index: 1, id: null });
  assert.deepEqual(places.get("r"), { index: 2, id: "r" });
});

test("only a last reply without text and status is waited for", () => {
  const empty = { role: "assistant", content: "" };
  const statuses = (...value) => readValue(value).messages.map(({ status }) => status);
  assert.deepEqual(statuses(user, empty), ["complete", "streaming"]);
  assert.deepEqual(statuses(user, empty, user), ["complete", "complete", "complete"]);
  assert.deepEqual(statuses(user, { ...empty, status: "stopped" }), ["complete", "stopped"]);
  assert.deepEqual(statuses({ role: "user", content: "" }), ["complete"]);
});

test("a message without a status may still grow", () => {
  const growing = readValue([reply, { ...reply, status: "complete" }]).messages.map(({ mayGrow }) => mayGrow);
  assert.deepEqual(growing, [true, undefined]);
});

test("a growing last reply is updated, the messages before it stay", () => {
  assert.deepEqual(changes([user, { ...reply, content: "" }], [user, { ...reply, content: "He" }]), ["same", "update"]);
  assert.deepEqual(changes([user, reply], [user, { ...reply, content: "Hello you" }]), ["same", "update"]);
  assert.deepEqual(changes([user, reply], [{ ...user }, { ...reply }]), ["same", "same"]);
});

test("a text that does not go on from the shown one is built again", () => {
  for (const content of ["Hell", "hello", ""]) {
    assert.deepEqual(changes([user, reply], [user, { ...reply, content }]), ["same", "replace"]);
  }
});

test("the end and the statistics of a reply are an update", () => {
  const streaming = { ...reply, status: "streaming" };
  assert.deepEqual(changes([streaming], [{ ...reply, status: "complete" }]), ["update"]);
  assert.deepEqual(changes([streaming], [{ ...reply, status: "error", error: "No memory." }]), ["update"]);
  assert.deepEqual(changes([reply], [{ ...reply, stats: { prompt_tokens: 3, completion_tokens: 1 } }]), ["update"]);
  assert.deepEqual(changes([reply], [{ ...reply, feedback: { rating: "up", reasons: [], comment: "" } }]), ["update"]);
});

test("what cannot change in place is built again: a user's text, versions, a reply that is continued", () => {
  assert.deepEqual(changes([user], [{ ...user, content: "Hi there" }]), ["replace"]);
  assert.deepEqual(changes([{ ...reply, id: "b", siblings: ["b"] }], [{ ...reply, id: "b", siblings: ["a", "b"] }]), ["replace"]);
  assert.deepEqual(changes([{ ...reply, status: "stopped" }], [{ ...reply, status: "streaming" }]), ["replace"]);
  assert.deepEqual(changes([user], [{ ...reply }]), ["replace"]);
});

test("messages with ids are recognised when earlier ones come above them", () => {
  const [first, second] = [{ ...user, id: "1" }, { ...reply, id: "2" }];
  assert.deepEqual(changes([first, second], [{ ...user, id: "0" }, first, second]), ["new", "same", "same"]);
});

test("null and a missing key are the same", () => {
  assert.deepEqual(changes([{ ...reply, stats: null, error: null }], [reply]), ["same"]);
});

test("a call of a tool that is new or has changed is shown in place", () => {
  const use = { id: "c", name: "desk__order", arguments: "{}", status: "waiting" };
  assert.deepEqual(changes([reply], [{ ...reply, tool_uses: [use] }]), ["update"]);
  assert.deepEqual(changes([{ ...reply, tool_uses: [use] }], [{ ...reply, tool_uses: [{ ...use, status: "done" }] }]), ["update"]);
});

test("thoughts that grow are added to, and other thoughts build the reply again", () => {
  const shown = { id: "a", role: "assistant", content: "", status: "streaming", reasoning: "Hm" };
  assert.equal(changeOf(shown, { ...shown, reasoning: "Hm, so", reasoning_seconds: 1 }), "update");
  assert.equal(changeOf(shown, { ...shown, reasoning: "Ha" }), "replace");
  assert.equal(changeOf(shown, { ...shown, reasoning: undefined }), "replace");
});

test("a reply is updated with its calls of tools, and built again where one is gone", () => {
  const call = (id, status = "waiting") => ({ id, name: "desk__order", arguments: "{}", status });
  const after = (before, ...tool_uses) => changes([{ ...reply, tool_uses: before }], [{ ...reply, tool_uses }])[0];
  assert.equal(after([call("1")], call("1", "done"), call("2")), "update");
  assert.equal(after(undefined, call("1")), "update");
  assert.equal(after([call("1"), call("2")], call("2")), "replace");
  assert.equal(after([call("1")]), "replace");
});
