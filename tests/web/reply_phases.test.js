import assert from "node:assert/strict";
import { test } from "node:test";

import { duration, factsOf, phasesOf, quietLine } from "../../app/ui/components/chat/reply_phases.js";

const STATS = {
  prompt_tokens: 1200,
  cached_prompt_tokens: 960,
  completion_tokens: 212,
  ttft_ms: 312.4,
  tokens_per_second: 660.4,
  finish_reason: "stop",
  tokenize_ms: 2,
  queue_ms: 12.4,
  decode_ms: 320,
  delivery_ms: 0.5,
  draft_tokens: 40,
  accepted_draft_tokens: 30,
};

test("the line under a reply is short, and says how it ended only if not by itself", () => {
  assert.equal(quietLine(STATS, 4096), "212 tokens · 660/s");
  assert.equal(quietLine({ ...STATS, tokens_per_second: 4.06, finish_reason: "abort" }, 4096), "212 tokens · 4.1/s · stopped");
  assert.equal(quietLine({ prompt_tokens: 1, completion_tokens: 1 }, null), "1 token");
});

test("the phases follow each other, and the first token comes after those before it", () => {
  const phases = phasesOf(STATS);
  assert.deepEqual(
    phases.map(({ name, start, ms }) => [name, start, ms]),
    [
      ["Tokenize", 0, 2],
      ["Queue", 2, 12.4],
      ["Prefill", 14.4, 300],
      ["First token", 0, 314.4],
      ["Decode", 314.4, 320],
      ["Delivery", 634.4, 0.5],
    ],
  );
});

test("an old reply, whose phases were not stored, says what is not known", () => {
  const old = { ...STATS, tokenize_ms: null, queue_ms: null, decode_ms: null, delivery_ms: undefined };
  const known = phasesOf(old).filter(({ ms }) => ms !== null);
  assert.deepEqual(known.map(({ name, ms }) => [name, ms]), [["First token", 312.4]]);
});

test("a reply that called tools does not say when it went on, but how long it was written", () => {
  const phases = phasesOf(STATS, true).filter(({ name }) => name === "Decode" || name === "Delivery");
  assert.deepEqual(phases.map(({ start, ms }) => [start, ms]), [[null, 320], [null, 0.5]]);
  assert.match(phases[0].note, /without the time of the tools/);
  assert.deepEqual(phasesOf(STATS, true).slice(0, 4), phasesOf(STATS).slice(0, 4));
});

test("the speed is a share of what reading weights and cache once per token allows", () => {
  const limit = { bytes_per_second: 10e9, weight_bytes: 5e6, cache_bytes: 3829 }; // (1200 + 106) tokens of cache: 5 MB
  assert.equal(Object.fromEntries(factsOf(STATS, 4096, limit)).Machine, "66 % of its limit for one chat: 1,000 tokens a second, as fast as its memory was read");
  assert.equal(Object.fromEntries(factsOf({ ...STATS, tokens_per_second: 0 }, 4096, limit)).Machine, undefined);
});

test("a reply without a token has no first one", () => {
  const known = phasesOf({ ...STATS, completion_tokens: 0, ttft_ms: 0, decode_ms: 0, delivery_ms: null }).filter(({ ms }) => ms !== null);
  assert.deepEqual(known.map(({ name }) => name), ["Tokenize", "Queue"]);
});

test("the facts name the cached share, the drafts and the end", () => {
  assert.deepEqual(Object.fromEntries(factsOf(STATS, 4096)), {
    Written: "212 tokens, 660.4 a second",
    Prompt: "960 of 1,200 tokens from the cache (80 %)",
    Context: "1,412 of 4,096 tokens",
    "Draft tokens": "30 of 40 accepted (75 %)",
    End: "ended by itself",
  });
  const little = Object.fromEntries(factsOf({ ...STATS, cached_prompt_tokens: null, draft_tokens: 0 }, null));
  assert.match(little.Prompt, /not known/);
  assert.equal(little["Draft tokens"], undefined);
});

test("durations", () => {
  assert.deepEqual([0.04, 9.9, 9.96, 312.4, 999.6, 1250].map(duration), ["0.0 ms", "9.9 ms", "10 ms", "312 ms", "1.00 s", "1.25 s"]);
});
