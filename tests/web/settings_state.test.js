import "./fakes.js";
import assert from "node:assert/strict";
import { mock, test } from "node:test";

import { SAVED, SAVING, SettingsState } from "../../app/ui/components/settings/settings_state.js";
import { pass, settle } from "./fakes.js";

const EMPTY = Object.freeze({ preset: null, seed: null });
const seed = (number) => ({ ...EMPTY, seed: number });

/** Settings whose saves wait until the test answers them, in order. */
function panel({ stored = {} } = {}) {
  mock.timers.reset();
  mock.timers.enable({ apis: ["setTimeout"] });
  const saves = [];
  const failures = [];
  const note = { textContent: "" };
  const clock = { now: 0 };
  const state = new SettingsState({
    empty: EMPTY,
    save: (id, value, keepalive = false) =>
      new Promise((resolve, reject) => {
        saves.push({ id, seed: value.seed, keepalive, answer: resolve, fail: reject });
      }),
    onSaveFailed: (error) => failures.push(error.message),
    note,
    storage: {
      read: (_area, key) => stored[key] ?? null,
      write: (_area, key, value) => {
        if (value === null) delete stored[key];
        else stored[key] = value;
      },
    },
    now: () => clock.now,
  });
  const answer = async (index) => {
    saves[index].answer();
    await settle();
  };
  const fail = async (index, status = 0) => {
    saves[index].fail(Object.assign(new Error(`save ${index} failed`), { status }));
    await settle();
  };
  const sent = () => saves.map((each) => `${each.id} ${each.seed}`);
  return { state, saves, sent, failures, note, clock, stored, answer, fail };
}

test("changes made quickly are saved once, and the note says so", async () => {
  const { state, note, sent, answer } = panel();
  state.open("a", seed(1), 0);
  assert.equal(note.textContent, "");
  state.change(seed(2));
  await pass(300);
  state.change(seed(3));
  assert.equal(note.textContent, SAVING);
  await pass(399);
  assert.deepEqual(sent(), []);
  await pass(1);
  assert.deepEqual(sent(), ["a 3"]);
  assert.equal(state.unsaved, true);
  await answer(0);
  assert.equal(state.unsaved, false);
  assert.equal(note.textContent, SAVED);
});

test("one save at a time, and one that a newer save has replaced is never sent", async () => {
  const { state, sent, note, answer } = panel();
  state.open("a", seed(0), 0);
  for (const number of [1, 2, 3]) {
    state.change(seed(number));
    await pass(400);
  }
  assert.deepEqual(sent(), ["a 1"]);
  await answer(0);
  assert.deepEqual(sent(), ["a 1", "a 3"]);
  assert.equal(note.textContent, SAVING, "the newest one is not confirmed yet");
  await answer(1);
  assert.equal(note.textContent, SAVED);
  assert.deepEqual(sent(), ["a 1", "a 3"]);
});

test("a chat that is left is saved at once, and shown as it was left, whatever the server says", async () => {
  const { state, sent, answer } = panel();
  state.open("a", seed(1), 0);
  state.change(seed(2));
  state.open("b", seed(7), 0);
  await settle();
  assert.deepEqual(sent(), ["a 2"]);
  assert.deepEqual([state.value.seed, state.unsaved], [7, false]);
  state.open("a", seed(1), 0); // the server did not have it yet
  assert.deepEqual([state.value.seed, state.unsaved], [2, true]);
  await answer(0);
  assert.equal(state.unsaved, false);
});

test("settings requested before a save was confirmed are older than it, those requested after are newer", async () => {
  const { state, clock, answer } = panel();
  state.open("a", seed(1), 0);
  state.change(seed(2));
  state.open("b", null, 0);
  await settle();
  clock.now = 50;
  await answer(0);
  state.open("a", seed(1), 40);
  assert.equal(state.value.seed, 2);
  state.open("b", null, 60);
  state.open("a", seed(9), 60); // another tab has changed it since
  assert.equal(state.value.seed, 9);
  assert.equal(state.unsaved, false);
});

