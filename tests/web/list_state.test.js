import assert from "node:assert/strict";
import { test } from "node:test";

import { ListState } from "../../app/ui/pages/chat/list_state.js";

/** @typedef {import("../../app/ui/pages/chat/list_state.js").ListPage} ListPage */

/** Lets everything happen that waits for nothing else. */
const settle = () => new Promise((resolve) => setImmediate(resolve));

/**
 * A list whose requests wait until the test answers them, in any order.
 * @param {{tags?: string[]}} given
 */
function waitingList({ tags = [] } = {}) {
  /** @type {{filter: object, cursor: string | null, wanted: number, answer: (page: ListPage) => void, fail: (error: Error) => void}[]} */
  const requests = [];
  /** @type {string[][]} the ids at each drawing */
  const shown = [];
  /** @type {Error[]} */
  const failures = [];
  /** @type {boolean[]} */
  const loading = [];
  const known = { reach: Infinity, tags, folders: [{ id: "f", name: "Work", conversations: 1 }] };
  const state = new ListState(
    {
      listPage: (filter, cursor, wanted) =>
        new Promise((answer, fail) => {
          requests.push({ filter: { ...filter }, cursor, wanted, answer, fail });
        }),
      listTags: async () => known.tags,
      listFolders: async () => known.folders,
    },
    {
      show: ({ items }) => shown.push(items.map(({ id }) => id)),
      setLoadingMore: (isLoading) => loading.push(isLoading),
      fail: (error) => failures.push(error),
      reach: () => known.reach,
    },
  );
  /** Answers a request, by its number. @param {number} index @param {string[]} ids @param {string | null} next */
  const answer = async (index, ids, next = null) => {
    const request = requests[index];
    assert.ok(request, `there is no request ${index}`);
    request.answer({ items: ids.map((id) => ({ id, title: id })), next_cursor: next });
    await settle();
  };
  /** @param {number} index */
  const fail = async (index) => {
    requests[index]?.fail(new Error(`request ${index} failed`));
    await settle();
  };
  return { state, requests, shown, failures, loading, known, answer, fail };
}

test("pages are appended, and the last one ends the list", async () => {
  const { state, requests, shown, loading, answer } = waitingList();
  state.refresh();
  await answer(0, ["a", "b"], "2");
  assert.equal(state.hasMore, true);
  state.loadMore();
  assert.equal(requests[1]?.cursor, "2");
  await answer(1, ["c"]);
  assert.deepEqual(shown, [["a", "b"], ["a", "b", "c"]]);
  assert.equal(state.hasMore, false);
  assert.deepEqual(loading, [true, false]);
  await state.loadMore();
  assert.equal(requests.length, 2, "there is no third page");
});

test("a refresh loads as many pages as are shown", async () => {
  const { state, requests, shown, answer } = waitingList();
  state.refresh();
  await answer(0, ["a", "b"], "2");
  state.loadMore();
  await answer(1, ["c", "d"], "3");
  state.refresh();
  await answer(2, ["new", "a"], "2'");
  assert.equal(shown.length, 2, "half a list is not shown");
  await answer(3, ["b", "c"], "3'");
  assert.deepEqual(shown.at(-1), ["new", "a", "b", "c"]);
  assert.equal(requests.length, 4);
  state.loadMore();
  assert.equal(requests[4]?.cursor, "3'", "the next page follows the reloaded ones");
});

test("a refresh asks for all that it needs at once, and leaves out what the user has left behind", async () => {
  const { state, requests, shown, known, answer } = waitingList();
  state.refresh();
  await answer(0, ["a", "b"], "2");
  state.loadMore();
  await answer(1, ["c", "d", "e"], "3");
  state.refresh();
  assert.deepEqual(requests.map(({ wanted }) => wanted), [0, 0, 5]);
  await answer(2, ["a", "b"], "2");
  assert.equal(requests[3]?.wanted, 3);
  await answer(3, ["c", "d", "e"], "3");
  known.reach = 2; // scrolled up again
  state.refresh();
  assert.equal(requests[4]?.wanted, 2);
  await answer(4, ["a", "b"], "2");
  assert.deepEqual(shown.at(-1), ["a", "b"]);
  assert.equal(state.hasMore, true);
  state.choose({ query: "q", tag: null, archived: false });
  assert.equal(requests[5]?.wanted, 0, "another list begins with its first page");
});

test("the response to an older request never replaces that to a newer one", async () => {
  const { state, shown, answer } = waitingList();
  state.refresh();
  state.refresh();
  await answer(1, ["new"]);
  await answer(0, ["old"], "2");
  assert.deepEqual(shown, [["new"]]);
  assert.equal(state.hasMore, false);
});

