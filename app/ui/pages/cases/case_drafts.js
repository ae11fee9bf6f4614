// Drafts of replies in a case: written from the customer's last message and the sources of the inbox.

import { announce } from "../../shared/dom.js";
import { ReplyDrafts } from "../chat/reply_drafts.js";
import { caseDrafts } from "./case_api.js";

/** @import { ReplyBox } from "./reply_box.js" */

/**
 * @param {string} caseId
 * @param {ReplyBox} box
 * @param {() => string | null} lastMessage  of the customer
 */
export function makeDrafts(caseId, box, lastMessage) {
  const target = {
    text: "", // the box holds the agent's reply, never the customer's message
    fill: (/** @type {string} */ text) => box.insertReply(text),
    insert: (/** @type {string} */ text) => box.insertReply(text),
    focus: () => box.text.focus(),
    insertElsewhere: () => false,
  };
  const drafts = new ReplyDrafts(target, {
    lastMessage,
    from: "case",
    prepare: async (id) => id ?? caseId,
    rests: () => "The draft rests on the sources of this inbox, the message and the notes. The customer sees nothing of it until you send it.",
    notify: announce,
    routes: caseDrafts,
  });
  drafts.use(caseId);
  return drafts;
}
