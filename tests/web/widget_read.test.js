import { settle } from "./fakes.js";

import assert from "node:assert/strict";
import { test } from "node:test";

import { WidgetError } from "../../app/ui/widget/api.js";
import { Talk } from "../../app/ui/widget/talk.js";

const message = (id, kind, status = "complete") => ({ id, text: id, status, author: { kind, name: null }, created_at: "2026-11-26T10:00:00Z", client_id: null });
const store = { prefix: "t.", get: () => null, set: () => {}, remove: () => {}, keys: () => [] };

/** A talk that has these messages, and what the server was told was read. */
function talkWith(...messages) {
  const told = [];
  const api = {
    token: "t",
    problem: null,
    async markRead(id) {
      told.push(id);
      if (this.problem) throw this.problem;
    },
  };
  const talk = new Talk(api, store, undefined, { language: "en", time_zone: "UTC" }, () => {});
  talk.state = { ...talk.state, messages };
  return { talk, api, told };
}

test("the last whole reply of a person is told as read, once, and no word of the bot or the visitor", async () => {
  const { talk, told } = talkWith(message("a1", "agent"), message("a2", "agent"), message("b", "bot"), message("c", "contact"), message("a3", "agent", "streaming"));
  await Promise.all([talk.markRead(), talk.markRead()]);
  await talk.markRead();
  assert.deepEqual(told, ["a2"]);
  talk.state = { ...talk.state, messages: [...talk.state.messages, message("a4", "agent")] };
  await talk.markRead();
  assert.deepEqual(told, ["a2", "a4"]);
});

test("what was read while the server was away is told again", async () => {
  const { talk, api, told } = talkWith(message("a1", "agent"));
  api.problem = new WidgetError("", 0, "unreachable");
  await talk.markRead();
  api.problem = null;
  await talk.markRead();
  await settle();
  assert.deepEqual(told, ["a1", "a1"]);
});

test("without a session or a reply of a person, nothing is told", async () => {
  const without = talkWith(message("b", "bot"));
  await without.talk.markRead();
  const before = talkWith(message("a1", "agent"));
  before.api.token = null;
  await before.talk.markRead();
  assert.deepEqual([...without.told, ...before.told], []);
});
