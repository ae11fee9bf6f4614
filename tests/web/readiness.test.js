import { fakeFetch, pass, raise, settle } from "./fakes.js";

import assert from "node:assert/strict";
import { beforeEach, mock, test } from "node:test";

import { ApiError } from "../../app/ui/shared/api.js";
import { Readiness } from "../../app/ui/pages/chat/readiness.js";

const UNREACHABLE = new ApiError("Deskmate cannot be reached.", 0, "unreachable");
const LOADING = new ApiError("The model is loading.", 503, "engine_unavailable");

let alert;
let server; // what the server answers to GET /ready
let requests;

beforeEach(() => {
  mock.timers.reset();
  mock.timers.enable({ apis: ["setTimeout"] });
  alert = { textContent: "" };
  globalThis.document = { hidden: false };
  server = {};
  requests = fakeFetch({ "GET /ready": () => server });
});

/** A page's readiness, with what its header shows and how often it was told that the server is back. */
function openPage() {
  const page = { model: "Guide", replying: false, loading: false, loads: 0, reconnects: 0, shown: "", states: [] };
  const header = {
    showStatus: (text, state) => {
      page.shown = text;
      page.states.push(state);
    },
  };
  page.readiness = new Readiness(header, {
    modelName: () => page.model,
    isReplying: () => page.replying,
    isLoading: () => page.loading,
    onLoaded: () => page.loads++,
    onReconnect: () => page.reconnects++,
    withdrawError: (message) => {
      if (alert.textContent === message) alert.textContent = "";
    },
  });
  return page;
}

test("the header names the model and its state", async () => {
  const page = openPage();
  await page.readiness.check();
  assert.equal(page.shown, "Guide · ready");
  page.replying = true;
  await page.readiness.check();
  assert.equal(page.shown, "Guide · replying");
  page.model = "Other";
  page.readiness.refreshName();
  assert.equal(page.shown, "Other · replying");
});

test("a page whose server is ready asks no more", async () => {
  await openPage().readiness.check();
  await pass(60_000);
  assert.equal(requests.length, 1);
});

test("an unreachable server is asked again, with pauses that double up to ten seconds", async () => {
  server = undefined;
  const page = openPage();
  await page.readiness.check();
  for (const pause of [1000, 2000, 4000, 8000, 10_000, 10_000]) {
    const before = requests.length;
    await pass(pause - 1);
    assert.equal(requests.length, before, `asked before ${pause} ms`);
    await pass(1);
    assert.equal(requests.length, before + 1);
  }
  assert.deepEqual(page.states, ["not reachable"]);
  server = {};
  await pass(10_000);
  assert.deepEqual(page.states, ["not reachable", "ready"]);
  assert.equal(page.reconnects, 1);
  const before = requests.length;
  await pass(60_000);
  assert.equal(requests.length, before);
});

test("a server whose model is not loaded is not ready, and its return is no reconnection", async () => {
  server = [503, { error: { code: "engine_unavailable", message: "Loading." } }];
  const page = openPage();
  await page.readiness.check();
  assert.deepEqual(page.states, ["not ready"]);
  server = {};
  await pass(1000);
  assert.deepEqual(page.states, ["not ready", "ready"]);
  assert.equal(page.reconnects, 0);
});

test("a server that is started again is back while its model still loads", async () => {
  server = undefined;
  const page = openPage();
  page.readiness.recordFailure(UNREACHABLE);
  alert.textContent = UNREACHABLE.message;
  await page.readiness.check();
  server = [503, { status: "unavailable", code: "engine_unavailable", reason: "The model is still being loaded." }];
  await pass(1000);
  assert.deepEqual([page.states.at(-1), page.reconnects, alert.textContent], ["not ready", 1, ""]);
  server = {};
  await pass(2000);
  assert.deepEqual([page.states.at(-1), page.reconnects], ["ready", 1]);
});

test("events that arrive again tell that the server is back, and the error about it goes", async () => {
  const page = openPage();
  page.readiness.recordFailure(UNREACHABLE);
  alert.textContent = UNREACHABLE.message;
  page.replying = true;
  page.readiness.connected();
  assert.equal(page.states.at(-1), "replying");
  await settle();
  assert.deepEqual([page.states.at(-1), page.reconnects, alert.textContent], ["replying", 1, ""]);
  page.readiness.connected();
  await settle();
  assert.equal(requests.length, 1);
});

test("a chat that is opened while the server cannot be reached does not make it ready", async () => {
  server = undefined;
  const page = openPage();
  await page.readiness.check();
  page.readiness.show("ready");
  await settle();
  assert.deepEqual(page.states, ["not reachable"]);
  server = {};
  await pass(2000);
  assert.deepEqual(page.states, ["not reachable", "ready"]);
});

