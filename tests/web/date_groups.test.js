import assert from "node:assert/strict";
import { test } from "node:test";

import { dateGroup } from "../../app/ui/components/conversations/date_groups.js";

/** The group of a conversation whose last message is from `moment`, at `now`; both in local time. */
const groupAt = (now, moment) => dateGroup({ pinned: false, updated_at: moment.toISOString() }, now);

test("days are those of the calendar: one minute past midnight, the evening before is yesterday", () => {
  const now = new Date(2026, 2, 1, 0, 1);
  const groups = [0, 1, 2, 7, 8, 30, 31].map((days) => groupAt(now, new Date(2026, 2, 1 - days, days ? 23 : 0)));
  assert.deepEqual(groups, [
    "Today",
    "Yesterday",
    "Previous 7 days",
    "Previous 7 days",
    "Previous 30 days",
    "Previous 30 days",
    "January 2026",
  ]);
});

test("the last minute of a day is as near as its first", () => {
  assert.equal(groupAt(new Date(2026, 2, 1, 23, 59), new Date(2026, 1, 28, 0, 0)), "Yesterday");
});

test("a day of 23 or 25 hours counts as one", () => {
  process.env.TZ = "Europe/Berlin";
  assert.equal(new Date(2026, 2, 29).getTimezoneOffset(), -60, "this Node has no time zones");
  assert.equal(groupAt(new Date(2026, 2, 30), new Date(2026, 2, 29)), "Yesterday"); // 23 hours
  assert.equal(groupAt(new Date(2026, 2, 30, 23), new Date(2026, 2, 28)), "Previous 7 days");
  assert.equal(groupAt(new Date(2026, 9, 26), new Date(2026, 9, 25)), "Yesterday"); // 25 hours
  assert.equal(groupAt(new Date(2026, 9, 25, 23, 30), new Date(2026, 9, 25)), "Today");
});

test("a clock that is behind the server's shows today, not tomorrow", () => {
  assert.equal(groupAt(new Date(2026, 2, 1, 12), new Date(2026, 2, 2, 12)), "Today");
});

test("a pinned conversation is in a group of its own, however old", () => {
  assert.equal(dateGroup({ pinned: true, updated_at: "2020-01-01T00:00:00Z" }), "Pinned");
});
