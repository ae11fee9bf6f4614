// The state of the conversation list: its pages, filter and tags, whatever order responses arrive in.

/** @typedef {import("../../components/conversations/listing.js").Filter} Filter */
/** @typedef {import("../../components/conversations/listing.js").Summary} Summary */
/** @typedef {import("../../components/conversations/folder_bar.js").Folder} Folder */
/** @typedef {{items: Summary[], next_cursor: string | null}} ListPage */

/**
 * @typedef {object} Source  where the list comes from
 * @property {(filter: Filter, cursor: string | null, wanted: number) => Promise<ListPage>} listPage  `wanted`: as many
 *   items, if a page may have so many
 * @property {() => Promise<string[]>} listTags
 * @property {() => Promise<Folder[]>} listFolders
 */

/**
 * @typedef {object} Listener
 * @property {(state: ListState) => void} show  the state has changed
 * @property {(isLoading: boolean) => void} setLoadingMore
 * @property {() => number} reach  how many of the items the user can see without scrolling further, at least
 * @property {(error: unknown) => void} fail
 */

export class ListState {
  /** @type {Filter} */
  #filter = { query: "", tag: null, archived: false };
  /** @type {Summary[]} */
  #items = [];
  /** @type {string[]} */
  #tags = [];
  /** @type {Folder[]} */
  #folders = [];
  /** @type {string | null} of the next page; null: there is none */
  #cursor = null;
  #lastRequest = 0; // sequence number; responses to older requests are dropped
  /** @type {number | null} the sequence number of the refresh in flight */
  #refreshing = null;
  #isLoadingMore = false;

  /**
   * @param {Source} source
   * @param {Listener} listener
   */
  constructor(source, listener) {
    this.source = source;
    this.listener = listener;
  }

  get items() {
    return this.#items;
  }

  get tags() {
    return this.#tags;
  }

  get folders() {
    return this.#folders;
  }

  get filter() {
    return this.#filter;
  }

  get hasMore() {
    return this.#cursor !== null;
  }

  /** Lists other conversations. @param {Filter} filter */
  async choose(filter) {
    this.#filter = { ...filter };
    await this.#load(0);
  }

  /** Reloads the list, as far as the user has scrolled: of thousands that they have left behind, the rest goes. */
  async refresh() {
    await this.#load(Math.min(this.#items.length, this.listener.reach()));
  }

  /** @param {number} wanted  items, at least */
  async #load(wanted) {
    const request = ++this.#lastRequest;
    this.#refreshing = request;
    /** @type {Summary[]} */
    const items = [];
    /** @type {string | null} */
    let cursor = null;
    /** @type {string[]} */
    let tags;
    /** @type {Folder[]} */
    let folders;
    try {
      do {
        const page = /** @type {ListPage} */ (await this.source.listPage(this.#filter, cursor, wanted - items.length));
        if (request !== this.#lastRequest) return;
        items.push(...page.items);
        cursor = page.next_cursor;
      } while (cursor !== null && items.length < wanted);
      [tags, folders] = await Promise.all([this.source.listTags(), this.source.listFolders()]);
      if (request !== this.#lastRequest) return;
    } catch (error) {
      if (request === this.#lastRequest) this.listener.fail(error);
      return;
    } finally {
      if (this.#refreshing === request) this.#refreshing = null;
    }
    this.#tags = tags;
    this.#folders = folders;
    if (this.#filter.folder && !folders.some(({ id }) => id === this.#filter.folder)) {
      await this.choose({ ...this.#filter, folder: null }); // it was deleted
      return;
    }
    if (this.#filter.tag !== null && !tags.includes(this.#filter.tag)) {
      await this.choose({ ...this.#filter, tag: null }); // no conversation has this tag any more
      return;
    }
    this.#show(items, cursor);
  }

  /** Loads the next page. Skipped during a refresh, whose result replaces the items that this would append to. */
  async loadMore() {
    if (this.#cursor === null || this.#isLoadingMore || this.#refreshing !== null) return;
    const request = this.#lastRequest;
    this.#setLoadingMore(true);
    try {
      const page = await this.source.listPage(this.#filter, this.#cursor, 0);
      if (request === this.#lastRequest) this.#show([...this.#items, ...page.items], page.next_cursor);
    } catch (error) {
      if (request === this.#lastRequest) this.listener.fail(error);
    } finally {
      this.#setLoadingMore(false);
    }
  }

  /**
   * The conversation below another one in the list, or above it. The next page is loaded where it begins with that one.
   * @param {string | null} id  of one that is not listed: the first or the last of the list is meant
   * @param {1 | -1} step  1: below
   */
  async neighbour(id, step) {
    const at = this.#items.findIndex((item) => item.id === id);
    if (at < 0) return this.#items.at(step > 0 ? 0 : -1);
    if (at + step === this.#items.length) await this.loadMore();
    return this.#items[at + step];
  }

  /** @param {boolean} isLoading */
  #setLoadingMore(isLoading) {
    this.#isLoadingMore = isLoading;
    this.listener.setLoadingMore(isLoading);
  }

  /**
   * @param {Summary[]} items
   * @param {string | null} cursor
   */
  #show(items, cursor) {
    this.#items = items;
    this.#cursor = cursor;
    this.listener.show(this);
  }
}
