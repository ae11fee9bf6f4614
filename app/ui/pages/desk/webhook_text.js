// What the desk says about webhooks: their state, what they are told, and their deliveries.

import { InputError } from "../../shared/input_error.js";
import { count, moment, plural } from "../../shared/formats.js";

/** @import { DeliveryView, WebhookView } from "../../shared/api_types.js" */

export const TEST = "webhook.test";

/** @type {Record<string, string>} */
const EVENTS = {
  "message.created": "A message is written",
  "case.created": "A case is opened",
  "case.handed_off": "A case is handed to people",
  "case.assigned": "A case is assigned, or not any more",
  "case.replied": "An agent replies",
  "case.snoozed": "A case is snoozed",
  "case.woken": "The snooze of a case ends",
  "case.resolved": "A case is resolved",
  "case.reopened": "A case is reopened",
  "case.merged": "A case is merged with another one",
  "case.rated": "A customer rates a case",
  "case.priority": "The priority of a case changes",
  "case.tags": "The tags of a case change",
  "case.mailed": "Replies are sent by e-mail to a customer who has gone",
  "case.mail_failed": "Replies could not be sent by e-mail",
  [TEST]: "Test",
};

/** An event in words. @param {string} event */
export const eventLabel = (event) => EVENTS[event] ?? event;

/** The events in the order in which they are offered; new ones come last. @param {string[]} events */
export function inOfferedOrder(events) {
  const order = Object.keys(EVENTS);
  /** @param {string} event */
  const place = (event) => (order.includes(event) ? order.indexOf(event) : order.length);
  return events.toSorted((a, b) => place(a) - place(b));
}

/** @typedef {"on" | "failing" | "off"} State */

/** @param {WebhookView} webhook @returns {State} */
export const stateOf = ({ enabled, failing_since: failing }) => (enabled ? (failing === null ? "on" : "failing") : "off");

/** The state in a line of the list. @param {WebhookView} webhook */
export function aboutWebhook(webhook) {
  const state = stateOf(webhook);
  const waiting = webhook.num_pending > 0 ? ` · ${count(webhook.num_pending)} waiting` : "";
  return `${state === "on" ? "On" : state === "off" ? "Off" : `Failing since ${moment(webhook.failing_since ?? "")}`}${waiting}`;
}

/** The state in sentences: since when, why, and what waits. @param {WebhookView} webhook */
export function stateText(webhook) {
  const { failing_since: failing, failure, num_pending: pending, num_failed: failed } = webhook;
  const state = stateOf(webhook);
  const sentences = [];
  if (state === "off") sentences.push(offText(webhook), "It is sent nothing.");
  else if (state === "failing") sentences.push(`Failing since ${moment(failing ?? "")}.`, sentence(failure));
  else sentences.push("On.");
  if (pending > 0) sentences.push(state === "off" ? `${plural(pending, "delivery waits", "deliveries wait")} until it is switched on.` : `${plural(pending, "delivery waits", "deliveries wait")} for the next try.`);
  if (failed > 0) sentences.push(`${plural(failed, "delivery was", "deliveries were")} given up; each can be sent again below.`);
  return sentences.filter(Boolean).join(" ");
}

/** What a receiver or a network said may have no full stop. @param {string | null} text */
const sentence = (text) => (text === null || text === "" || /[.!?…]$/.test(text) ? (text ?? "") : `${text}.`);

/** @param {WebhookView} webhook */
function offText({ disabled_at: at, disabled_reason: reason, failure }) {
  const since = at === null ? "Off" : `Off since ${moment(at)}`;
  if (reason === "gone") return `${since}: the receiver answered 410, which says that it wants no more.`;
  if (reason === "failing") return `${since}: every attempt had failed for 5 days. ${sentence(failure)}`.trim();
  return reason === "admin" ? `${since}: an admin switched it off.` : `${since}.`;
}

/**
 * What became of a delivery, in sentences.
 * @param {DeliveryView} delivery
 * @param {boolean} isOn  whether its webhook is
 */
export function deliveryText({ event, status, attempts, next_attempt_at: next, response_status: answer, error, delivered_at: delivered }, isOn) {
  if (status === "delivered") {
    const when = delivered === null ? "Delivered" : `Delivered ${moment(delivered)}`;
    return `${when}${attempts > 1 ? `, at attempt ${attempts}` : ""}. The receiver answered ${answer ?? "nothing"}.`;
  }
  if (status === "failed") return `${sentence(error) || "It failed."} ${event === TEST ? "A test is tried once." : attempts === 0 ? "Given up." : `Given up after ${plural(attempts, "attempt")}.`}`;
  if (!isOn) return `${sentence(error)} It waits until the webhook is switched on.`.trim();
  if (error === null || next === null) return attempts > 0 ? `Attempt ${attempts + 1} is being made.` : "It is being sent.";
  return `${sentence(error)} Attempt ${attempts} failed; the next one is ${moment(next)}.`;
}

/** Whether a delivery may change within a minute, so that it is worth looking again. @param {DeliveryView} delivery @param {number} now */
export const isUnderWay = ({ status, next_attempt_at: next }, now) => status === "pending" && next !== null && Date.parse(next) - now < 61_000;

/** Deliveries with newer states of some of them, the latest first. @param {DeliveryView[]} there @param {DeliveryView[]} come */
export function mergeDeliveries(there, come) {
  const all = new Map([...there, ...come].map((each) => [each.id, each]));
  return [...all.values()].sort((a, b) => (a.id < b.id ? 1 : -1));
}

/**
 * What the form of a webhook sends.
 * @param {{name: string, url: string, inboxId: string, isAll: boolean, chosen: string[]}} form
 * @throws {InputError}
 */
export function webhookValues({ name, url, inboxId, isAll, chosen }) {
  if (!isAll && chosen.length === 0) throw new InputError("Choose at least one event, or “Everything”.");
  return { name: name.trim(), url: url.trim(), inbox_id: inboxId || null, events: isAll ? [] : chosen };
}
