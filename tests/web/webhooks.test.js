import assert from "node:assert/strict";
import { test } from "node:test";

import { aboutWebhook, deliveryText, eventLabel, inOfferedOrder, isUnderWay, mergeDeliveries, stateOf, stateText, webhookValues } from "../../app/ui/pages/desk/webhook_text.js";

const ON = { enabled: true, failing_since: null, failure: null, disabled_at: null, disabled_reason: null, num_pending: 0, num_failed: 0 };
const FAILING = { ...ON, failing_since: "2026-11-20T10:00:00Z", failure: "The receiver answered 500." };
const OFF = { ...ON, enabled: false, disabled_at: "2026-11-25T10:00:00Z" };
const DELIVERY = { id: "b", event: "case.created", status: "pending", attempts: 0, next_attempt_at: "2026-11-26T10:00:00Z", response_status: null, error: null, delivered_at: null };

test("the state says since when, why, and what waits", () => {
  assert.deepEqual([ON, FAILING, OFF, { ...FAILING, enabled: false }].map(stateOf), ["on", "failing", "off", "off"]);
  assert.equal(stateText(ON), "On.");
  assert.match(stateText({ ...FAILING, num_pending: 1 }), /^Failing since .*20.*\. The receiver answered 500\. 1 delivery waits for the next try\.$/);
  assert.match(stateText({ ...OFF, disabled_reason: "admin", num_pending: 2 }), /an admin switched it off\. It is sent nothing\. 2 deliveries wait until it is switched on\.$/);
  assert.match(stateText({ ...OFF, disabled_reason: "gone" }), /answered 410/);
  assert.match(stateText({ ...OFF, disabled_reason: "failing", failure: "No answer." }), /failed for 5 days\. No answer\. It is sent nothing\.$/);
  assert.equal(stateText({ ...OFF, disabled_at: null }), "Off. It is sent nothing."); // switched off before reasons were kept
  assert.match(stateText({ ...ON, num_failed: 1200 }), /^On\. 1.200 deliveries were given up/);
  assert.equal(aboutWebhook({ ...ON, num_pending: 3 }), "On · 3 waiting");
  assert.match(aboutWebhook(FAILING), /^Failing since /);
});

test("what became of a delivery is said in sentences", () => {
  assert.equal(deliveryText(DELIVERY, true), "It is being sent.");
  assert.equal(deliveryText(DELIVERY, false), "It waits until the webhook is switched on.");
  assert.equal(deliveryText({ ...DELIVERY, attempts: 1 }, true), "Attempt 2 is being made."); // one has ended
  const again = { ...DELIVERY, attempts: 2, error: "The receiver answered 500." };
  assert.match(deliveryText(again, true), /^The receiver answered 500\. Attempt 2 failed; the next one is .+\.$/);
  assert.equal(deliveryText({ ...again, status: "failed", attempts: 9, next_attempt_at: null }, true), "The receiver answered 500. Given up after 9 attempts.");
  // No attempt has ended where each server was killed.
  assert.equal(deliveryText({ ...again, status: "failed", attempts: 0, error: "The server stopped." }, true), "The server stopped. Given up.");
  assert.equal(deliveryText({ ...again, event: "webhook.test", status: "failed" }, true), "The receiver answered 500. A test is tried once.");
  const done = { ...DELIVERY, status: "delivered", attempts: 1, response_status: 204, delivered_at: "2026-11-26T10:00:01Z" };
  assert.match(deliveryText(done, true), /^Delivered [^,]+.*\. The receiver answered 204\.$/);
  assert.match(deliveryText({ ...done, attempts: 3 }, false), /, at attempt 3\. /);
});

test("only a delivery that is due soon is looked at again", () => {
  const now = Date.parse("2026-11-26T09:59:30Z");
  assert.ok(isUnderWay(DELIVERY, now));
  assert.ok(!isUnderWay(DELIVERY, now - 3_600_000));
  assert.ok(!isUnderWay({ ...DELIVERY, status: "delivered", next_attempt_at: null }, now));
});

test("a newer state replaces the one that is shown, and the latest comes first", () => {
  const merged = mergeDeliveries([DELIVERY, { ...DELIVERY, id: "a" }], [{ ...DELIVERY, id: "c" }, { ...DELIVERY, status: "failed" }]);
  assert.deepEqual(merged.map(({ id, status }) => `${id} ${status}`), ["c pending", "b failed", "a pending"]);
});

test("events have words, and one that this page does not know is offered last, by its name", () => {
  assert.deepEqual(inOfferedOrder(["case.eaten", "case.created", "message.created"]), ["message.created", "case.created", "case.eaten"]);
  assert.equal(eventLabel("case.eaten"), "case.eaten");
  assert.equal(eventLabel("case.resolved"), "A case is resolved");
});

test("the form sends every inbox as none, and wants an event", () => {
  const form = { name: " CRM ", url: " https://x.example ", inboxId: "", isAll: true, chosen: ["case.created"] };
  assert.deepEqual(webhookValues(form), { name: "CRM", url: "https://x.example", inbox_id: null, events: [] });
  assert.deepEqual(webhookValues({ ...form, inboxId: "i", isAll: false }), { name: "CRM", url: "https://x.example", inbox_id: "i", events: ["case.created"] });
  assert.throws(() => webhookValues({ ...form, isAll: false, chosen: [] }), /at least one event/);
});
