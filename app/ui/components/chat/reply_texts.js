// The texts about a reply: how it ended, its statistics, what the model did not get.

import { count } from "../../shared/formats.js";

/** @typedef {import("./types.js").MessageStats} MessageStats */

/** @type {Record<string, string>} */
const ENDINGS = { stop: "ended by itself", stop_string: "reached a stop string", length: "reached its maximum length", abort: "stopped", error: "failed", deadline: "timed out", tool_calls: "waits for your decision" };
const ENDED = new Set(["stop", "stop_string", "tool_calls"]); // finish reasons that leave nothing to continue

/** @param {MessageStats} stats @param {number | null} contextLength */
export function whyEnded(stats, contextLength) {
  const full = contextLength !== null && stats.prompt_tokens + stats.completion_tokens >= contextLength;
  if (stats.finish_reason === "length" && full) return "reached the end of the model's context";
  return stats.finish_reason === undefined ? "" : (ENDINGS[stats.finish_reason] ?? stats.finish_reason);
}

/**
 * Whether a complete reply has ended by itself, so that there is nothing to continue.
 * @param {MessageStats | null | undefined} stats
 */
export const hasEnded = (stats) => !stats?.finish_reason || ENDED.has(stats.finish_reason);

/** @type {Record<string, string>} */
const NOTES = {
  stopped: "Stopped. The text so far was kept.",
  interrupted: "Interrupted: Deskmate was shut down before the reply was complete. The text saved so far is shown.",
};

/** @type {Record<string, string>} of a reply with thoughts and no text */
const THINKING_NOTES = {
  complete: "The reply ended while thinking.",
  stopped: "Stopped while thinking. The thoughts so far were kept.",
  interrupted: "Interrupted while thinking: Deskmate was shut down. The thoughts saved so far are shown.",
};

/** "12 s", "2 min 5 s" @param {number} seconds */
function duration(seconds) {
  const whole = Math.max(1, Math.round(seconds));
  return whole < 60 ? `${whole} s` : `${Math.floor(whole / 60)} min ${whole % 60} s`;
}

/**
 * The heading of a reply's thoughts.
 * @param {number | null} seconds  null: unknown
 * @param {boolean} running
 */
export function thoughtsLabel(seconds, running) {
  if (running) return seconds === null || seconds < 1 ? "Thinking …" : `Thinking … ${duration(Math.floor(seconds))}`;
  return seconds === null ? "Thoughts" : `Thought for ${duration(seconds)}`;
}

/**
 * The note under a reply; empty if there is nothing to say.
 * @param {string} status
 * @param {string | null | undefined} error
 * @param {boolean} empty  the reply has no text
 * @param {boolean} thought  the model has thought
 */
export function endingNote(status, error, empty, thought = false) {
  if (status === "error") return `The reply failed. ${error ?? ""}`.trim();
  if (empty && thought && !error && status in THINKING_NOTES) return THINKING_NOTES[status];
  if (status === "stopped" && empty && !thought) return "Stopped before the first word.";
  if (status === "interrupted" && error) return `Interrupted. ${error} The text so far was kept.`;
  return NOTES[status] ?? (empty ? "The reply is empty." : "");
}

/**
 * What the model did not get; empty if it got every message.
 * @param {Partial<import("./types.js").Message>} message
 */
export function leftOutLine({ omitted_messages: omitted = 0, context_length: contextLength, has_system_prompt: prompted }) {
  if (omitted === 0) return "";
  const [messages, were] = omitted === 1 ? ["message", "was"] : ["messages", "were"];
  const context = contextLength ? `the model's ${count(contextLength)} tokens have` : "the model's context has";
  const kept = prompted ? "; the system prompt was kept" : "";
  return `${count(omitted)} earlier ${messages} ${were} left out, so that ${context} room for this reply and what follows${kept}.`;
}
