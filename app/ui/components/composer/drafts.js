// Drafts of messages, by conversation, kept in this tab until they are sent.

import { storage } from "../../shared/dom.js";

/**
 * The key of a conversation's draft. `null`: a new chat.
 * @param {string | null} conversationId
 */
export const draftKeyOf = (conversationId) => `deskmate.draft.${conversationId ?? "new"}`;

/** @param {string | null} conversationId */
export const readDraft = (conversationId) => storage.read("sessionStorage", draftKeyOf(conversationId)) ?? "";

/** @param {string | null} conversationId @param {string} text  empty: deletes the draft */
export const writeDraft = (conversationId, text) => storage.write("sessionStorage", draftKeyOf(conversationId), text);

/**
 * What is left of a draft whose beginning, `sent`, was sent; null if it does not begin with that.
 * @param {string} draft
 * @param {string} sent
 */
export const withoutSent = (draft, sent) => (draft.startsWith(sent) ? draft.slice(sent.length).trimStart() : null);
