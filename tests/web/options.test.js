import { fakeFetch, settle } from "./fakes.js";

import assert from "node:assert/strict";
import { test } from "node:test";

import { CurrentOptions, introduction, retentionNote } from "../../app/ui/pages/chat/options.js";

const named = (name) => ({ model: { name, remote: false }, parameters: [], accounts: false, retention_days: null });

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
  assert.equal(introduction(options), "You are talking to Guide, which runs on this machine. Nothing you write leaves it.");
  assert.match(introduction({ ...options, accounts: true }), /runs on this server\. Nothing/);
  assert.match(introduction({ ...options, model: { name: "Far", remote: true } }), /Far, which runs on another server\. What you write is sent there\.$/);
});

test("the user is told when conversations are deleted, if they are", () => {
  assert.equal(retentionNote(named("x")), "");
  assert.match(retentionNote({ ...named("x"), retention_days: 30 }), /for 30 days are deleted/);
});
