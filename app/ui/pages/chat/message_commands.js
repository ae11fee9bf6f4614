// What users do with messages that starts no turn: branch from one, delete one, undo that, mark a passage as an answer.

import { ApiError, api } from "../../shared/api.js";
import { announce } from "../../shared/dom.js";

/** @import { Citation } from "../../components/chat/types.js" */
/** @import { Composer } from "../../components/composer/composer.js" */
/** @import { Deletion } from "../../shared/api_types.js" */
/** @import { CrossTab } from "./cross_tab.js" */
/** @import { OpenConversation } from "./open_conversation.js" */
/** @import { Toast } from "./toast.js" */

/**
 * @typedef {object} CommandsHost
 * @property {(id: string) => unknown} navigate  opens a conversation
 * @property {() => void} refreshList
 * @property {(error: unknown) => void} reportError
 */

export class MessageCommands {
  /**
   * @param {object} parts
   * @param {OpenConversation} parts.openConversation
   * @param {Composer} parts.composer
   * @param {Toast} parts.toast
   * @param {CrossTab} parts.crossTab
   * @param {CommandsHost} host
   */
  constructor({ openConversation, composer, toast, crossTab }, host) {
    this.openConversation = openConversation;
    this.composer = composer;
    this.toast = toast;
    this.crossTab = crossTab;
    this.host = host;
  }

  /** Copies the conversation up to a message into a new conversation and opens that. @param {string} id */
  async branch(id) {
    try {
      const { conversation_id: branched } = await api.branch(id);
      await this.host.navigate(branched);
    } catch (error) {
      this.host.reportError(error);
      return;
    }
    announce("You are in a new conversation now.");
    this.host.refreshList();
  }

  /** Deletes a message and everything after it, and offers to undo that for a while. @param {string} id */
  async delete(id) {
    if (this.openConversation.activeTurnId) {
      this.composer.warnReplyInProgress();
      return;
    }
    let deletion;
    try {
      deletion = await api.deleteMessage(id);
    } catch (error) {
      this.host.reportError(error);
      return;
    }
    await this.openConversation.reopen();
    this.crossTab.broadcast("conversation-changed", { id: deletion.conversation_id });
    this.#offerUndo(deletion);
  }

  /**
   * Marks that a passage that a reply cites answers the message that the reply is to, for `deskmate kb eval`.
   * @param {string} id  of the reply
   * @param {Citation} citation
   */
  async mark(id, { document_id = "", version = 1, start = 0, end = 0 }) {
    try {
      const { messages } = await api.getConversation(this.openConversation.conversationId ?? "", { at: id });
      const before = messages.slice(0, messages.findIndex((message) => message.id === id));
      const question = before.findLast(({ role }) => role === "user")?.content ?? "";
      const { answer } = await api.markQuestion({ question, document_id, version, start, end });
      this.toast.show(`Marked for evaluation: “${answer}”`);
    } catch (error) {
      this.host.reportError(error);
    }
  }

  /** @param {Deletion} deletion */
  #offerUndo(deletion) {
    const what = deletion.messages === 1 ? "The message was deleted." : `${deletion.messages} messages were deleted.`;
    this.toast.show(what, "Undo", () => this.#undo(deletion));
  }

  /** @param {Deletion} deletion */
  async #undo(deletion) {
    const { deletion_id: id, conversation_id: conversationId } = deletion;
    try {
      await api.undoDeletion(id);
    } catch (error) {
      this.host.reportError(error);
      const isTooLate = error instanceof ApiError && error.status === 404;
      if (!isTooLate) this.#offerUndo(deletion); // the server was not reached, or a reply has to end first
      return;
    }
    this.crossTab.broadcast("conversation-changed", { id: conversationId });
    if (this.openConversation.conversationId === conversationId) await this.openConversation.reopen();
    announce("The messages were restored.");
  }
}
