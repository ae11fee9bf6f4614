import assert from "node:assert/strict";
import { test } from "node:test";

import { endingNote, hasEnded, leftOutLine, thoughtsLabel, whyEnded } from "../../app/ui/components/chat/reply_texts.js";

const STATS = {
  prompt_tokens: 1200,
  cached_prompt_tokens: 960,
  completion_tokens: 212,
  ttft_ms: 312.4,
  tokens_per_second: 24.06,
  finish_reason: "stop",
};

test("a reply that fills the context did not reach its maximum length", () => {
  const full = { ...STATS, finish_reason: "length", prompt_tokens: 200, completion_tokens: 56 };
  assert.equal(whyEnded(full, 256), "reached the end of the model's context");
  assert.equal(whyEnded(full, 257), "reached its maximum length");
  assert.equal(whyEnded(full, null), "reached its maximum length");
  assert.equal(whyEnded({ ...full, finish_reason: "stop" }, 256), "ended by itself");
});

test("an unknown reason is shown as it is", () => {
  assert.equal(whyEnded({ ...STATS, finish_reason: "repetition" }, null), "repetition");
});

test("only a reply that was cut can be continued", () => {
  for (const finish_reason of ["stop", "stop_string", "tool_calls"]) assert.ok(hasEnded({ ...STATS, finish_reason }));
  for (const finish_reason of ["length", "abort", "error", "deadline"]) assert.ok(!hasEnded({ ...STATS, finish_reason }));
  assert.ok(hasEnded(null));
  assert.ok(hasEnded(undefined));
});

test("how a reply ended", () => {
  assert.equal(endingNote("complete", null, false), "");
  assert.equal(endingNote("complete", null, true), "The reply is empty.");
  assert.equal(endingNote("error", "Out of memory.", false), "The reply failed. Out of memory.");
  assert.equal(endingNote("error", undefined, true), "The reply failed.");
  assert.equal(endingNote("interrupted", "The model was unloaded.", false), "Interrupted. The model was unloaded. The text so far was kept.");
  assert.match(endingNote("interrupted", null, false), /^Interrupted: Deskmate was shut down/);
  assert.equal(endingNote("stopped", null, false), "Stopped. The text so far was kept.");
  assert.equal(endingNote("stopped", null, true), "Stopped before the first word.", "there is no text to keep");
});

test("how a reply ended that has thoughts only", () => {
  assert.equal(endingNote("complete", null, true, true), "The reply ended while thinking.");
  assert.match(endingNote("stopped", null, true, true), /^Stopped while thinking\./);
  assert.match(endingNote("interrupted", null, true, true), /^Interrupted while thinking/);
  assert.equal(endingNote("error", "Out of memory.", true, true), "The reply failed. Out of memory.");
  assert.equal(endingNote("complete", null, false, true), "");
});

test("how long the model thought", () => {
  assert.equal(thoughtsLabel(null, true), "Thinking …");
  assert.equal(thoughtsLabel(0.4, true), "Thinking …");
  assert.equal(thoughtsLabel(5.9, true), "Thinking … 5 s");
  assert.equal(thoughtsLabel(0.2, false), "Thought for 1 s");
  assert.equal(thoughtsLabel(59.6, false), "Thought for 1 min 0 s");
  assert.equal(thoughtsLabel(125, false), "Thought for 2 min 5 s");
  assert.equal(thoughtsLabel(null, false), "Thoughts");
});

test("how many messages the model did not get", () => {
  assert.equal(leftOutLine({}), "");
  assert.equal(leftOutLine({ omitted_messages: 0, context_length: 256 }), "");
  assert.equal(leftOutLine({ omitted_messages: 1, context_length: 256 }), "1 earlier message was left out, so that the model's 256 tokens have room for this reply and what follows.");
  assert.equal(leftOutLine({ omitted_messages: 1500, has_system_prompt: true }), "1,500 earlier messages were left out, so that the model's context has room for this reply and what follows; the system prompt was kept.");
});
