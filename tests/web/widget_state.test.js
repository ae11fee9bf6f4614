import assert from "node:assert/strict";
import { test } from "node:test";

import { INITIAL, reduce } from "../../app/ui/widget/talk_state.js";

const message = (id, text, { status = "complete", kind = "bot", at = "2026-11-26T10:00:00Z" } = {}) => ({
  id, text, status, author: { kind, name: null }, created_at: at, client_id: null,
});
const replay = (events, state = INITIAL) => events.reduce(reduce, state);
const texts = (state) => state.messages.map((each) => each.text);
const written = (text = "") => replay([{ type: "message", message: message("m", text, { status: "streaming" }) }]);
const piece = (offset, text) => ({ type: "delta", message_id: "m", offset, text });

test("pieces of a reply are joined by code points, and one that comes twice is added once", () => {
  const state = replay([piece(0, "👍🏽 yes"), piece(0, "👍🏽 yes"), piece(3, "yes, we"), piece(10, " can")], written());
  assert.deepEqual(texts(state), ["👍🏽 yes, we can"]);
});

test("a piece after one that was missed asks for the talk again, and the session brings what it was", () => {
  const stale = reduce(written("one"), piece(7, "three"));
  assert.equal(stale.isStale, true);
  assert.deepEqual(texts(stale), ["one"]);
  const session = { inbox: { name: "Shop" }, case: null, contact: {}, messages: [message("m", "one two three")] };
  const state = reduce(stale, { type: "session", session });
  assert.equal(state.isStale, false);
  assert.deepEqual(texts(state), ["one two three"]);
});

test("a piece of an unknown message asks for the talk again", () => {
  assert.equal(reduce(INITIAL, piece(0, "x")).isStale, true);
});

test("a stored beginning does not take back words that have come since, the end does", () => {
  const more = reduce(written(), piece(0, "one two"));
  const stored = reduce(more, { type: "message", message: message("m", "one", { status: "streaming" }) });
  assert.deepEqual(texts(stored), ["one two"]);
  assert.deepEqual(texts(reduce(stored, { type: "message", message: message("m", "one.") })), ["one."]);
});

test("no piece is added to a reply that has ended", () => {
  const ended = reduce(written("one"), { type: "message", message: message("m", "one", { status: "interrupted" }) });
  assert.deepEqual(texts(reduce(ended, piece(3, " two"))), ["one"]);
});

test("the visitor's message stands before the reply to it, even if the answer to it comes later", () => {
  const reply = message("r", "reply", { at: "2026-11-26T10:00:01Z" });
  const question = message("q", "question", { kind: "contact", at: "2026-11-26T10:00:00.500Z" });
  const state = replay([{ type: "message", message: reply }, { type: "message", message: question }, { type: "message", message: question }]);
  assert.deepEqual(texts(state), ["question", "reply"]);
});
