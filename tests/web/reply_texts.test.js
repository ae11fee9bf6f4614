import assert from "node:assert/strict";
import { test } from "node:test";

import { endingNote, hasEnded, leftOutLine, statsLine, thoughtsLabel, whyEnded } from "../../app/ui/components/chat/reply_texts.js";

const STATS = {
  prompt_tokens: 1200,
  cached_prompt_tokens: 960,
  completion_tokens: 212,
  ttft_ms: 312.4,
  tokens_per_second: 24.06,
  finish_reason: "stop",
};

test("the statistics of a reply", () => {
  assert.equal(
    statsLine(STATS, 4096),
    "212 tokens · first after 0.31 s · 24.1 tokens/s · 960 of 1,200 prompt tokens cached · ended by itself",
  );
});

test("what was not measured is left out", () => {
  assert.equal(statsLine({ ...STATS, cached_prompt_tokens: null, tokens_per_second: 0 }, null), "212 tokens · first after 0.31 s · 1,200 prompt tokens · ended by itself");
  assert.equal(statsLine({ ...STATS, completion_tokens: 0, tokens_per_second: 0, finish_reason: "abort" }, null), "0 tokens · 960 of 1,200 prompt tokens cached · stopped");
  assert.equal(statsLine({ prompt_tokens: 1, completion_tokens: 1 }, null), "1 token · 1 prompt token");
});

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
  assert.match(endingNote("stopped", null, true), /^Stopped\./);
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
  assert.equal(leftOutLine({ omitted_messages: 1, context_length: 256 }), "1 earlier message no longer fits the model's 256 tokens and was left out.");
  assert.equal(leftOutLine({ omitted_messages: 1500, has_system_prompt: true }), "1,500 earlier messages no longer fit the model's context and were left out; the system prompt was kept.");
});
