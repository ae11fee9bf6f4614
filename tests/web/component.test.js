import assert from "node:assert/strict";
import { test } from "node:test";

import { call, register } from "../../app/ui/shared/component.js";

test("a listener calls the script of its page; in an app without one, nothing", async () => {
  register("panel", { add: (one, other) => one + other });
  assert.equal(await call("panel", "add", 1, 2), 3);
  assert.equal(await call("another", "add", 1, 2), undefined);
});

test("a method that the script does not have is an error, not a listener without effect", async () => {
  register("panel", {});
  await assert.rejects(call("panel", "misspelt"), TypeError);
});
