// The state of the talk, and how each event changes it. Pure.

/** @import { Message, TalkEvent, TalkState } from "./types.js" */

/** @type {TalkState} */
export const INITIAL = {
  inbox: null,
  case: null,
  contact: null,
  messages: [],
  canAttach: false,
  isOnline: true,
  typing: null,
  isStale: false,
  problem: "",
};

/** @param {string} status */
export const isStreaming = (status) => status === "streaming";

/** @param {TalkState} state @param {TalkEvent} event @returns {TalkState} */
export function reduce(state, event) {
  switch (event.type) {
    case "session": {
      const { inbox, contact, messages, attachments } = event.session;
      const shown = new Map(state.messages.map((message) => [message.id, message]));
      return {
        ...state,
        inbox,
        contact,
        case: event.session.case,
        messages: messages.map((message) => newest(shown.get(message.id), message)),
        canAttach: attachments === true,
        isOnline: true,
        isStale: false,
        problem: "",
      };
    }
    case "message":
      return { ...state, messages: withMessage(state.messages, event.message), typing: event.message.author.kind === "agent" ? null : state.typing };
    case "delta":
      return withText(state, event);
    case "case":
      return { ...state, case: event.case };
    case "contact":
      return { ...state, contact: event.contact };
    case "typing":
      return { ...state, typing: event.name };
    case "connection":
      return { ...state, isOnline: event.isOnline };
    case "problem":
      return { ...state, problem: event.problem };
  }
}

/** @param {Message[]} messages @param {Message} message */
function withMessage(messages, message) {
  const at = messages.findIndex((each) => each.id === message.id);
  if (at >= 0) return messages.with(at, newest(messages[at], message));
  // The answer to what the visitor sent may come after the first words of the reply to it.
  const before = messages.findLastIndex((each) => Date.parse(each.created_at) <= Date.parse(message.created_at));
  return messages.toSpliced(before + 1, 0, message);
}

/**
 * A reply that is being written has in the database only what was stored last: more of it may have come as pieces.
 * @param {Message | undefined} shown @param {Message} message
 */
function newest(shown, message) {
  const isBehind = shown !== undefined && isStreaming(message.status) && shown.text.length > message.text.length && shown.text.startsWith(message.text);
  return isBehind ? { ...message, text: shown.text } : message;
}

/**
 * Adds a piece of a reply. Pieces may come twice, after a resumed stream; of one that was missed, the next one tells.
 * @param {TalkState} state @param {{message_id: string, offset: number, text: string}} piece
 */
function withText(state, { message_id: id, offset, text }) {
  const at = state.messages.findIndex((each) => each.id === id);
  if (at < 0) return { ...state, isStale: true };
  const message = state.messages[at];
  if (!isStreaming(message.status)) return state;
  const reached = [...message.text].length; // offsets count code points
  if (offset > reached) return { ...state, isStale: true };
  const fresh = [...text].slice(reached - offset).join("");
  return fresh === "" ? state : { ...state, messages: state.messages.with(at, { ...message, text: message.text + fresh }) };
}
