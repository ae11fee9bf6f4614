// Turns that the user asks for: a message, an edit, another reply. Says when one may start, and what holds afterwards.

import { ApiError } from "../../shared/api.js";
import { InputError } from "../../shared/input_error.js";
import { chooseVariants } from "./compare_dialog.js";

/** @import { Composer } from "../../components/composer/composer.js" */
/** @import { Settings } from "../../components/settings/settings.js" */
/** @import { Values } from "../../components/settings/settings_rules.js" */
/** @import { Welcome } from "../../components/chat/welcome.js" */
/** @import { ChatSettings, TurnRef } from "../../shared/api_types.js" */
/** @import { OpenConversation } from "./open_conversation.js" */

/**
 * @typedef {object} TurnsHost
 * @property {(conversationId: string, temporary: boolean) => void} onCreated  the first message of a new chat was accepted
 * @property {() => void} refreshList
 * @property {(error: unknown) => void} reportError
 */

export class Turns {
  /**
   * @param {object} parts
   * @param {OpenConversation} parts.openConversation
   * @param {Composer} parts.composer
   * @param {Settings} parts.settings
   * @param {Welcome} parts.welcome
   * @param {import("./attached_files.js").AttachedFiles} parts.attached
   * @param {TurnsHost} host
   */
  constructor({ openConversation, composer, settings, welcome, attached }, host) {
    this.attached = attached;
    this.openConversation = openConversation;
    this.composer = composer;
    this.settings = settings;
    this.welcome = welcome;
    this.host = host;
  }

  /**
   * Sends a text, by default that of the message box with its files, with the current settings. It stays there unless
   * the server accepts it; so do a draft and files, when another text is sent.
   * @param {string | null} given
   */
  async send(given = null) {
    const { openConversation, composer, attached } = this;
    const typed = given ?? composer.text;
    const files = given === null ? attached.files : [];
    const text = given ?? attached.withFiles(typed);
    if (!this.#canSend(text, given === null)) return;
    composer.showError("");
    const from = openConversation.conversationId;
    if (!(await this.#choiceMade())) return;
    const settings = this.settings.settingsForTurn();
    try {
      const { temporary } = this.welcome;
      const sent = await openConversation.send(text, settings, from === null && temporary);
      if (!sent) return;
      composer.clearSent(typed, from);
      attached.forget(from, files);
      if (!sent.left) this.#accepted(sent.turn, settings, from === null, temporary);
    } catch (error) {
      await this.#refused(error); // another tab may have sent a message: show it
    }
    this.host.refreshList(); // where the user has left that chat, only the list can show it
  }

  /**
   * Edits a message, or regenerates or continues a reply, with the current settings. Resolves to whether the server
   * accepted it.
   * @param {(settings: ChatSettings | null) => Promise<TurnRef>} start
   */
  async askAgain(start) {
    if (!this.#isIdle()) return false;
    this.composer.showError("");
    if (!(await this.#choiceMade())) return false;
    const settings = this.settings.settingsForTurn();
    try {
      const turn = await start(settings);
      this.settings.onTurnAccepted(turn.conversation_id, settings);
    } catch (error) {
      await this.#refused(error);
      return false;
    }
    this.composer.takeFocus();
    this.host.refreshList();
    return true;
  }

  /**
   * Asks with which settings several replies are to be written side by side, and starts them.
   * @param {string | null} id  of a reply to the message; null: the text of the message box is sent, with its files
   */
  async compare(id = null) {
    const { openConversation, composer, attached } = this;
    const { text: typed } = composer;
    const { files } = attached;
    const text = attached.withFiles(typed);
    if (id === null ? !this.#canSend(text, true) : !this.#isIdle()) return;
    composer.showError("");
    if (!(await this.#choiceMade())) return;
    const from = openConversation.conversationId;
    const { temporary } = this.welcome;
    await chooseVariants(this.settings, async (variants) => {
      if (from !== openConversation.targetConversationId) throw new InputError("Another chat is open now. Cancel this, and compare there.");
      const settings = this.settings.settingsForTurn();
      try {
        const sent = await openConversation.compare(id === null ? { text, temporary: from === null && temporary } : { id }, variants, settings);
        if (!sent) {
          composer.warnReplyInProgress();
          return;
        }
        if (id === null) {
          composer.clearSent(typed, from);
          attached.forget(from, files);
        }
        if (!sent.left) this.#accepted(sent.turn, settings, from === null, temporary);
      } catch (error) {
        this.settings.onTurnRefused();
        if (error instanceof ApiError && error.status === 409) await openConversation.reopen();
        throw error; // shown in the dialog, where it can be mended
      } finally {
        this.host.refreshList();
      }
    });
  }

  /** Stops the reply in flight. */
  async stop() {
    try {
      await this.openConversation.stop();
    } catch (error) {
      this.host.reportError(error);
    }
  }

  /** Whether a message can be sent now; says why not. @param {string} text @param {boolean} isOfBox  the message box's, with its files */
  #canSend(text, isOfBox) {
    const { openConversation, composer, attached } = this;
    if (isOfBox && attached.isReading) composer.showError("A file is still being read. Send again in a moment.");
    else if (text.trim() === "") composer.showError("The message is empty. Write something first.");
    else if (!this.#isIdle()) return false;
    else if (openConversation.opening) composer.showError("The conversation is still opening. Send again in a moment.");
    else return true;
    return false;
  }

  /** Whether no reply is being written; says so if one is. */
  #isIdle() {
    if (!this.openConversation.activeTurnId) return true;
    this.composer.warnReplyInProgress();
    return false;
  }

  /**
   * Waits for a preset or system prompt that was chosen just before, so that it goes with the turn. Resolves to whether
   * the turn may start: the choice is applied, and the same chat is open.
   */
  async #choiceMade() {
    const pending = this.settings.pendingChoice();
    if (pending === null) return true;
    const from = this.openConversation.targetConversationId;
    try {
      await pending;
    } catch (error) {
      this.composer.showError(error instanceof Error ? error.message : String(error));
      return false;
    }
    return this.openConversation.targetConversationId === from && !this.openConversation.activeTurnId;
  }

  /** @param {TurnRef} turn @param {Values | null} settings @param {boolean} isNew @param {boolean} temporary */
  #accepted({ conversation_id: id }, settings, isNew, temporary) {
    this.welcome.hide();
    if (isNew) {
      this.composer.keepDraftFor(id);
      this.attached.keepFor(id);
    }
    this.settings.onTurnAccepted(id, settings);
    if (isNew) this.host.onCreated(id, temporary);
    this.composer.takeFocus();
  }

  /** @param {unknown} error */
  async #refused(error) {
    this.settings.onTurnRefused();
    this.host.reportError(error);
    if (error instanceof ApiError && error.status === 409) await this.openConversation.reopen();
  }
}
