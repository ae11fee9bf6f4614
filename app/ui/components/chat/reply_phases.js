// How long the phases of a reply took, and in words what else is known of it. Texts only, no elements.

import { count, percent, plural } from "../../shared/formats.js";
import { whyEnded } from "./reply_texts.js";

/** @import { DecodeLimit } from "../../shared/page_options.js" */
/** @typedef {import("./types.js").MessageStats} MessageStats */
/** @typedef {{name: string, note: string, start: number | null, ms: number | null}} Phase  null: unknown */

/** "0.4 ms", "312 ms", "1.25 s" @param {number} ms */
export function duration(ms) {
  if (ms >= 999.5) return `${(ms / 1000).toFixed(2)} s`;
  return ms < 9.95 ? `${ms.toFixed(1)} ms` : `${Math.round(ms)} ms`;
}

/**
 * The phases in the order in which they come, each with its start in ms after the message was accepted. In a reply that
 * called tools, what follows its first token is interrupted by them, for a time that is not known.
 * @param {MessageStats} stats
 * @param {boolean} hasTools
 * @returns {Phase[]}
 */
export function phasesOf({ tokenize_ms: tokenize = null, queue_ms: queue = null, ttft_ms: first, decode_ms: decode = null, delivery_ms: delivery = null, completion_tokens: tokens }, hasTools = false) {
  const begun = tokens > 0 ? (first ?? null) : null;
  const waited = tokenize ?? 0;
  const prefill = begun === null || queue === null ? null : Math.max(0, begun - queue);
  const ended = begun === null || decode === null || hasTools ? null : waited + begun + decode;
  return [
    { name: "Tokenize", note: "The conversation becomes the prompt's tokens", start: 0, ms: tokenize },
    { name: "Queue", note: "Waits for the engine's first step", start: waited, ms: queue },
    { name: "Prefill", note: "The engine reads what its cache does not hold", start: queue === null ? null : waited + queue, ms: prefill },
    { name: "First token", note: "All of that together", start: 0, ms: begun === null ? null : waited + begun },
    { name: "Decode", note: hasTools ? "Token by token, without the time of the tools" : "Token by token, to the last one", start: begun === null || hasTools ? null : waited + begun, ms: tokens > 0 ? decode : null },
    { name: "Delivery", note: "The last tokens become text that is sent", start: ended, ms: delivery },
  ];
}

/**
 * What else is known, as names and values.
 * @param {MessageStats} stats
 * @param {number | null} contextLength
 * @param {DecodeLimit | null} limit  of the speed, on this machine
 * @returns {[string, string][]}
 */
export function factsOf(stats, contextLength, limit = null) {
  const { prompt_tokens: prompt, cached_prompt_tokens: cached, completion_tokens: written, draft_tokens: drafted, accepted_draft_tokens: accepted, tokens_per_second: speed } = stats;
  /** @type {[string, string][]} */
  const facts = [["Written", plural(written, "token") + (speed !== undefined && speed > 0 ? `, ${speed.toFixed(1)} a second` : "")]];
  if (limit !== null && speed !== undefined && speed > 0) {
    const most = tokensPerSecond(limit, prompt + written / 2);
    facts.push(["Machine", `${percent(speed, most)} of its limit for one chat: ${most < 10 ? most.toFixed(1) : count(Math.round(most))} tokens a second, as fast as its memory was read`]);
  }
  const known = cached !== null && cached !== undefined;
  facts.push(["Prompt", known ? `${count(cached)} of ${plural(prompt, "token")} from the cache (${percent(cached, prompt)})` : `${plural(prompt, "token")}; how many came from the cache is not known`]);
  if (contextLength !== null) facts.push(["Context", `${count(prompt + written)} of ${count(contextLength)} tokens`]);
  if (drafted && accepted !== null && accepted !== undefined) facts.push(["Draft tokens", `${count(accepted)} of ${count(drafted)} accepted (${percent(accepted, drafted)})`]);
  const ending = whyEnded(stats, contextLength);
  if (ending !== "") facts.push(["End", ending]);
  return facts;
}

/**
 * How fast a token can follow another one if nothing but reading the memory takes time.
 * @param {DecodeLimit} limit
 * @param {number} context  tokens before it
 */
const tokensPerSecond = ({ bytes_per_second: bandwidth, weight_bytes: weights, cache_bytes: cache }, context) => bandwidth / (weights + cache * context);

/**
 * "53 tokens · 660/s", and how the reply ended, unless by itself.
 * @param {MessageStats} stats
 * @param {number | null} contextLength
 */
export function quietLine(stats, contextLength) {
  const { tokens_per_second: speed } = stats;
  const parts = [plural(stats.completion_tokens, "token")];
  if (speed !== undefined && speed > 0) parts.push(`${speed < 10 ? speed.toFixed(1) : count(Math.round(speed))}/s`);
  if (stats.finish_reason !== "stop") parts.push(whyEnded(stats, contextLength));
  return parts.filter((part) => part !== "").join(" · ");
}
