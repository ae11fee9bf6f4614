import assert from "node:assert/strict";
import { test } from "node:test";

import { filledIn, fits } from "../../app/ui/components/composer/canned_text.js";
import { draftKeyOf, readDraft, withoutSent, writeDraft } from "../../app/ui/components/composer/drafts.js";

test("a canned reply is found by words of its title, description and name, in any order", () => {
  const reply = { name: "refund_30", title: "Refund", description: "Money back within a month" };
  for (const query of ["", "refund", "MONEY ref", "month refund_30"]) assert.ok(fits(reply, query), query);
  for (const query of ["refund year", "moneyback"]) assert.ok(!fits(reply, query), query);
  assert.ok(fits({ name: "hello" }, "hell"), "a name alone is enough");
});

test("values stand in place of their names, once", () => {
  assert.equal(filledIn("Dear {{ name }},\n{{name}}!", { name: "Ann" }), "Dear Ann,\nAnn!");
  assert.equal(filledIn("{{ a }}{{ b }}", { a: "{{ b }}", b: "$&" }), "{{ b }}$&", "a value is text, not a template");
  assert.equal(filledIn("{{ other }} {{ constructor }} { name }", { name: "Ann" }), "{{ other }} {{ constructor }} { name }");
});

test("a new chat and each conversation have drafts of their own", () => {
  const keys = [null, "a", "b"].map(draftKeyOf);
  assert.equal(new Set(keys).size, 3);
  assert.equal(draftKeyOf("a"), "deskmate.draft.a", "tabs that are open keep their drafts over an update");
});

test("drafts are kept until they are empty; without storage there are none", () => {
  assert.equal(readDraft("a"), "", "Node has no window");
  const stored = new Map();
  const sessionStorage = {
    getItem: (/** @type {string} */ key) => stored.get(key) ?? null,
    setItem: (/** @type {string} */ key, /** @type {string} */ text) => stored.set(key, text),
    removeItem: (/** @type {string} */ key) => stored.delete(key),
  };
  Object.assign(globalThis, { window: { sessionStorage } });
  writeDraft("a", "half a sentence");
  assert.equal(readDraft("a"), "half a sentence");
  assert.equal(readDraft(null), "");
  writeDraft("a", "");
  assert.equal(stored.size, 0);
});

test("what is typed behind a message that is sent stays", () => {
  assert.equal(withoutSent("sent and more", "sent"), "and more");
  assert.equal(withoutSent("sent", "sent"), "");
  assert.equal(withoutSent("another draft", "sent"), null);
});
