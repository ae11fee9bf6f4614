import assert from "node:assert/strict";
import { afterEach, test } from "node:test";

import { backupRows } from "../../app/ui/pages/desk/backup_texts.js";
import { latest } from "../../app/ui/pages/desk/controls.js";
import { beginningOf, dayOf, lastDays } from "../../app/ui/pages/desk/days.js";
import { DURATION_STEPS, daysRange, valuesRange, WHOLE_STEPS } from "../../app/ui/pages/desk/plot_scales.js";
import { settle } from "./fakes.js";

const HERE = process.env.TZ;
afterEach(() => {
  if (HERE === undefined) delete process.env.TZ;
  else process.env.TZ = HERE;
});

test("a day is that of the clock on the wall, not of UTC", () => {
  for (const [zone, day] of [["Pacific/Kiritimati", "2026-01-01"], ["UTC", "2025-12-31"], ["Pacific/Pago_Pago", "2025-12-30"]]) {
    process.env.TZ = zone;
    assert.equal(dayOf(new Date("2025-12-31T10:30:00Z")), day, zone);
  }
});

test("the last days end today and are as many as their name says", () => {
  assert.deepEqual(lastDays(1, new Date(2026, 2, 10, 23, 59)), { first: "2026-03-10", last: "2026-03-10" });
  assert.deepEqual(lastDays(7, new Date(2026, 2, 3, 0, 0)), { first: "2026-02-25", last: "2026-03-03" });
  assert.deepEqual(lastDays(30, new Date(2024, 2, 1, 12)), { first: "2024-02-01", last: "2024-03-01" });
  assert.deepEqual(lastDays(90, new Date(2026, 0, 15, 12)), { first: "2025-10-18", last: "2026-01-15" });
});

test("a day of 23 or 25 hours counts as one", () => {
  process.env.TZ = "Europe/Berlin";
  assert.equal(new Date(2026, 2, 29).getTimezoneOffset(), -60, "this Node has no time zones");
  assert.deepEqual(lastDays(7, new Date(2026, 3, 1, 0, 30)), { first: "2026-03-26", last: "2026-04-01" });
  assert.deepEqual(lastDays(2, new Date(2026, 2, 30, 0, 30)), { first: "2026-03-29", last: "2026-03-30" });
  assert.deepEqual(lastDays(2, new Date(2026, 9, 25, 23, 30)), { first: "2026-10-24", last: "2026-10-25" });
});

test("a plot's day begins where the user is, and is on its own day even where it has no midnight", () => {
  process.env.TZ = "Europe/Berlin";
  assert.equal(beginningOf("2026-03-30") - beginningOf("2026-03-29"), 23 * 3600);
  assert.equal(beginningOf("2026-01-01"), Date.UTC(2025, 11, 31, 23) / 1000);
  process.env.TZ = "America/New_York";
  assert.equal(beginningOf("2026-01-01"), Date.UTC(2026, 0, 1, 5) / 1000);
  process.env.TZ = "Africa/Cairo"; // summer time begins at midnight
  assert.equal(dayOf(new Date(beginningOf("2026-04-24") * 1000)), "2026-04-24");
});

test("one day alone has a place on the axis of days, and every column fits whole", () => {
  assert.deepEqual(daysRange(86_400, 86_400), [43_200, 129_600]);
  assert.deepEqual(daysRange(0, 864_000), [-43_200, 907_200]);
});

test("an axis of values begins at zero and leaves room above, also without any value", () => {
  for (const nothing of [null, 0]) assert.deepEqual(valuesRange(nothing), [0, 1]);
  for (const max of [0.01, 1, 12_345]) {
    const [from, to] = valuesRange(max);
    assert.equal(from, 0);
    assert.ok(to > max && to < 1.2 * max, String(max));
  }
});

test("the steps of whole numbers are whole, ascend, and reach further than a year's tokens", () => {
  assert.deepEqual(WHOLE_STEPS.slice(0, 7), [1, 2, 5, 10, 20, 50, 100]);
  assert.ok(WHOLE_STEPS.every((step, index) => Number.isSafeInteger(step) && step > (WHOLE_STEPS[index - 1] ?? 0)));
  assert.ok(WHOLE_STEPS.at(-1) > 1e12);
});

test("the steps of durations are round in minutes, hours and days, and ascend", () => {
  assert.ok(DURATION_STEPS.every((step, index) => step > (DURATION_STEPS[index - 1] ?? 0)));
  assert.ok(DURATION_STEPS.every((step) => step < 60 || (step < 3600 && step % 60 === 0) || step % 3600 === 0));
});

/** Requests of one section, each answered by the test, and what the section shows. */
function requests(number) {
  const runLatest = latest();
  const shown = [];
  const calls = Array.from({ length: number }, () => {
    const call = Promise.withResolvers();
    runLatest(() => call.promise, (answer) => shown.push(answer), (error) => shown.push(error.message));
    return call;
  });
  return { calls, shown };
}

test("an answer or an error that comes after a newer request was made is not shown", async () => {
  const { calls: [first, second, third], shown } = requests(3);
  first.resolve("first");
  third.resolve("third");
  await settle();
  second.reject(new Error("second"));
  await settle();
  assert.deepEqual(shown, ["third"]);
});

test("the newest request's error is shown, and an older answer does not replace it", async () => {
  const { calls: [first, second], shown } = requests(2);
  second.reject(new Error("second"));
  await settle();
  first.resolve("first");
  await settle();
  assert.deepEqual(shown, ["second"]);
});

test("what there is to say about backups is said, and nothing of what there is not", () => {
  const none = { scheduled: true, running: false, folder: "/b", last_good_at: null, last_good_file: null, last_good_bytes: null, restored: false, failed_at: null, error: null, next_at: null, problem: null };
  assert.deepEqual(backupRows(none), [["Last good backup", "none yet"], ["Folder", "/b"]]);
  const made = { ...none, last_good_at: "2026-03-10T12:00:00Z", last_good_file: "/b/x", last_good_bytes: 200 * 2 ** 20, next_at: "2026-03-11T12:00:00Z" };
  const rows = Object.fromEntries(backupRows({ ...made, restored: true, failed_at: "2026-03-09T12:00:00Z", error: "The disk is full." }));
  assert.match(rows["Last good backup"], /, 200(\.0)? MiB$/);
  assert.match(rows["Last failure"], /\. The disk is full\.$/);
  assert.match(rows.Check, /^restored/);
  assert.match(Object.fromEntries(backupRows(made)).Check, /^unpacked and read/);
  assert.equal(Object.fromEntries(backupRows({ ...made, running: true })).Next, "one is being made now");
});
