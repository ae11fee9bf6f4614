// What the palette of the chat page finds, and what choosing it does.

import { api, errorMessage } from "../../shared/api.js";
import { make } from "../../shared/dom.js";
import { matches } from "./palette.js";

/** @import { CannedReply, ConversationSummary } from "../../shared/api_types.js" */
/** @import { PageOptions } from "../../shared/page_options.js" */
/** @import { Entry, Group } from "./palette.js" */

/** @typedef {Pick<ConversationSummary, "id" | "title" | "message_id" | "snippet" | "folder" | "archived">} Item */

/**
 * @typedef {object} PaletteHost
 * @property {boolean} canWrite
 * @property {() => PageOptions} options
 * @property {() => Entry[]} commands
 * @property {() => readonly {id: string, title: string}[]} recent  conversations that the list has loaded
 * @property {(id: string, messageId: string | null) => unknown} open
 * @property {(selector: string) => unknown} showSetting
 * @property {(name: string) => unknown} choosePrompt
 * @property {(reply: CannedReply) => unknown} useCanned
 */

const FOUND = 30; // conversations per search
const RECENT = 6;
const LISTED = 6; // of a group of which the page knows all

const SETTINGS = [
  ["System prompt", ".dm-prompt"],
  ["System prompt text", ".dm-prompt-text"],
  ["Sources", ".dm-control-collections"],
  ["Preset", ".dm-preset"],
];

export class PaletteFinder {
  /** @type {CannedReply[]} */
  #canned = [];

  /** @param {PaletteHost} host */
  constructor(host) {
    this.host = host;
  }

  async load() {
    if (this.host.canWrite) this.#canned = await api.listCanned();
  }

  /** @param {string} query @returns {Group[]} */
  here(query) {
    const { host } = this;
    const commands = { name: "Commands", entries: host.commands().filter((entry) => matches(entry, query)) };
    if (query === "") {
      const recent = host.recent().slice(0, RECENT);
      return [{ name: "Recent chats", entries: recent.map(({ id, title }) => ({ key: id, title, run: () => host.open(id, null) })) }, commands];
    }
    const { parameters, prompts } = host.options();
    const labels = [...SETTINGS, ...parameters.map(({ label, name }) => [label, `.dm-control-${name}`])];
    const settings = labels.map(([title = "", selector = ""]) => ({ key: selector, title, run: () => host.showSetting(selector) }));
    const named = prompts.map(({ name, title, description }) => ({ key: name, title, hint: "Use in this chat", words: `prompt ${description}`, run: () => host.choosePrompt(name) }));
    const canned = this.#canned.map((reply) => ({
      key: reply.name,
      title: reply.title ?? reply.name,
      words: `canned ${reply.description ?? ""}`,
      run: () => host.useCanned(reply),
    }));
    /** @param {string} name @param {Entry[]} entries */
    const group = (name, entries) => ({ name, entries: entries.filter((entry) => matches(entry, query)).slice(0, LISTED) });
    if (!host.canWrite) return [commands, group("Settings", settings)];
    return [commands, group("Settings", settings), group("System prompts", named), group("Canned replies", canned)];
  }

  /** @param {string} query @returns {Promise<Group[]>} */
  async search(query) {
    const { items } = await api.listConversations({ query, limit: FOUND });
    const titled = items.filter(({ title, message_id: id }) => id === null || matches({ key: "", title, run: () => undefined }, query));
    return [
      { name: "Chats", entries: titled.map((item) => this.#entry(item, false)) },
      { name: "Messages", entries: items.filter(({ message_id: id }) => id !== null).map((item) => this.#entry(item, true)) },
    ];
  }

  /** @param {unknown} error */
  explain(error) {
    return `Chats and messages could not be searched. ${errorMessage(error)}`;
  }

  /** @param {Item} item @param {boolean} isMessage @returns {Entry} */
  #entry({ id, title, message_id: messageId, snippet, folder, archived }, isMessage) {
    return {
      key: id,
      title,
      hint: archived ? "Archived" : folder ?? "",
      detail: isMessage ? snippet.map(({ text, hit }) => (hit ? make("mark", {}, text) : text)) : [],
      run: () => this.host.open(id, isMessage ? messageId : null),
    };
  }
}
