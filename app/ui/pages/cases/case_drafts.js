// Drafts of replies in cases: written from the customer's last message and the sources of the inbox.

import { announce } from "../../shared/dom.js";
import { ReplyDrafts } from "../chat/reply_drafts.js";
import { caseDrafts } from "./case_api.js";

/** @import { ReplyBox } from "./reply_box.js" */

/** @typedef {{box: ReplyBox, lastMessage: () => string | null}} OpenCase */

/** @type {OpenCase | null} */
let shown = null;
/** @type {ReplyDrafts | null} one for all cases: a draft is written to its end though its case is left meanwhile */
let drafts = null;

/**
 * Shows the draft of a case; one that is being written goes on.
 * @param {string} caseId
 * @param {ReplyBox} box
 * @param {() => string | null} lastMessage  of the customer
 */
export function showDrafts(caseId, box, lastMessage) {
  shown = { box, lastMessage };
  drafts ??= makeDrafts();
  drafts.use(caseId);
  return drafts;
}

function makeDrafts() {
  const insert = (/** @type {string} */ text) => shown?.box.insertReply(text);
  const target = {
    text: "", // the box holds the agent's reply, never the customer's message
    fill: insert,
    insert,
    focusAfterDraft: () => {
      const isTouch = !matchMedia("(hover: hover)").matches; // the keyboard would cover the page
      (isTouch ? shown?.box.draft : shown?.box.text)?.focus({ preventScroll: true });
    },
    insertElsewhere: () => false,
  };
  return new ReplyDrafts(target, {
    lastMessage: () => shown?.lastMessage() ?? null,
    from: "case",
    prepare: async (id) => /** @type {string} */ (id),
    rests: () => "The draft rests on the sources of this inbox, the message and the notes. The customer sees nothing of it until you send it.",
    notify: announce,
    routes: caseDrafts,
  });
}