test("a save that failed for the open chat says why, stays unsaved and goes with the next turn", async () => {
  const { state, note, failures, fail } = panel();
  state.open("a", seed(1), 0);
  state.change(seed(2));
  await pass(400);
  await fail(0);
  assert.equal(note.textContent, "save 0 failed");
  assert.deepEqual(failures, []);
  assert.equal(state.settingsForTurn().seed, 2);
});

test("a save that failed for a chat that was left is kept, told, and sent again once the chat is opened", async () => {
  const { state, sent, failures, note, fail, answer } = panel();
  state.open("a", seed(1), 0);
  state.change(seed(2));
  state.open("b", seed(7), 0);
  await settle();
  await fail(0, 503);
  assert.deepEqual(failures, ["save 0 failed"]);
  assert.equal(note.textContent, "", "the note is about the chat that is shown");
  state.open("a", seed(1), 100);
  assert.deepEqual([state.value.seed, state.unsaved, note.textContent], [2, true, SAVING]);
  await pass(400);
  assert.deepEqual(sent(), ["a 2", "a 2"]);
  await answer(1);
  assert.equal(note.textContent, SAVED);
  state.open("b", null, 200);
  state.open("a", seed(3), 200);
  assert.equal(state.value.seed, 3, "nothing of it is left");
});

test("settings of a deleted chat are not kept", async () => {
  const { state, saves, failures, fail } = panel();
  state.open("a", seed(1), 0);
  state.change(seed(2));
  state.open(null, null, 0);
  await settle();
  await fail(0, 404);
  assert.deepEqual(failures, []);
  state.onPageHide();
  assert.equal(saves.length, 1);
});

test("an older save that fails does not bring its settings back over a newer one", async () => {
  const { state, sent, failures, fail, answer } = panel();
  state.open("a", seed(0), 0);
  state.change(seed(1));
  await pass(400);
  state.change(seed(2));
  state.open("b", null, 0); // queues the newer one
  await fail(0);
  assert.deepEqual(failures, []);
  assert.deepEqual(sent(), ["a 1", "a 2"]);
  await answer(1);
  state.open("a", seed(2), 100);
  assert.deepEqual([state.value.seed, state.unsaved], [2, false]);
});

test("a turn carries what is unsaved, and nothing else", async () => {
  const { state, sent, note, answer } = panel();
  state.open("a", seed(1), 0);
  assert.equal(state.settingsForTurn(), null);
  state.change(seed(2));
  const carried = state.settingsForTurn();
  assert.equal(carried.seed, 2);
  state.onTurnAccepted("a", carried);
  assert.deepEqual([state.unsaved, note.textContent], [false, ""]);
  await pass(1000);
  assert.deepEqual(sent(), [], "the turn has saved them");
  state.change(seed(3));
  await pass(400);
  await answer(0);
  assert.equal(state.settingsForTurn(), null);
});

test("a turn without settings of its own leaves nothing to save", async () => {
  const { state, note, sent } = panel();
  state.open("a", seed(1), 0);
  state.onTurnAccepted("a", state.settingsForTurn());
  await pass(1000);
  assert.deepEqual([state.unsaved, note.textContent, sent()], [false, "", []]);
});

test("settings that went with a turn are saved again after an older save in flight, which may arrive later", async () => {
  const { state, sent, answer } = panel();
  state.open("a", seed(0), 0);
  state.change(seed(1));
  await pass(400);
  state.change(seed(2));
  state.onTurnAccepted("a", state.settingsForTurn());
  assert.equal(state.unsaved, true);
  await answer(0);
  await pass(400);
  assert.deepEqual(sent(), ["a 1", "a 2"]);
});

