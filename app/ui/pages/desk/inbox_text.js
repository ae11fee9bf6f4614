// What an inbox's settings hold, as text: origins, opening hours, the script tag.

import { moment, plural } from "../../shared/formats.js";
import { InputError } from "../../shared/input_error.js";

/** @import { MailView } from "../../shared/api_types.js" */
/** @import { Hours, Inbox } from "../cases/types.js" */

export const DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];
/** @type {Hours[]} */
export const OFFICE_HOURS = [0, 1, 2, 3, 4].map((day) => ({ day, from: "09:00", to: "17:00" }));

/** What leads from nothing to the first case. @type {[name: string, text: string][]} */
export const FIRST_STEPS = [
  ["Create an inbox", "with the button New inbox: its name, as customers shall see it, and the websites that may show it."],
  ["Add its members.", "Agents among them answer its cases, under Cases above."],
  ["Put its script tag on the website.", "Visitors then have a button that opens the chat."],
];

/** The tag that a website embeds the widget with. @param {string} origin  of this server @param {string} token  of the inbox */
export const scriptTag = (origin, token) => `<script src="${origin}/widget/${encodeURIComponent(token)}.js" async></script>`;

/**
 * The origins in a text, one a line. A whole address counts as its origin.
 * @param {string} text
 * @throws {InputError}
 */
export function originsOf(text) {
  const lines = text.split(/[\s,]+/).filter(Boolean);
  return [...new Set(lines.map(originOf))];
}

/** @param {string} line */
function originOf(line) {
  const url = URL.parse(line);
  if (url !== null && /^https?:$/.test(url.protocol)) return url.origin;
  throw new InputError(`“${line}” is no website. Write it like https://www.example.com.`);
}

/** The end of a day is 24:00, which a field of a time has as 00:00. @param {string} time */
export const endInField = (time) => (time === "24:00" ? "00:00" : time);
/** @param {string} time */
export const endOfField = (time) => (time === "00:00" ? "24:00" : time);

/** Hours in the order of the week. @param {Hours[]} hours */
export const inOrder = (hours) => hours.toSorted((a, b) => a.day - b.day || a.from.localeCompare(b.from));

/**
 * What is wrong with opening hours; empty: nothing.
 * @param {Hours[]} hours
 */
export function hoursProblem(hours) {
  const sorted = inOrder(hours);
  for (const [index, { day, from, to }] of sorted.entries()) {
    if (!from || !to) return `${DAYS[day]}: set both times.`;
    if (from >= to) return `${DAYS[day]}: ${to} is not after ${from}. Hours over midnight are two entries.`;
    const next = sorted[index + 1];
    if (next?.day === day && next.from < to) return `${DAYS[day]}: ${from} to ${to} and ${next.from} to ${next.to} overlap.`;
  }
  return "";
}

/** An inbox in a line of the list. @param {Inbox} inbox */
export function aboutInbox({ kind, bot, members, opening_hours: hours }) {
  return [kind === "widget" ? "Website" : "API", bot ? "assistant on" : "people only", `${members.length} ${members.length === 1 ? "member" : "members"}`, hours.length ? "opening hours" : "always open"].join(" · ");
}

/** Whether visitors who have gone get replies by e-mail, and what is wrong with that. @param {MailView} mail */
export function mailText({ sender, server, delay_minutes: delay, pending, last_sent_at: last, error }) {
  if (sender === null) return "Visitors who have gone read replies when they come back. To send them by e-mail, set APP_MAIL_HOST and APP_MAIL_FROM.";
  const sentences = [
    `Visitors who have left an address and don’t read a reply within ${plural(delay, "minute")} get it by e-mail from ${sender}.`,
    last === null ? "None was sent yet." : `The last one was sent ${moment(last)}.`,
  ];
  if (pending) sentences.push(`${plural(pending, "reply", "replies")} may still be sent.`);
  if (error !== null) sentences.unshift(`${server} has trouble: ${/[.!?]$/.test(error) ? error : `${error}.`} It is tried again.`);
  return sentences.join(" ");
}