test("the error about the server goes when the server is back, other texts stay", async () => {
  const page = openPage();
  for (const [shown, left] of [[UNREACHABLE.message, ""], ["Something else.", "Something else."]]) {
    page.readiness.recordFailure(UNREACHABLE);
    alert.textContent = shown;
    await page.readiness.check();
    assert.equal(alert.textContent, left);
  }
});

test("a text that came while nobody knew of the outage stays too", async () => {
  server = undefined;
  const page = openPage();
  await page.readiness.check();
  alert.textContent = "The message is empty.";
  server = {};
  await pass(1000);
  assert.equal(page.states.at(-1), "ready");
  assert.equal(alert.textContent, "The message is empty.");
});

test("the refusal of a server that is ready at the next look stays on the page", async () => {
  const page = openPage();
  page.readiness.recordFailure(LOADING);
  alert.textContent = LOADING.message;
  await pass(1000);
  assert.equal(page.states.at(-1), "ready");
  assert.equal(alert.textContent, LOADING.message);
});

test("the error about the model goes once the server has been seen not ready, and is ready again", async () => {
  const page = openPage();
  page.readiness.recordFailure(LOADING);
  alert.textContent = LOADING.message;
  server = [503, { error: { code: "engine_unavailable", message: "Loading." } }];
  await pass(1000);
  assert.equal(alert.textContent, LOADING.message);
  server = {};
  await pass(2000);
  assert.equal(alert.textContent, "");
});

test("an outage that is over leaves nothing to the next one", async () => {
  const page = openPage();
  server = undefined;
  await page.readiness.check();
  await pass(3000);
  server = {};
  await pass(4000);
  assert.equal(page.states.at(-1), "ready");
  page.readiness.recordFailure(LOADING);
  alert.textContent = LOADING.message;
  const before = requests.length;
  await pass(1000);
  assert.equal(requests.length, before + 1, "the first pause is short again");
  assert.equal(alert.textContent, LOADING.message);
});

test("a failure that is not about the server starts no polling", async () => {
  const page = openPage();
  page.readiness.recordFailure(new ApiError("Too long.", 422, "invalid_input"));
  page.readiness.recordFailure(new TypeError("a mistake in the page"));
  await pass(60_000);
  assert.equal(requests.length, 0);
  assert.deepEqual(page.states, []);
});

test("a hidden page does not poll", async () => {
  document.hidden = true;
  server = undefined;
  await openPage().readiness.check();
  await pass(60_000);
  assert.equal(requests.length, 1);
});

test("an older answer that comes late changes nothing", async () => {
  const page = openPage();
  const answers = [];
  server = undefined;
  fakeFetch({ "GET /ready": () => new Promise((resolve) => answers.push(resolve)) });
  const older = page.readiness.check();
  const newer = page.readiness.check();
  answers[1]({});
  await newer;
  answers[0](undefined); // fails
  await older;
  assert.deepEqual(page.states, ["ready"]);
});

test("a network that comes back is tried at once", async () => {
  server = undefined;
  const page = openPage();
  await page.readiness.check();
  await pass(1000);
  server = {};
  raise("online");
  await settle();
  await pass(0);
  await new Promise((resolve) => setImmediate(resolve));
  assert.equal(page.states.at(-1), "ready");
  assert.equal(page.reconnects, 1);
});

test("a page that is opened while the first model loads says so, and asks every second until it is loaded", async () => {
  server = [503, { status: "unavailable", code: "engine_unavailable", reason: "The model is still being loaded." }];
  const page = openPage();
  page.loading = true;
  await page.readiness.check();
  assert.equal(page.shown, "Guide · loading");
  for (let second = 0; second < 4; second++) {
    const before = requests.length;
    await pass(999);
    assert.equal(requests.length, before);
    await pass(1);
    assert.equal(requests.length, before + 1);
  }
  assert.equal(page.loads, 0);
  server = {};
  await pass(1000);
  assert.equal(page.loads, 1);
  page.loading = false; // the page has read the model's options
  await page.readiness.check();
  assert.equal(page.shown, "Guide · ready");
  assert.equal(page.loads, 1);
  const before = requests.length;
  await pass(60_000);
  assert.equal(requests.length, before);
});

test("a chat that is opened while the model loads does not make it ready", () => {
  const page = openPage();
  page.loading = true;
  page.readiness.show("ready");
  assert.equal(page.shown, "Guide · loading");
});

test("a server that cannot be reached while its model loads is not loading", async () => {
  server = undefined;
  const page = openPage();
  page.loading = true;
  await page.readiness.check();
  assert.equal(page.shown, "Guide · not reachable");
});
