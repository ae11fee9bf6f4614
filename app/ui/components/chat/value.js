// The chat's value: from Gradio's messages to those shown, and what changes between two of them.

/** @typedef {import("./types.js").Message} Message */

/**
 * The messages to show, each with an id and a status, and where in the value they are: by the shown ids, the position
 * and the id that they have there.
 * @param {unknown} value
 * @returns {{messages: Message[], places: Map<string, {index: number, id: string | null}>}}
 */
export function readValue(value) {
  const all = Array.isArray(value) ? value : []; // Gradio has "" for no value
  const places = new Map();
  /** @type {Message[]} */
  const messages = [];
  for (const [index, message] of all.entries()) {
    if (message.role === "system") continue;
    const id = message.id ?? `position ${index}`;
    places.set(id, { index, id: message.id ?? null });
    messages.push({ ...message, id, ...statusOf(message, index === all.length - 1) });
  }
  return { messages, places };
}

// Without a status, a reply may be about to grow: a generator yields it many times.
/** @param {Message} message @param {boolean} isLast */
function statusOf(message, isLast) {
  if (message.status) return {};
  const isWaiting = isLast && message.role === "assistant" && message.content === "";
  return { status: isWaiting ? "streaming" : "complete", mayGrow: true };
}

// What a shown reply can take over without being built again.
const UPDATABLE = new Set(["content", "status", "mayGrow", "stats", "error", "feedback", "reasoning", "reasoning_seconds", "tool_uses", "citations", "seed"]);

/** @param {unknown} a @param {unknown} b */
const isEqual = (a, b) => a === b || JSON.stringify(a ?? null) === JSON.stringify(b ?? null);

/**
 * How the element of a shown message becomes that of a wanted one: it stays, is updated, or is built again.
 * @param {Message} shown
 * @param {Message} wanted
 * @returns {"same" | "update" | "replace"}
 */
export function changeOf(shown, wanted) {
  const keys = /** @type {Set<keyof Message>} */ (new Set([...Object.keys(shown), ...Object.keys(wanted)]));
  const changed = [...keys].filter((key) => !isEqual(shown[key], wanted[key]));
  if (changed.length === 0) return "same";
  if (wanted.role !== "assistant" || changed.some((key) => !UPDATABLE.has(key))) return "replace";
  if (!wanted.content.startsWith(shown.content)) return "replace";
  if (!(wanted.reasoning ?? "").startsWith(shown.reasoning ?? "")) return "replace";
  const calls = new Set((wanted.tool_uses ?? []).map(({ id }) => id));
  if ((shown.tool_uses ?? []).some(({ id }) => !calls.has(id))) return "replace";
  // An ended reply doesn't return to the waiting state, except by being built again.
  const wasStreaming = shown.status === "streaming";
  return wanted.status === "streaming" && !wasStreaming ? "replace" : "update";
}
