import assert from "node:assert/strict";
import { beforeEach, mock, test } from "node:test";

import { pass, settle } from "./fakes.js";

const { api } = await import("../../app/ui/shared/api.js");
const { ModelSwitch } = await import("../../app/ui/pages/chat/model_switch.js");

const READY = { state: "ready", source: "models/guide", remote: false, model: { name: "guide" }, download: null };
const DOWNLOAD = { model: "tiny", title: "Tiny", load: true, state: "downloading", stage: "Downloading Tiny", progress: 0.427, error: null };

let engine, menu, seen, calls;

beforeEach(() => {
  mock.timers.reset();
  mock.timers.enable({ apis: ["setTimeout"] });
  globalThis.document = { hidden: false };
  engine = READY;
  seen = [];
  calls = [];
  menu = {
    isOpen: false,
    handle: (handlers) => Object.assign(menu, { handlers }),
    show: () => undefined,
    setBusy: () => undefined,
    clearInput: () => seen.push("cleared"),
    showError: (text) => text && seen.push(`error: ${text}`),
  };
  mock.method(api, "engine", async () => (calls.push("engine"), engine));
  mock.method(api, "listModels", async () => (calls.push("models"), { found: [], recommended: [], notes: [] }));
  mock.method(api, "downloadModel", async (model) => calls.push(`download ${model}`));
});

const makeSwitch = ({ canChange = true } = {}) =>
  new ModelSwitch(menu, { showProgress: (text) => seen.push(`progress: ${text}`) }, {
    canChange: () => canChange,
    modelName: () => "guide",
    notify: (text) => seen.push(`toast: ${text}`),
    onChange: () => seen.push("changed"),
    broadcast: (type) => seen.push(`to tabs: ${type}`),
  });

test("a page that nothing happens on asks once and then no more", async () => {
  makeSwitch().refresh();
  await pass(10_000);
  assert.deepEqual(calls, ["engine"]);
});

test("a download is followed to its end, and the new model is announced once", async () => {
  engine = { ...READY, download: DOWNLOAD };
  makeSwitch({ canChange: false }).refresh();
  await pass(1000);
  assert.deepEqual(seen, ["progress: 42 %", "progress: 42 %"]);
  engine = { ...READY, source: "/models/tiny", model: { name: "tiny" }, download: { ...DOWNLOAD, state: "done" } };
  await pass(1000);
  await pass(10_000);
  assert.deepEqual(seen.slice(2), ["progress: ", "changed", "to tabs: model-changed", "toast: Tiny is ready."]);
  assert.equal(calls.length, 3);
});

test("a failure is said where the user looks", async () => {
  for (const isOpen of [false, true]) {
    seen = [];
    menu.isOpen = isOpen;
    engine = { ...READY, download: DOWNLOAD };
    const modelSwitch = makeSwitch();
    await modelSwitch.refresh();
    engine = { ...READY, download: { ...DOWNLOAD, state: "failed", error: "The disk is full." } };
    await modelSwitch.refresh();
    assert.ok(seen.includes(isOpen ? "error: The disk is full." : "toast: Tiny was not loaded. The disk is full."), seen.join());
    assert.ok(!seen.includes("changed"));
  }
});

test("a refused download keeps what was typed", async () => {
  mock.method(api, "downloadModel", async () => {
    throw new Error("Other is being downloaded.");
  });
  await makeSwitch().download("org/repo");
  assert.ok(seen.includes("error: Other is being downloaded."));
  assert.ok(!seen.includes("cleared"));
  assert.ok(!seen.includes("to tabs: model-download"));
});

test("the other tabs hear of a download", async () => {
  await makeSwitch().download("tiny");
  assert.deepEqual(calls.filter((call) => call.startsWith("download")), ["download tiny"]);
  assert.ok(seen.includes("to tabs: model-download"));
});

test("a user who may not change the model never asks for the list", async () => {
  makeSwitch({ canChange: false });
  menu.isOpen = true;
  menu.handlers.open();
  await settle();
  assert.deepEqual(calls, ["engine"]);
  menu.isOpen = false;
});

test("a model that another page has changed is noticed", async () => {
  engine = { ...READY, model: { name: "other" } };
  await makeSwitch().refresh();
  assert.ok(seen.includes("changed"));
});

test("a hidden page does not ask on", async () => {
  engine = { ...READY, download: DOWNLOAD };
  makeSwitch().refresh();
  await settle();
  globalThis.document.hidden = true;
  await pass(1000);
  await pass(10_000);
  assert.equal(calls.length, 2);
});
