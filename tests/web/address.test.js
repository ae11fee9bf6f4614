import "./fakes.js";

import assert from "node:assert/strict";
import { test } from "node:test";

import { conversationUrl, parseLocation } from "../../app/ui/pages/chat/address.js";

test("an address leads back to its conversation and message", () => {
  for (const [id, at] of [["a", null], ["a", "m"], ["a&c=b", "m #?"]]) {
    assert.deepEqual(parseLocation(new URL(conversationUrl(id, at), "http://desk").search), { id, at });
  }
});

test("a new chat is the page without a query", () => {
  assert.equal(conversationUrl(null), "/");
  assert.equal(conversationUrl(null, "m"), "/");
  assert.deepEqual(parseLocation(""), { id: null, at: null });
});
