import { pass } from "./fakes.js";

import assert from "node:assert/strict";
import { beforeEach, mock, test } from "node:test";

import { PendingChoice } from "../../app/ui/components/settings/pending_choice.js";

beforeEach(() => {
  mock.timers.reset();
  mock.timers.enable({ apis: ["setTimeout"] });
});

test("a turn waits for the choice made last", async () => {
  const choice = new PendingChoice("preset");
  assert.equal(choice.wait(), null);
  choice.make("precise");
  const waits = choice.wait();
  choice.make("creative");
  assert.equal(choice.name, "creative");
  choice.end();
  await waits;
  assert.deepEqual([choice.name, choice.wait()], [null, null]);
});

test("a choice that fails is over at once, and the turn hears why", async () => {
  const choice = new PendingChoice("preset");
  choice.make("precise");
  const waits = choice.wait();
  const tell = choice.fail();
  assert.equal(choice.name, null);
  choice.make("creative"); // meanwhile
  tell(new Error("no server"));
  await assert.rejects(waits, /no server/);
  assert.equal(choice.name, "creative");
});

test("a turn does not wait longer than five seconds", async () => {
  const choice = new PendingChoice("preset");
  choice.make("precise");
  let outcome = "waiting";
  choice.wait().catch((error) => (outcome = error.message));
  await pass(4999);
  assert.equal(outcome, "waiting");
  await pass(1);
  assert.equal(outcome, "The preset has not been applied yet. Send again in a moment.");
});
