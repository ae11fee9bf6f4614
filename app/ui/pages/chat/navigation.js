// Which conversation is open: the address, the title, the list, the settings and the draft follow it, also when another
// tab changes or deletes it.

import { api } from "../../shared/api.js";
import { conversationUrl, parseLocation } from "./address.js";

/** @import { Welcome } from "../../components/chat/welcome.js" */
/** @import { Composer } from "../../components/composer/composer.js" */
/** @import { Summary } from "../../components/conversations/listing.js" */
/** @import { Header } from "../../components/header/header.js" */
/** @import { Settings } from "../../components/settings/settings.js" */
/** @import { ConversationView } from "../../shared/api_types.js" */
/** @import { ConversationList } from "./conversation_list.js" */
/** @import { CrossTab } from "./cross_tab.js" */
/** @import { OpenConversation } from "./open_conversation.js" */
/** @import { Panels } from "./panels.js" */

const NEW_CHAT = "New chat";

const MISSING = "This conversation does not exist. It may have been deleted.";
const TEMPORARY_MISSING =
  "This temporary chat has ended: it was kept in the memory of a server that has stopped or cannot be reached.";

export class Navigation {
  #title = NEW_CHAT;
  /** @type {Element | null} the focused element when the user opened another conversation */
  #focusBefore = null;
  #takesFocus = true;

  /**
   * @param {object} parts
   * @param {OpenConversation} parts.openConversation
   * @param {Header} parts.header
   * @param {Composer} parts.composer
   * @param {Welcome} parts.welcome
   * @param {Settings} parts.settings
   * @param {ConversationList} parts.conversations
   * @param {Panels} parts.panels
   * @param {CrossTab} parts.crossTab
   * @param {object} host
   * @param {() => void} host.refreshList
   */
  constructor({ openConversation, header, composer, welcome, settings, conversations, panels, crossTab }, { refreshList }) {
    this.openConversation = openConversation;
    this.header = header;
    this.composer = composer;
    this.welcome = welcome;
    this.settings = settings;
    this.conversations = conversations;
    this.panels = panels;
    this.crossTab = crossTab;
    this.refreshList = refreshList;
    addEventListener("popstate", () => this.openAddress());
    crossTab.on("conversation-changed", ({ id, title }) => {
      this.refreshList();
      if (id !== this.openConversation.conversationId) return;
      if (title) this.#setTitle(title);
      else this.openConversation.reopen();
    });
    crossTab.on("conversation-deleted", ({ id }) => {
      this.refreshList();
      if (id === this.openConversation.targetConversationId) this.onConversationMissing();
    });
  }

  /**
   * Opens a conversation; `id` null opens a new chat.
   * @param {string | null} id
   * @param {object} options
   * @param {boolean} [options.record]  false: the address is the conversation's already
   * @param {string | null} [options.at]  the message to scroll to
   * @param {Element | null} [options.from]  the element that has the focus; null: take no focus from any
   * @param {boolean} [options.focuses]  the message box may get the focus
   */
  navigate(id, { record = true, at = null, from = document.activeElement, focuses = true } = {}) {
    const address = conversationUrl(id, at);
    this.#focusBefore = from;
    this.#takesFocus = focuses;
    if (record && address !== location.pathname + location.search) history.pushState(null, "", address);
    this.panels.closeOverlays();
    this.conversations.markCurrent(id);
    return id ? this.openConversation.open(id, { at }) : this.openConversation.openNew();
  }

  /** Opens the conversation of the page's address. */
  openAddress() {
    const { id, at } = parseLocation();
    return this.navigate(id, { record: false, at });
  }

  /** Opens the conversation of the page's address, if that could not be loaded before: the server is reachable again. */
  openMissed() {
    const { id, at } = parseLocation();
    if (id === this.openConversation.targetConversationId) return undefined;
    return this.navigate(id, { record: false, at, from: null }); // not requested by the user, so take no focus
  }

  // ---- what happens to the open conversation

  /**
   * A conversation is shown; null: a new chat.
   * @param {ConversationView | null} conversation
   * @param {{again?: boolean, requestedAt?: number}} how  `again`: the one that was shown before
   */
  onConversationShown(conversation, { again = false, requestedAt } = {}) {
    this.header.markTemporary(Boolean(conversation?.temporary));
    if (conversation === null || conversation.messages.length === 0) this.welcome.show({ exists: conversation !== null });
    else this.welcome.hide();
    this.#setTitle(conversation?.title ?? NEW_CHAT);
    if (again) return; // a reload: the user may be typing or changing settings
    this.settings.open(conversation?.id ?? null, conversation?.settings, requestedAt);
    this.composer.useDraft(conversation?.id ?? null);
    if (this.#takesFocus) this.composer.takeFocus(this.#focusBefore);
  }

  onConversationMissing() {
    const temporary = this.header.isTemporary;
    history.replaceState(null, "", "/");
    this.navigate(null, { from: null }); // not requested by the user, so take no focus
    this.composer.showError(temporary ? TEMPORARY_MISSING : MISSING);
  }

  /** The new chat has got its id, with its first message. @param {string} id @param {boolean} temporary */
  onCreated(id, temporary) {
    history.pushState(null, "", conversationUrl(id));
    this.welcome.hide();
    if (temporary) this.#setTitle("Temporary chat");
    this.header.markTemporary(temporary);
    this.conversations.markCurrent(id);
  }

  // ---- what happens in the list

  /** Takes the open conversation's title and unread state from the list. @param {Summary[]} items */
  onListed(items) {
    const open = items.find((item) => item.id === this.openConversation.conversationId);
    if (!open) return;
    if (open.title !== this.#title) this.#setTitle(open.title);
    if (open.unread && !open.streaming && document.visibilityState === "visible") this.#markRead(open.id);
  }

  /** @param {string} id @param {string} title */
  onRenamed(id, title) {
    if (id === this.openConversation.conversationId) this.#setTitle(title);
    this.crossTab.broadcast("conversation-changed", { id, title });
  }

  /** @param {string} id */
  onDeleted(id) {
    this.composer.deleteDraft(id);
    this.crossTab.broadcast("conversation-deleted", { id });
    if (id === this.openConversation.targetConversationId) this.navigate(null);
  }

  /** @param {string} id */
  async #markRead(id) {
    try {
      await api.changeConversation(id, { unread: false });
    } catch {
      return; // the unread mark stays until the next refresh
    }
    this.refreshList();
    this.crossTab.broadcast("conversation-changed", { id, title: this.#title });
  }

  /** @param {string} title */
  #setTitle(title) {
    this.#title = title;
    this.header.setTitle(title);
    document.title = `${title} · Deskmate`;
  }
}
