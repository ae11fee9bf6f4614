import assert from "node:assert/strict";
import { test } from "node:test";

import { deletionText, inboxesText, isSettled, scoreText, sizeText, stateText } from "../../app/ui/pages/desk/knowledge_texts.js";

test("a document's state says whether an older version is searched meanwhile", () => {
  const text = (state, version, progress = 0) => stateText({ state, version, progress });
  assert.equal(text("waiting", null), "Waiting to be read");
  assert.equal(text("reading", null, 0.429), "Being read, 42 %");
  assert.equal(text("reading", 1, 0.5), "Being read, 50 % (the version before is searched)");
  assert.equal(text("failed", null), "Could not be read");
  assert.match(text("failed", 2), /the one before is searched$/);
  assert.equal(text("ready", 2), "Ready");
  assert.deepEqual(["waiting", "reading", "ready", "failed"].map((state) => isSettled({ state })), [false, false, true, true]);
});

test("sizes are in units that people read", () => {
  assert.deepEqual([0, 999, 1000, 999_499, 1e6, 52_428_800].map(sizeText), ["0 B", "999 B", "1 KB", "999 KB", "1.0 MB", "52.4 MB"]);
});

test("a score has few digits, and a tiny one is no row of zeros", () => {
  assert.deepEqual([9.5678, 0.0164, 0.00000257].map(scoreText), ["score 9.57", "score 0.02", "score below 0.01"]);
});

test("who deletes a collection reads how many documents go and which chats use it", () => {
  const own = [{ id: "1", title: "Mine" }];
  const text = (documents, chats, own_chats = [], inboxes = []) => deletionText({ documents, chats, own_chats, inboxes });
  assert.match(text(0, 0), /with 0 documents\..* No chat uses it\.$/);
  assert.match(text(1, 1, own), /with 1 document\..* 1 chat uses it as a source.*; yours:$/);
  assert.match(text(2, 3, own), /3 chats use it .*; yours among them:$/);
  assert.match(text(2, 3), /3 chats use it .* the next message\.$/);
  const [mail, web] = ["Mail", "Web"].map((name) => ({ id: name, name }));
  assert.match(text(1, 0, [], [mail]), / The inbox Mail will answer without it\. No chat uses it\.$/);
  assert.match(text(1, 0, [], [mail, web]), / The inboxes Mail, Web will answer without it\./);
});

test("the inboxes that answer from a collection are named", () => {
  const [mail, web] = ["Mail", "Web"].map((name) => ({ id: name, name }));
  assert.match(inboxesText([mail]), /^The inbox Mail answers its visitors from this collection/);
  assert.match(inboxesText([mail, web]), /^The inboxes Mail, Web answer their visitors/);
});
