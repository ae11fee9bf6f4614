// Fills the conversation list from the JSON API, and does what users do in it.

import { ApiError, api } from "../../shared/api.js";
import { conversationUrl } from "./address.js";
import { proposeArticle, showSummary } from "./case_dialogs.js";
import { ListState } from "./list_state.js";
import { download, importOutcome } from "./transfer.js";

/** @typedef {import("../../components/conversations/listing.js").Summary} Summary */

const PAGE_SIZE = 50;
const POLL_MS = 4000;

/**
 * What the list tells the page.
 * @typedef {object} ListPageHost
 * @property {() => void} onNew
 * @property {(id: string, messageId: string | null) => void} onSelect
 * @property {(items: Summary[]) => void} onListed  the list was loaded, or loaded again
 * @property {(id: string, title: string) => void} onRenamed
 * @property {(id: string) => void} onDeleted
 * @property {(text: string) => void} onStatus
 * @property {(error: unknown) => void} onError
 * @property {(error: unknown) => void} onListFailed  the list could not be loaded
 */

export class ConversationList {
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #timer = undefined;

  /**
   * @param {import("../../components/conversations/conversations.js").Conversations} view
   * @param {ListPageHost} host
   */
  constructor(view, host) {
    this.view = view;
    this.host = host;
    this.state = new ListState(
      {
        listPage: ({ query, tag, archived }, cursor) =>
          api.listConversations({ limit: PAGE_SIZE, cursor, query: query || null, tag, archived: archived || null }),
        listTags: async () => Object.keys(await api.listTags()),
      },
      {
        show: () => this.#show(),
        setLoadingMore: (isLoading) => view.setLoadingMore(isLoading),
        fail: (error) => host.onListFailed(error),
      },
    );
    view.awaitList();
    view.handle({
      new: () => host.onNew(),
      select: ({ id, message_id: messageId }) => host.onSelect(id, messageId),
      search: (filter) => this.state.choose(filter),
      more: () => this.state.loadMore(),
      rename: ({ id, title }) => this.#rename(id, title),
      pin: ({ id, pinned }) => this.#change(id, { pinned }),
      archive: ({ id, archived }) => this.#change(id, { archived }),
      tag: ({ id, tags }) => this.#change(id, { tags }),
      delete: ({ id }) => this.#delete(id),
      summarise: (conversation) => showSummary(conversation, (messageId) => host.onSelect(conversation.id, messageId)),
      article: (conversation) => proposeArticle(conversation),
      export: ({ id, format }) => download(id, format),
      upload: ({ file }) => this.#import(file),
    });
  }

  /** Reloads the list. */
  async refresh() {
    await this.state.refresh();
  }

  /** Tells the page the current items again. */
  notifyListed() {
    this.host.onListed(this.state.items);
  }

  /** Marks the open conversation. @param {string | null} id */
  markCurrent(id) {
    this.view.markCurrent(id);
  }

  /** Shows a text below the list. @param {string} text  empty: none */
  showNote(text) {
    this.view.showNote(text);
  }

  #show() {
    const { items, tags, filter, hasMore } = this.state;
    const linked = items.map((item) => ({ ...item, url: conversationUrl(item.id, item.message_id) }));
    this.view.show({ items: linked, tags, filter, hasMore });
    this.#pollWhileStreaming();
    this.notifyListed();
  }

  /** Polls while a reply is in flight: for replies that no open tab follows, only the list shows when they end. */
  #pollWhileStreaming() {
    clearTimeout(this.#timer);
    if (!this.state.items.some(({ streaming }) => streaming)) return;
    this.#timer = setTimeout(() => {
      if (document.visibilityState === "visible") this.refresh();
    }, POLL_MS);
  }

  /**
   * @param {string} id
   * @param {object} change
   */
  async #change(id, change) {
    try {
      await api.changeConversation(id, change);
    } catch (error) {
      this.host.onError(error);
    }
    await this.refresh();
  }

  /**
   * @param {string} id
   * @param {string} title
   */
  async #rename(id, title) {
    try {
      await api.changeConversation(id, { title });
      this.host.onRenamed(id, title);
    } catch (error) {
      this.host.onError(error);
    }
    await this.refresh();
  }

  /** @param {string} id */
  async #delete(id) {
    try {
      await api.deleteConversation(id);
    } catch (error) {
      if (!(error instanceof ApiError) || error.status !== 404) {
        this.host.onError(error);
        return;
      }
    }
    this.view.removeRow(id);
    this.host.onDeleted(id);
    await this.refresh();
  }

  /** @param {File} file */
  async #import(file) {
    this.host.onStatus(`Importing ${file.name} …`);
    try {
      this.host.onStatus(importOutcome(await api.importFile(file)));
    } catch (error) {
      this.host.onStatus("");
      this.host.onError(error);
      return;
    }
    await this.refresh();
  }
}
