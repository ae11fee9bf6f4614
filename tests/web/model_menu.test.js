import assert from "node:assert/strict";
import { test } from "node:test";

import { downloadText, fileSize, foundFacts, isRunning, recommendedFacts, speedLimit } from "../../app/ui/components/model_menu/model_texts.js";

const FOUND = {
  id: "ollama:tiny:1b",
  name: "tiny:1b",
  source: "ollama",
  size_bytes: 98_362_432,
  format: "GGUF Q4_1",
  context_length: 8192,
  fits: true,
  tokens_per_second: 187.3,
  problem: null,
  loaded: false,
};

test("a found model with what is known of it", () => {
  assert.equal(foundFacts(FOUND), "98 MB · GGUF Q4_1 · context of 8,192 · up to 190 tokens/s · Ollama");
  assert.equal(foundFacts({ ...FOUND, format: null, context_length: null, fits: null, tokens_per_second: null, source: "hub-cache" }), "98 MB · hub cache");
});

test("one that does not fit, and a damaged one", () => {
  assert.match(foundFacts({ ...FOUND, fits: false }), /needs more memory than is free/);
  assert.equal(foundFacts({ ...FOUND, problem: "The file is cut short." }), "The file is cut short.");
});

test("sizes and speeds have few digits", () => {
  assert.deepEqual([0, 400_000, 98_362_432, 1_510_000_000].map(fileSize), ["1 MB", "1 MB", "98 MB", "1.5 GB"]);
  assert.deepEqual([3.14159, 42.4, 187.3, 1234].map(speedLimit), ["up to 3.1 tokens/s", "up to 42 tokens/s", "up to 190 tokens/s", "up to 1,200 tokens/s"]);
});

test("own terms are not called open source", () => {
  const model = { name: "g", title: "G", description: "Small.", size_mb: 2040, licence: "Gemma Terms of Use", terms: "own", hub: "google/g", id: null };
  assert.equal(recommendedFacts(model), "Small. 2.0 GB · Gemma Terms of Use (not open source)");
  assert.equal(recommendedFacts({ ...model, licence: "MIT", terms: "open" }), "Small. 2.0 GB · MIT");
});

test("what a download does", () => {
  const download = { model: "tiny", title: "Tiny", load: true, state: "downloading", stage: "", progress: 0, error: null };
  assert.equal(downloadText(download), "Downloading Tiny …");
  assert.equal(downloadText({ ...download, stage: "Unpacking" }), "Unpacking …");
  assert.equal(downloadText({ ...download, state: "loading" }), "Loading Tiny …");
  assert.match(downloadText({ ...download, state: "cancelled" }), /was cancelled/);
  for (const state of ["done", "failed"]) assert.equal(downloadText({ ...download, state }), "");
  assert.equal(downloadText(null), "");
  assert.deepEqual(["downloading", "loading", "done", "failed", "cancelled"].map((state) => isRunning({ ...download, state })), [true, true, false, false, false]);
  assert.equal(isRunning(undefined), false);
});
