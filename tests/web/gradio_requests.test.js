import assert from "node:assert/strict";
import { test } from "node:test";

const RUN = "http://localhost/gradio_api/run/predict?c=1";

const unreachable = () => {
  throw new TypeError("Failed to fetch");
};
let network = unreachable; // how it answers
globalThis.window = globalThis;
globalThis.fetch = async (...request) => network(...request);
await import("../../app/ui/shared/gradio_requests.js");

test("a listener's request that is lost is refused, as by a server", async () => {
  for (const input of [RUN, new URL(RUN), new Request(RUN)]) {
    const answer = await fetch(input);
    assert.deepEqual([answer.status, await answer.json()], [502, { error: "The connection to the server was lost." }]);
  }
});

test("other requests are lost as always", async () => {
  for (const url of ["/api/turns", "/gradio_api/queue/join", "/gradio_api/runs"]) await assert.rejects(fetch(url), TypeError);
});

test("what the server answers is passed on, and so is the request", async () => {
  network = (input, { body }) => Response.json([input, body], { status: 403 });
  const answer = await fetch(RUN, { body: "text" });
  assert.deepEqual([answer.status, await answer.json()], [403, [RUN, "text"]]);
});
