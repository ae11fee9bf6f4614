import { fakeFetch, pass, settle } from "./fakes.js";

import assert from "node:assert/strict";
import { beforeEach, mock, test } from "node:test";

import { ConversationList } from "../../app/ui/pages/chat/conversation_list.js";
import { importOutcome } from "../../app/ui/pages/chat/transfer.js";

const POLL_MS = 4000;
const LISTING = "GET /api/conversations?limit=50&folder=none";

let items; // what the server lists
let answers;
let requests;
let told; // what the page was told, by callback
let view;
let list;

beforeEach(() => {
  mock.timers.reset();
  mock.timers.enable({ apis: ["setTimeout"] });
  globalThis.document = { visibilityState: "visible" };
  items = [{ id: "a", title: "Alpha", streaming: false }];
  answers = { [LISTING]: () => ({ items, next_cursor: null }), "GET /api/tags": { work: 1 }, "GET /api/folders": [] };
  requests = fakeFetch(answers);
  told = { onListed: [], onRenamed: [], onDeleted: [], onStatus: [], onError: [], onListFailed: [], onSelect: [], onNew: [] };
  view = {
    shown: null,
    removed: [],
    reach: Infinity,
    awaitList() {},
    setLoadingMore() {},
    handle: (handlers) => Object.assign(view, { handlers }),
    show: (shown) => (view.shown = shown),
    removeRow: (id) => view.removed.push(id),
  };
  const host = Object.fromEntries(Object.keys(told).map((name) => [name, (...values) => told[name].push(values)]));
  list = new ConversationList(view, host);
});

const listings = () => requests.filter(({ path }) => path.startsWith("/api/conversations?")).length;
const does = async (event, detail) => {
  await view.handlers[event](detail);
  await settle();
};

test("each row leads to its conversation, and what a search finds to its message", async () => {
  items = [{ id: "a b", title: "Alpha" }, { id: "c", title: "Found", message_id: "m1" }];
  await list.refresh();
  assert.deepEqual(view.shown.items.map(({ url }) => url), ["/?c=a+b", "/?c=c&m=m1"]);
  assert.deepEqual(view.shown.tags, ["work"]);
  assert.deepEqual(told.onListed, [[items]]);
});

test("the list is read again while a reply is in flight, and no longer", async () => {
  items = [{ id: "a", title: "Alpha", streaming: true }];
  await list.refresh();
  await pass(POLL_MS - 1);
  assert.equal(listings(), 1);
  await pass(1);
  assert.equal(listings(), 2);
  items = [{ id: "a", title: "Alpha", streaming: false, unread: true }];
  await pass(POLL_MS);
  assert.equal(listings(), 3);
  assert.equal(told.onListed.at(-1)[0][0].unread, true);
  await pass(POLL_MS * 3);
  assert.equal(listings(), 3);
});

test("several refreshes poll once, and a hidden page does not", async () => {
  items = [{ id: "a", title: "Alpha", streaming: true }];
  await list.refresh();
  await list.refresh();
  await pass(POLL_MS);
  assert.equal(listings(), 3);
  document.visibilityState = "hidden";
  await pass(POLL_MS * 3);
  assert.equal(listings(), 3);
});

test("a list that cannot be loaded is told apart from an action that failed", async () => {
  answers[LISTING] = undefined;
  await list.refresh();
  assert.deepEqual([told.onListFailed.length, told.onListFailed[0][0].status, told.onError.length], [1, 0, 0]);
});

test("a title that the server refuses is not told, and the list shows what holds", async () => {
  answers["PATCH /api/conversations/a"] = [422, { error: { code: "invalid_input", message: "too long" } }];
  await does("rename", { id: "a", title: "x" });
  assert.deepEqual([told.onRenamed, told.onError.length, listings()], [[], 1, 1]);
  answers["PATCH /api/conversations/a"] = [204, null];
  await does("rename", { id: "a", title: "Rose" });
  assert.deepEqual([told.onRenamed, requests.findLast(({ method }) => method === "PATCH").body], [[["a", "Rose"]], '{"title":"Rose"}']);
});

test("a conversation that is gone already is deleted; one that cannot be deleted stays", async () => {
  await list.refresh();
  answers["POST /api/conversations/delete"] = [503, { error: { code: "unavailable", message: "Try again." } }];
  await does("delete", { id: "a" });
  assert.deepEqual([view.removed, told.onDeleted, told.onError.length], [[], [], 1]);
  answers["POST /api/conversations/delete"] = [404, { error: { code: "not_found", message: "Gone." } }];
  await does("delete", { id: "a" });
  assert.deepEqual([view.removed, told.onDeleted, told.onError.length], [["a"], [[["a"], null, "Alpha"]], 1]);
  const deletion = { deletion_id: "d", conversation_ids: ["a"] };
  answers["POST /api/conversations/delete"] = deletion;
  await does("delete", { id: "a" });
  assert.deepEqual(told.onDeleted[1], [["a"], deletion, "Alpha"]);
});

test("pins, tags and the archive are changes of the conversation", async () => {
  answers["PATCH /api/conversations/a"] = [204, null];
  await does("pin", { id: "a", pinned: true });
  await does("archive", { id: "a", archived: true });
  await does("tag", { id: "a", tags: ["work"] });
  assert.deepEqual(requests.filter(({ method }) => method === "PATCH").map(({ body }) => body), ['{"pinned":true}', '{"archived":true}', '{"tags":["work"]}']);
  assert.equal(listings(), 3);
  answers["PATCH /api/conversations/a"] = [503, { error: { code: "unavailable", message: "Try again." } }];
  await does("pin", { id: "a", pinned: false });
  assert.deepEqual([told.onError.map(([error]) => error.message), listings()], [["Try again."], 4], "the list shows what holds");
});

test("an import says what came of it; one that fails leaves no status", async () => {
  answers["POST /api/import"] = { imported: 2, already_there: 1 };
  await does("upload", { file: { name: "old.json" } });
  assert.deepEqual(told.onStatus, [["Importing old.json …"], ["2 conversations imported; 1 conversation was already here."]]);
  answers["POST /api/import"] = [422, { error: { code: "invalid_input", message: "Line 3 is no conversation." } }];
  await does("upload", { file: { name: "old.json" } });
  assert.deepEqual(told.onStatus.at(-1), [""]);
  assert.equal(told.onError[0][0].message, "Line 3 is no conversation.");
});

test("the outcome of an import in words", () => {
  assert.equal(importOutcome({ imported: 1, already_there: 0 }), "1 conversation imported.");
  assert.equal(importOutcome({ imported: 0, already_there: 1200 }), "Nothing new: 1,200 conversations were already here.");
  assert.equal(importOutcome({ imported: 0, already_there: 0 }), "0 conversations imported.");
});
