// The parts of the model's context, in words.

import { count, plural } from "../../shared/formats.js";

/** @import { ContextView } from "../../shared/api_types.js" */

/** @typedef {{kind: string, name: string, tokens: number, note: string}} Part */

/** The parts in the order in which the model reads them, and what is left. @param {ContextView} view @returns {Part[]} */
export function contextParts(view) {
  const { system_prompt: system, history, message, template, reply, max_sources: sources, context_length: length, omitted_messages: omitted } = view;
  const left = omitted === 0 ? "" : `; ${plural(omitted, "earlier message")} left out`;
  const parts = [
    { kind: "system", name: "System prompt", tokens: system, note: "" },
    { kind: "history", name: "Conversation", tokens: history, note: `${plural(view.history_messages, "message")}${left}` },
    { kind: "message", name: "Your message", tokens: message, note: "" },
    { kind: "template", name: "Template", tokens: template, note: "marks between the messages, and tools" },
  ];
  if (sources > 0) parts.push({ kind: "sources", name: "Sources", tokens: sources, note: "at most; searched when you send" });
  parts.push({ kind: "reply", name: "Room for the reply", tokens: reply, note: "up to its maximum length" });
  const used = parts.reduce((sum, { tokens }) => sum + tokens, 0);
  parts.push({ kind: "free", name: "Free", tokens: Math.max(0, length - used), note: `of ${count(length)} tokens` });
  return parts;
}

/** "775 of 2,048 tokens · 2 earlier messages left out" @param {ContextView} view */
export function contextSentence(view) {
  const { system_prompt: system, history, message, template, context_length: length, omitted_messages: omitted } = view;
  if (view.problem !== null) return `Too long: ${count(system + message)} of ${count(length)} tokens`;
  const used = `Context: ${count(system + history + message + template)} of ${count(length)} tokens`;
  return omitted === 0 ? used : `${used} · ${plural(omitted, "earlier message")} left out`;
}