test("nothing is loaded behind a list that is being replaced", async () => {
  const { state, requests, answer } = waitingList();
  state.refresh();
  await answer(0, ["a"], "2");
  state.refresh();
  await state.loadMore();
  assert.equal(requests.length, 2);
  await answer(1, ["a"], "2");
  state.loadMore();
  assert.equal(requests.length, 3, "after the refresh it is");
});

test("a page that arrives after a refresh is dropped", async () => {
  const { state, shown, loading, answer } = waitingList();
  state.refresh();
  await answer(0, ["a"], "2");
  state.loadMore();
  state.refresh();
  await answer(2, ["a"], "2");
  await answer(1, ["b"]);
  assert.deepEqual(shown, [["a"], ["a"]]);
  assert.equal(state.hasMore, true);
  assert.deepEqual(loading, [true, false], "and the next can be asked for");
});

test("a page is asked for once", async () => {
  const { state, requests, answer } = waitingList();
  state.refresh();
  await answer(0, ["a"], "2");
  state.loadMore();
  state.loadMore();
  assert.equal(requests.length, 2);
});

test("a failed refresh keeps the list, and blocks nothing", async () => {
  const { state, requests, shown, failures, answer, fail } = waitingList();
  state.refresh();
  await answer(0, ["a"], "2");
  state.refresh();
  await fail(1);
  assert.deepEqual(failures.map(String), ["Error: request 1 failed"]);
  assert.deepEqual(state.items.map(({ id }) => id), ["a"]);
  state.loadMore();
  assert.equal(requests.length, 3);
  await fail(2);
  assert.equal(failures.length, 2);
  state.loadMore();
  await answer(3, ["b"]);
  assert.deepEqual(shown, [["a"], ["a", "b"]]);
});

test("the failure of an older request is not reported", async () => {
  const { state, shown, failures, answer, fail } = waitingList();
  state.refresh();
  state.refresh();
  await fail(0);
  await answer(1, ["a"]);
  assert.deepEqual(failures, []);
  assert.deepEqual(shown, [["a"]]);
});

test("a filter goes with each request, that of the next page included", async () => {
  const { state, requests, answer } = waitingList({ tags: ["urgent"] });
  state.choose({ query: "q", tag: "urgent", archived: true });
  await answer(0, ["a"], "2");
  state.loadMore();
  for (const request of requests) assert.deepEqual(request.filter, { query: "q", tag: "urgent", archived: true });
});

test("with its last conversation a tag is no filter any more", async () => {
  const { state, requests, shown, known, answer } = waitingList({ tags: ["urgent", "later"] });
  state.choose({ query: "", tag: "urgent", archived: false });
  await answer(0, ["a"]);
  known.tags = ["later"];
  state.refresh();
  await answer(1, []);
  assert.deepEqual(shown, [["a"]], "the empty list is not shown");
  assert.deepEqual(requests[2]?.filter, { query: "", tag: null, archived: false });
  await answer(2, ["a", "b"]);
  assert.deepEqual(shown.at(-1), ["a", "b"]);
  assert.deepEqual(state.tags, ["later"]);
});

test("once its folder is deleted, the list has what is in no folder", async () => {
  const { state, requests, answer, known } = waitingList();
  const chosen = state.choose({ query: "", tag: null, archived: false, folder: "f" });
  await answer(0, ["a"]);
  await chosen;
  assert.equal(state.filter.folder, "f");
  known.folders = [];
  const refreshed = state.refresh();
  await answer(1, []);
  await answer(2, ["a"]);
  await refreshed;
  assert.deepEqual([state.filter.folder, requests.length, state.items.length], [null, 3, 1]);
});

test("the neighbour of the last one that is loaded is on the next page", async () => {
  const { state, requests, answer } = waitingList();
  state.refresh();
  await answer(0, ["a", "b"], "2");
  const ids = async (/** @type {[string | null, 1 | -1][]} */ ...steps) => {
    const found = [];
    for (const [id, step] of steps) found.push((await state.neighbour(id, step))?.id);
    return found;
  };
  assert.deepEqual(await ids(["a", 1], ["b", -1], ["a", -1], [null, 1], ["gone", -1]), ["b", "a", undefined, "a", "b"]);
  const next = state.neighbour("b", 1);
  assert.equal(requests[1]?.cursor, "2");
  await answer(1, ["c"]);
  assert.equal((await next)?.id, "c");
  assert.deepEqual(await ids(["c", 1]), [undefined]);
});
