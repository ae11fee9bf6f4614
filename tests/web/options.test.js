import { fakeFetch, settle } from "./fakes.js";

import assert from "node:assert/strict";
import { test } from "node:test";

import { CurrentOptions, introduction, retentionNote } from "../../app/ui/pages/chat/options.js";

const GUIDE = { num_parameters: 4_300_000, max_model_len: 2048, remote: false, is_loading: false };
const WELCOME = { good_for: "talk", examples: ["Hi!"] };
const named = (name) => ({ model: { name, ...GUIDE }, welcome: WELCOME, parameters: [], accounts: false, retention_days: null });

/** Options whose requests the test answers, in any order. */
function current() {
  const answers = [];
  const errors = [];
  fakeFetch({ "GET /ui/options": () => new Promise((resolve) => answers.push(resolve)) });
  const options = new CurrentOptions(named("before"), (error) => errors.push(error.message));
  const reload = async () => {
    const reloaded = options.reload();
    await settle();
    return { reloaded };
  };
  return { options, answers, errors, reload };
}

test("the options are those of the newest answer, whichever comes last", async () => {
  const { options, answers, reload } = current();
  const [older, newer] = [await reload(), await reload()];
  answers[1](named("new"));
  assert.equal(await newer.reloaded, true);
  assert.equal(options.value.model.name, "new");
  answers[0](named("old"));
  assert.equal(await older.reloaded, false, "nothing is shown again");
  assert.equal(options.value.model.name, "new");
});

test("a failure is told, unless a newer request was made", async () => {
  const { options, answers, errors, reload } = current();
  const [older, newer] = [await reload(), await reload()];
  answers[0]([500, { error: { code: "internal", message: "older" } }]);
  answers[1]([500, { error: { code: "internal", message: "newer" } }]);
  assert.deepEqual([await older.reloaded, await newer.reloaded], [false, false]);
  assert.deepEqual(errors, ["newer"]);
  assert.equal(options.value.model.name, "before");
});

test("the user is told where the model runs", () => {
  const options = named("Guide");
  assert.deepEqual(introduction(options).split("\n"), [
    "Deskmate is a chat whose model runs on this machine. Nothing you write leaves it.",
    "You are talking to Guide, with 4.3 million parameters and a context of 2,048 tokens.",
    "It is good for talk.",
  ]);
  assert.match(introduction({ ...options, accounts: true }), /runs on this server\. Nothing/);
  const far = introduction({ ...options, model: { ...options.model, name: "Far", num_parameters: 0, remote: true }, welcome: { good_for: "", examples: [] } });
  assert.match(far, /runs on another server\. What you write is sent there\.\n/);
  assert.match(far, /Far, with a context of 2,048 tokens\.$/, "its size is not known");
});

test("while a model is loaded, nothing is said about its size", () => {
  const options = named("Guide");
  assert.doesNotMatch(introduction({ ...options, model: { ...options.model, is_loading: true } }), /Guide|parameters/);
});

test("the user is told when conversations are deleted, if they are", () => {
  assert.equal(retentionNote(named("x")), "");
  assert.match(retentionNote({ ...named("x"), retention_days: 30 }), /for 30 days are deleted/);
});
