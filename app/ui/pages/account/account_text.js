// What the account page says about sessions, API keys and storage.

import { count, moment, plural, size } from "../../shared/formats.js";

/** @import { KeyView, SessionView, Storage } from "../../shared/api_types.js" */

// A mark in a User-Agent header, and what it stands for. The first match counts: browsers name those that they are like.
const BROWSERS = [
  ["EdgA/", "Edge"],
  ["EdgiOS/", "Edge"],
  ["Edg/", "Edge"],
  ["OPR/", "Opera"],
  ["SamsungBrowser/", "Samsung Internet"],
  ["FxiOS/", "Firefox"],
  ["Firefox/", "Firefox"],
  ["CriOS/", "Chrome"],
  ["Chrome/", "Chrome"],
  ["Safari/", "Safari"],
];
const SYSTEMS = [
  ["Android", "Android"],
  ["iPhone", "iPhone"],
  ["iPad", "iPad"],
  ["Windows", "Windows"],
  ["Mac OS", "macOS"],
  ["CrOS", "ChromeOS"],
  ["Linux", "Linux"],
];

/** The names of the browser and the system. @param {string} userAgent */
export function clientName(userAgent) {
  /** @param {string[][]} names */
  const find = (names) => names.find(([mark]) => userAgent.includes(mark))?.[1];
  const [browser, system] = [find(BROWSERS), find(SYSTEMS)];
  return browser && system ? `${browser} on ${system}` : (browser ?? (userAgent.slice(0, 60) || "Unknown client"));
}

/** @param {SessionView} session */
export const sessionText = ({ current, last_seen_at: seen, address }) =>
  `${current ? "This session" : `Last seen ${moment(seen)}`} · ${address}`;

/** @type {Record<string, string>} */
const SCOPE_TEXTS = {
  "chat": "sends chats to the model",
  "models": "lists the models",
  "cases:read": "reads inboxes, cases and their events",
  "cases:write": "answers cases and hands in what contacts wrote",
};

/** @param {KeyView} key */
export function keyText({ beginning, scopes, expires_at: ends, last_used_at: used }, now = new Date()) {
  return [
    `${beginning}…`,
    scopes.map((scope) => SCOPE_TEXTS[scope] ?? scope).join(", "),
    used ? `last used ${moment(used)}` : "never used",
    ends ? `${new Date(ends) <= now ? "expired" : "expires"} ${moment(ends)}` : "never expires",
  ].join(" · ");
}

/** How much is used, of how much. @param {Storage} storage */
export function usedText({ used_bytes: used, max_bytes: max }) {
  return max === null ? size(used) : `${size(used)} of ${size(max)}`;
}

/** @param {Storage} storage */
export function storageText(storage) {
  const { used_bytes: used, max_bytes: maxBytes, conversations, max_conversations: maxConversations, responses } = storage;
  const number =
    maxConversations === null ? plural(conversations, "conversation") : `${count(conversations)} of ${plural(maxConversations, "conversation")}`;
  const isFull = (maxBytes !== null && used >= maxBytes) || (maxConversations !== null && conversations >= maxConversations);
  const isNearlyFull = maxBytes !== null && used > 0.9 * maxBytes;
  const stored = responses ? ` and ${plural(responses, "stored response")}` : "";
  const what = responses ? "conversations or the stored responses" : "conversations";
  const advice = isFull ? ` To add more, delete some ${what}.` : isNearlyFull ? " Your storage is almost full." : "";
  return `You use ${usedText(storage)}, in ${number}${stored}.${advice}`;
}
