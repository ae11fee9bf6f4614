import assert from "node:assert/strict";
import { test } from "node:test";

import { leftOutText, nameOf, splitByNumbers } from "../../app/ui/pages/chat/case_texts.js";

test("numbers in square brackets are taken out of a text, and nothing else is", () => {
  assert.deepEqual(splitByNumbers("So [1][12]. [0] [x] [1234] end"), ["So ", 1, 12, ". [0] [x] [1234] end"]);
  assert.deepEqual(splitByNumbers("plain"), ["plain"]);
  assert.deepEqual(splitByNumbers(""), []);
});

test("a summary says what it leaves out", () => {
  const text = (left_out, has_earlier, summary = "It is.") => leftOutText({ text: summary, left_out, total: 40, has_earlier });
  assert.equal(text(0, false), "");
  assert.match(text(1, false), /^1 older message of 40 was left out/);
  assert.match(text(12, true), /^12 older messages of 40 were left out.* there are still older ones\.$/);
  assert.equal(text(0, true, ""), "There are still older messages.");
});

test("a note is named as one, and not as a reply", () => {
  assert.equal(nameOf({ role: "user", internal: false }), "Message");
  assert.equal(nameOf({ role: "assistant", internal: false }), "Reply");
  assert.equal(nameOf({ role: "assistant", internal: true }), "Note");
});
