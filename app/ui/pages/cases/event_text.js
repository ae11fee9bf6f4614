// What happened in a case, in words.

import { moment } from "../../shared/formats.js";

/** @import { CaseEvent } from "./types.js" */

/** @type {Record<string, string>} */
export const HAND_OFF_REASONS = {
  asked_for_person: "asked for a person",
  missing_knowledge: "the sources have no answer",
  policy: "the inbox’s rules",
  failure: "the assistant failed",
  timeout: "the assistant took too long",
  agent_took_over: "an agent took over",
};

/** @param {CaseEvent} event */
const isByAgent = ({ actor }) => actor.kind === "agent";

/** @param {CaseEvent} event */
const agentName = ({ actor }) => actor.name ?? "A deleted user";

/** @param {CaseEvent} event */
export function eventText(event) {
  const { kind, reason, actor, details } = event;
  const who = isByAgent(event) ? agentName(event) : "";
  switch (kind) {
    case "created":
      return actor.name ? `${actor.name} opened the case` : "Case opened";
    case "handed_off":
      if (reason === "agent_took_over" && who) return `${who} took over from the assistant`;
      return reason ? `Handed to people: ${HAND_OFF_REASONS[reason] ?? reason}` : "Handed to people";
    case "assigned":
      return assignedText(who, event);
    case "snoozed":
      return [who ? `${who} snoozed it` : "Snoozed", details.until ? `until ${moment(details.until)}` : ""].filter(Boolean).join(" ");
    case "woken":
      return who ? `${who} ended the snooze` : actor.kind === "contact" ? "Back: the customer wrote" : "Back: the time of the snooze is over";
    case "resolved":
      return who ? `${who} resolved it` : actor.kind === "bot" ? "Resolved by the assistant" : "Resolved";
    case "reopened":
      return who ? `${who} reopened it` : actor.kind === "contact" ? "Reopened: the customer wrote" : "Reopened";
    case "merged":
      return who ? `${who} merged ${details.from ? "another case into this one" : "this case into another one"}` : "Merged with another case";
    case "rated":
      return `Rated ${details.score} of 5`;
    case "priority":
      return `${who || "A rule"} set the priority to ${details.to}`;
    case "mailed":
      return `Sent by e-mail to ${details.email}`;
    case "mail_failed":
      return `Could not be sent by e-mail to ${details.email}: ${details.error}`;
    case "tags":
      return tagsText(who || "A rule", details);
    default:
      return [who, kind.replaceAll("_", " ")].filter(Boolean).join(": ");
  }
}

/** @param {string} who @param {CaseEvent} event */
function assignedText(who, { actor, details: { user_id: id = null, user_name: name } }) {
  if (id === null) return who ? `${who} took the assignment back` : "Not assigned any more";
  if (id === actor.id) return `${who} took it`;
  const to = name ?? "a deleted user";
  return who ? `${who} assigned it to ${to}` : `Assigned to ${to}`;
}

/** @param {string} who @param {CaseEvent["details"]} details */
function tagsText(who, { added = [], removed = [] }) {
  const parts = [added.length ? `added ${added.join(", ")}` : "", removed.length ? `removed ${removed.join(", ")}` : ""].filter(Boolean);
  return `${who} changed the tags: ${parts.join("; ")}`;
}

/** What an agent's reply means for a colleague who is writing one, too: that one is held once. */
const CROSSES = new Set(["replied", "resolved", "snoozed", "assigned", "merged"]);

/**
 * What another agent has done that a reply under way crosses; empty: nothing.
 * @param {CaseEvent} event
 * @param {string} me
 */
export function crossingText(event, me) {
  if (!isByAgent(event) || event.actor.id === me || !CROSSES.has(event.kind)) return "";
  return event.kind === "replied" ? `${agentName(event)} has replied` : eventText(event);
}

/**
 * What happened in a case since the events that were known, in one sentence; empty: nothing that is shown.
 * @param {CaseEvent[]} events
 * @param {Set<string>} known  ids
 */
export function sinceText(events, known) {
  const news = events.filter(({ id }) => !known.has(id)).map((event) => (event.kind === "replied" ? `${agentName(event)} has replied` : eventText(event)));
  return news.length ? `Meanwhile: ${news.join("; ")}.` : "";
}
