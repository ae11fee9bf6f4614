// Fills the conversation list from the JSON API, and does what users do in it.

import { ApiError, api, conversationWriting } from "../../shared/api.js";
import { conversationUrl } from "./address.js";
import { proposeArticle, showSummary } from "./case_dialogs.js";
import { ListState } from "./list_state.js";
import { plural } from "../../shared/formats.js";
import { download, downloadChosen, importOutcome } from "./transfer.js";

/** @import { ConversationDeletion } from "../../shared/api_types.js" */
/** @typedef {import("../../components/conversations/listing.js").Summary} Summary */

const PAGE_SIZE = 50;
const MAX_PAGE_SIZE = 200; // as in the API
const POLL_MS = 4000;

/**
 * What the list tells the page.
 * @typedef {object} ListPageHost
 * @property {() => void} onNew
 * @property {(id: string, messageId: string | null) => void} onSelect
 * @property {(items: Summary[]) => void} onListed  the list was loaded, or loaded again
 * @property {(id: string, title: string) => void} onRenamed
 * @property {(ids: string[], deletion: ConversationDeletion | null, title: string | null) => void} onDeleted  null: they
 *   were gone already; `title` of a single one
 * @property {(text: string) => void} onStatus
 * @property {(error: unknown) => void} onError
 * @property {(error: unknown) => void} onListFailed  the list could not be loaded
 */

/**
 * Without a folder, tag or search, the list has what is in no folder.
 * @param {import("../../components/conversations/listing.js").Filter} filter
 * @param {string | null} cursor
 * @param {number} wanted
 */
const listQuery = ({ query, tag, archived, folder = null }, cursor, wanted) => ({
  limit: Math.min(Math.max(PAGE_SIZE, wanted), MAX_PAGE_SIZE),
  cursor,
  query: query || null,
  tag,
  archived: archived || null,
  folder: folder ?? (query || tag !== null || archived ? null : "none"),
});

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
        listPage: (filter, cursor, wanted) => api.listConversations(listQuery(filter, cursor, wanted)),
        listTags: async () => Object.keys(await api.listTags()),
        listFolders: () => api.listFolders(),
      },
      {
        show: () => this.#show(),
        setLoadingMore: (isLoading) => view.setLoadingMore(isLoading),
        reach: () => view.reach + PAGE_SIZE,
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
      delete: ({ id }) => this.#delete([id]),
      move: ({ ids, folder }) => this.#move(ids, folder),
      folder_create: ({ name }) => this.#does(() => api.createFolder(name)),
      folder_rename: ({ id, name }) => this.#does(() => api.renameFolder(id, name)),
      folder_delete: ({ id }) => this.#does(() => api.deleteFolder(id)),
      change_many: ({ ids, archived, tags }) => this.#does(() => api.changeConversations(ids, { archived, add_tags: tags })),
      delete_many: ({ ids }) => this.#delete(ids),
      export_many: ({ ids, format }) => downloadChosen(ids, format).catch((error) => host.onError(error)),
      summarise: (conversation) => showSummary({ ...conversation, routes: conversationWriting }, (messageId) => host.onSelect(conversation.id, messageId)),
      article: (conversation) => proposeArticle({ ...conversation, routes: conversationWriting }),
      export: ({ id, format }) => download(id, format),
      upload: ({ file }) => this.#import(file),
    });
  }

  /** Reloads the list. */
  async refresh() {
    await this.state.refresh();
  }

  /** The conversation below another one in the list, or above it. @param {string | null} id @param {1 | -1} step */
  neighbour(id, step) {
    return this.state.neighbour(id, step);
  }

  /** The conversations that are listed. */
  get items() {
    return this.state.items;
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
    const { items, tags, folders, filter, hasMore } = this.state;
    const linked = items.map((item) => ({ ...item, url: conversationUrl(item.id, item.message_id) }));
    this.view.show({ items: linked, tags, folders, filter, hasMore });
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

  /** @param {string} id @param {object} change */
  #change(id, change) {
    return this.#does(() => api.changeConversation(id, change));
  }

  /** Does what changes the list, and reads it again. @param {() => Promise<unknown>} change */
  async #does(change) {
    try {
      await change();
    } catch (error) {
      this.host.onError(error);
    }
    await this.refresh();
  }

  /** @param {string[]} ids @param {{id: string | null} | {name: string}} folder */
  #move(ids, folder) {
    return this.#does(async () => {
      const { id, name } = "name" in folder ? await api.createFolder(folder.name) : this.#folder(folder.id);
      const { changed } = await api.changeConversations(ids, { folder_id: id });
      this.host.onStatus(`${plural(changed, "conversation")} moved ${name === null ? "out of the folder" : `to “${name}”`}.`);
    });
  }

  /** @param {string | null} id @returns {{id: string | null, name: string | null}} */
  #folder(id) {
    return this.state.folders.find((folder) => folder.id === id) ?? { id, name: null };
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

  /** @param {string[]} ids */
  async #delete(ids) {
    const titles = this.state.items.filter(({ id }) => ids.includes(id)).map(({ title }) => title);
    /** @type {ConversationDeletion | null} */
    let deletion = null;
    try {
      deletion = await api.deleteConversations(ids);
    } catch (error) {
      if (!(error instanceof ApiError) || error.status !== 404) {
        this.host.onError(error);
        return;
      }
    }
    for (const id of ids) this.view.removeRow(id);
    this.host.onDeleted(ids, deletion, titles.length === 1 ? titles[0] ?? null : null);
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
