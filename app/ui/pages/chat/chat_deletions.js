// Offers to undo the deletion of whole conversations. The offer survives a reload of the page.

import { ApiError, api } from "../../shared/api.js";
import { announce, storage } from "../../shared/dom.js";
import { plural } from "../../shared/formats.js";

/** @import { ConversationDeletion } from "../../shared/api_types.js" */
/** @import { CrossTab } from "./cross_tab.js" */
/** @import { Toast } from "./toast.js" */

/** @typedef {{id: string, conversations: string[], reopen: string | null, text: string, until: number}} Offer */

const KEY = "dm-undo-deletion";
const OFFERED_MS = 20_000; // as long as a toast is shown

export class ChatDeletions {
  /**
   * @param {object} parts
   * @param {Toast} parts.toast
   * @param {CrossTab} parts.crossTab
   * @param {object} host
   * @param {() => unknown} host.refreshList
   * @param {(id: string) => unknown} host.navigate
   * @param {(error: unknown) => void} host.reportError
   */
  constructor({ toast, crossTab }, host) {
    this.toast = toast;
    this.crossTab = crossTab;
    this.host = host;
  }

  /**
   * Conversations were deleted.
   * @param {ConversationDeletion} deletion
   * @param {string | null} title  of the conversation, if it is a single one
   * @param {string | null} reopen  the one of them that was open
   */
  offer({ deletion_id: id, conversation_ids: conversations }, title, reopen) {
    if (id === null) return;
    const count = conversations.length;
    const what = title !== null && count === 1 ? `“${title}” was deleted.` : `${plural(count, "conversation")} ${count === 1 ? "was" : "were"} deleted.`;
    this.#show({ id, conversations, reopen, text: what, until: Date.now() + OFFERED_MS });
  }

  /** Offers again what was offered when the page was left a moment ago. */
  resume() {
    const kept = storage.read("sessionStorage", KEY);
    if (kept === null) return;
    /** @type {Offer} */
    const offer = JSON.parse(kept);
    if (Date.now() < offer.until) this.#show(offer);
    else storage.write("sessionStorage", KEY, null);
  }

  /** @param {Offer} offer */
  #show(offer) {
    storage.write("sessionStorage", KEY, JSON.stringify(offer));
    this.toast.show(offer.text, "Undo", () => this.#undo(offer));
  }

  /** @param {Offer} offer */
  async #undo(offer) {
    storage.write("sessionStorage", KEY, null);
    try {
      await api.undoDeletion(offer.id);
    } catch (error) {
      this.host.reportError(error);
      const isTooLate = error instanceof ApiError && error.status === 404;
      if (!isTooLate) this.#show({ ...offer, until: Date.now() + OFFERED_MS }); // the server was not reached, or is full
      return;
    }
    for (const id of offer.conversations) this.crossTab.broadcast("conversation-changed", { id });
    announce(`${plural(offer.conversations.length, "conversation")} restored.`);
    if (offer.reopen !== null) this.host.navigate(offer.reopen);
    this.host.refreshList();
  }
}
