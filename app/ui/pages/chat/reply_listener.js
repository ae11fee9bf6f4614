// Shows a reply in flight as its events arrive.

import { codePoints } from "./turn_events.js";

/** @import { ReplyView } from "../../components/chat/reply_view.js" */
/** @import { Listener } from "./turn_events.js" */

/**
 * @param {ReplyView} reply
 * @param {object} host
 * @param {() => void} host.followDown  the reply has grown
 * @param {() => void} host.onFinished  the reply has ended
 * @param {() => void} host.onGone  the conversation was deleted
 * @param {(connected: boolean) => void} host.onConnection
 * @param {() => unknown} host.reopen  loads the conversation again: what is shown may not be what the server has
 * @returns {Listener}
 */
export function replyListener(reply, { followDown, onFinished, onGone, onConnection, reopen }) {
  let lost = false;
  let doubtful = false; // the connection was lost; after a crash another tab may have continued from an earlier offset
  return {
    text: (text) => reply.append(text, followDown),
    reasoning: (text, state) => {
      reply.think(text, state, followDown);
      followDown();
    },
    toolUse: (use) => {
      reply.toolUse(use, followDown);
      followDown();
    },
    citations: (citations) => {
      reply.cite(citations);
      followDown();
    },
    progress: (progress) => reply.progress(progress),
    notice: (message) => {
      reply.notice(message);
      followDown();
    },
    end: (end) => {
      reply.end(end);
      onFinished();
      followDown();
      const thoughts = codePoints(reply.thoughts.source);
      const isWhole = end.offset === codePoints(reply.source) && (end.reasoning_offset ?? 0) === thoughts;
      if (doubtful || !isWhole) reopen(); // a crash lost the end of the text
    },
    gone: () => {
      onFinished();
      onGone();
    },
    connection: (connected) => {
      onConnection(connected);
      if (connected && lost) reply.notice("");
      if (!connected) reply.notice("The connection was lost. Reconnecting …");
      lost = !connected;
      doubtful ||= lost;
      followDown();
      if (connected && doubtful) reopen();
    },
  };
}
