// What the Knowledge section says of documents and collections.

import { placeOf } from "../../components/chat/citations.js";
import { make } from "../../shared/dom.js";
import { plural } from "../../shared/formats.js";

/** @import { CollectionUse, DocumentView, GapReason, Passage } from "../../shared/api_types.js" */

/** Who may search a collection, by its `everyone`. */
export const USERS = [
  ["false", "Members and admins only"],
  ["true", "Every user"],
];

/** What a member may do, by `may_edit`. */
export const RIGHTS = [
  ["false", "Search and read"],
  ["true", "Search, read and edit"],
];

/** Why a question counts as unanswered. @type {Record<GapReason, string>} */
export const REASONS = { nothing_found: "Nothing found", not_cited: "Nothing cited", disliked: "Disliked" };

/** Which inboxes answer from a collection. @param {CollectionUse["inboxes"]} inboxes  at least one */
export function inboxesText(inboxes) {
  const names = inboxes.map(({ name }) => name).join(", ");
  return inboxes.length === 1
    ? `The inbox ${names} answers its visitors from this collection, as is chosen under Inboxes.`
    : `The inboxes ${names} answer their visitors from this collection, as is chosen under Inboxes.`;
}

/** What deleting a collection does. @param {Pick<CollectionUse, "documents" | "chats" | "own_chats" | "inboxes">} use */
export function deletionText({ documents, chats, own_chats: own, inboxes }) {
  const names = inboxes.map(({ name }) => name).join(", ");
  const without = inboxes.length ? ` ${inboxes.length === 1 ? "The inbox" : "The inboxes"} ${names} will answer without it.` : "";
  const removed = `This deletes the collection with ${plural(documents, "document")}. It can't be undone. Replies that cite its documents keep their quotations.${without}`;
  if (chats === 0) return `${removed} No chat uses it.`;
  const using = `${plural(chats, "chat")} ${chats === 1 ? "uses" : "use"} it as a source, and will need another choice of sources before the next message`;
  return `${removed} ${using}${own.length ? (own.length === chats ? "; yours:" : "; yours among them:") : "."}`;
}

/** Whether a document has been read, or could not be. @param {Pick<DocumentView, "state">} document */
export const isSettled = ({ state }) => state === "ready" || state === "failed";

/** @param {Pick<DocumentView, "state" | "progress" | "version">} document */
export function stateText({ state, progress, version }) {
  const before = version === null || isSettled({ state }) ? "" : " (the version before is searched)";
  if (state === "waiting") return `Waiting to be read${before}`;
  if (state === "reading") return `Being read, ${Math.floor(100 * progress)} %${before}`;
  if (state === "failed") return version === null ? "Could not be read" : "The new version could not be read; the one before is searched";
  return "Ready";
}

/** How well a passage matched: scores compare within one search only, so few digits tell. @param {number} score */
export const scoreText = (score) => `score ${score < 0.01 ? "below 0.01" : score.toFixed(2)}`;

/** @param {number} bytes */
export function sizeText(bytes) {
  if (bytes < 1000) return `${bytes} B`;
  return bytes < 1e6 ? `${Math.round(bytes / 1000)} KB` : `${(bytes / 1e6).toFixed(1)} MB`;
}

/** A passage in a list. @param {string} heading @param {string} note @param {string} text @param {Node[]} more */
export const passageLine = (heading, note, text, ...more) =>
  make("li", {}, make("p", { class: "dm-hint", dir: "auto" }, [heading, note].filter(Boolean).join(" · ")), make("blockquote", { dir: "auto" }, text), ...more);

/** A passage that a search has found. @param {Passage} passage @param {Node[]} more  below it */
export const passageItem = (passage, ...more) => passageLine(placeOf(passage), scoreText(passage.score), passage.text, ...more);