test("what is changed while a turn is being accepted is saved after it", async () => {
  const { state, sent } = panel();
  state.open("a", seed(0), 0);
  state.change(seed(1));
  const carried = state.settingsForTurn();
  state.change(seed(2));
  state.onTurnAccepted("a", carried);
  await pass(400);
  assert.deepEqual(sent(), ["a 2"]);
});

test("a refused turn leaves its settings to be saved", async () => {
  const { state, sent } = panel();
  state.open("a", seed(0), 0);
  state.change(seed(1));
  state.settingsForTurn();
  await pass(1000);
  assert.deepEqual(sent(), [], "they were to go with the turn");
  state.onTurnRefused();
  await pass(400);
  assert.deepEqual(sent(), ["a 1"]);
});

test("a new chat's settings are kept in the browser until its first turn", async () => {
  const stored = {};
  const first = panel({ stored });
  first.state.open(null, null, 0);
  first.state.change(seed(5));
  await pass(1000);
  assert.deepEqual([first.sent(), first.state.unsaved, first.note.textContent], [[], false, ""]);
  const { state } = panel({ stored }); // the page was reloaded
  state.open(null, null, 0);
  assert.equal(state.value.seed, 5);
  const carried = state.settingsForTurn();
  assert.equal(carried.seed, 5);
  state.onTurnAccepted("a", carried);
  assert.deepEqual([stored, state.unsaved], [{}, false]);
  state.open(null, null, 0);
  assert.equal(state.value.seed, null);
});

test("what another program has written for a new chat is ignored", () => {
  const { state } = panel({ stored: { "deskmate.new-chat-settings": "{not JSON" } });
  state.open(null, null, 0);
  assert.deepEqual(state.value, EMPTY);
});

test("as the page is closed, the open chat and every failed save are sent, to outlive it", async () => {
  const { state, saves, sent, fail } = panel();
  state.open("a", seed(1), 0);
  state.change(seed(2));
  state.open("b", seed(7), 0);
  await settle();
  await fail(0);
  state.change(seed(8));
  state.onPageHide();
  assert.deepEqual(sent().slice(1).sort(), ["a 2", "b 8"]);
  assert.ok(saves.slice(1).every((each) => each.keepalive));
  await fail(1);
  await fail(2); // nobody is told, and nothing is thrown
});

test("a page reloaded before a save arrives shows what was chosen, and saves it", async () => {
  const { state, stored } = panel();
  state.open("a", seed(1), 0);
  state.change(seed(2));
  state.onPageHide();
  const next = panel({ stored });
  next.state.open("a", seed(1), 0);
  assert.equal(next.state.value.seed, 2);
  await pass(400);
  assert.deepEqual(next.sent(), ["a 2"]);
  const later = panel({ stored });
  later.state.open("a", seed(3), 0);
  assert.equal(later.state.value.seed, 3, "it was taken once");
});

test("a page loaded much later, or with broken storage, takes the server's settings", () => {
  const { state, stored } = panel();
  state.open("a", seed(1), 0);
  state.change(seed(2));
  state.onPageHide();
  const [key] = Object.keys(stored);
  const kept = JSON.parse(stored[key]);
  for (const text of [JSON.stringify({ ...kept, when: kept.when - 31_000 }), "{", "[]", "null", "7"]) {
    const { state: next } = panel({ stored: { [key]: text } });
    next.open("a", seed(3), 0);
    assert.deepEqual([next.value.seed, next.unsaved], [3, false], text);
  }
});

test("a new chat begins with the user's own settings, which what was changed in it goes before", () => {
  const { state, stored } = panel();
  state.newChats = { seed: 7 };
  state.open(null, null, 0);
  assert.equal(state.value.seed, 7);
  state.change(seed(8));
  state.open("a", seed(1), 0);
  assert.equal(state.value.seed, 1, "another chat keeps its own");
  state.open(null, null, 0);
  assert.equal(state.value.seed, 8);
  stored["deskmate.new-chat-settings"] = "{";
  state.open(null, null, 0);
  assert.equal(state.value.seed, 7);
});
