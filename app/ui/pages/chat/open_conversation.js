// The open conversation: messages, the reply in flight, sending and stopping.

import { ApiError, api } from "../../shared/api.js";
import { splitFiles } from "../../components/chat/attached_text.js";
import { announce } from "../../shared/dom.js";
import { crossTab } from "./cross_tab.js";
import { openPrompt } from "./prompt_dialog.js";
import { replyListener } from "./reply_listener.js";
import { Retries } from "./retries.js";
import { codePoints, turnEvents } from "./turn_events.js";

/** @import { ChatSettings, ConversationView, TurnRef, VersionView } from "../../shared/api_types.js" */
/** @import { Citation, Message } from "../../components/chat/types.js" */
/** @import { ReplyView } from "../../components/chat/reply_view.js" */

/**
 * What it asks of the page.
 * @typedef {object} Host
 * @property {{lastMessage: string | null, takeFocus: () => void}} composer
 * @property {(id: string) => unknown} compare  asks how to reply again, several times side by side
 * @property {(id: string) => unknown} useSettings
 * @property {(start: (settings: ChatSettings | null) => Promise<TurnRef>) => Promise<boolean>} askAgain
 * @property {(id: string) => unknown} branch
 * @property {(id: string, citation: Citation) => unknown} mark  marks a cited passage as an answer
 * @property {(id: string) => unknown} deleteMessage
 * @property {() => unknown} warnReplyInProgress
 * @property {(conversation: ConversationView | null, how?: {again: boolean, requestedAt: number}) => void} onConversationShown
 * @property {() => void} onMessageSent  a message of the user was added to the shown conversation
 * @property {() => void} onConversationMissing
 * @property {(active: boolean) => void} setReplying
 * @property {(connected: boolean) => void} setConnected
 * @property {(error: unknown) => void} reportError
 */

const PAGE_SIZE = 100;

export class OpenConversation {
  /** @type {Map<string, () => void>} stops following a reply in flight, by turn id: those of a comparison are several */
  #followed = new Map();
  #retries = new Retries();
  #visit = 0; // sequence number: a slow response must not reopen a conversation that the user has left

  /** @type {string | null} */
  conversationId = null;
  /** @type {string | null} a reply in flight */
  activeTurnId = null;
  /** @type {string | null} id of the conversation that is loading while the previous one is still shown */
  opening = null;
  /** @type {string | null} the first message shown */
  firstId = null;
  /** @type {string | null} the last message shown */
  tipId = null;

  /**
   * @param {Host} page
   * @param {import("../../components/chat/chat.js").Chat} chat
   * @param {object} tab  what connects this tab with the others
   * @param {import("./cross_tab.js").CrossTab} tab.crossTab
   * @param {import("./turn_events.js").TurnEvents} tab.turnEvents
   */
  constructor(page, chat, tab = { crossTab, turnEvents }) {
    this.page = page;
    this.chat = chat;
    this.crossTab = tab.crossTab;
    this.turnEvents = tab.turnEvents;
    this.messages = chat.messages;
    chat.handle({
      edit: ({ id, text }) => page.askAgain((settings) => this.#askAgain("edit", id, { text, settings })),
      regenerate: ({ id }) => page.askAgain((settings) => this.#askAgain("regenerate", id, { settings })),
      resume: ({ id, as_version = false }) => page.askAgain((settings) => this.#askAgain("resume", id, { settings, as_version })),
      rewrite: ({ id, text }) => page.askAgain((settings) => this.#askAgain("rewrite", id, { text, settings })),
      compare: ({ id }) => page.compare(id),
      keep: ({ id }) => this.#keep(id),
      use_settings: ({ id }) => page.useSettings(id),
      decide: ({ id, allow, allow_for_chat, deny }) =>
        page.askAgain((settings) => this.#decide(id, { allow, allow_for_chat, deny, settings })),
      prompt: ({ id }) => openPrompt((offset) => api.promptOf(id, offset), (error) => page.reportError(error)),
      lens: ({ id }) => api.lens(id),
      lens_choice: ({ id, index }) => api.lensChoice(id, index),
      branch_at: ({ id, index, token_id }) => page.askAgain((settings) => this.#branchAt(id, index, token_id, settings)),
      branch: ({ id }) => page.branch(id),
      mark: ({ id, citation }) => page.mark(id, citation),
      delete: ({ id }) => page.deleteMessage(id),
      version: ({ id, step }) => this.#showVersion(id, step),
      rate: ({ id, rating, reasons, comment }) => api.rate(id, { rating, reasons, comment }),
      unrate: ({ id }) => api.unrate(id),
      earlier: () => this.#loadEarlier(),
      error: (error) => page.reportError(error),
    });
    this.#reset();
  }

  #reset() {
    for (const unfollow of this.#followed.values()) unfollow();
    this.#followed.clear();
    this.conversationId = null;
    this.activeTurnId = null;
    this.sending = false;
    this.isNew = false; // created in this tab, and its first reply is in flight
    this.opening = null;
    this.firstId = null;
    this.tipId = null;
    this.page.composer.lastMessage = null;
    this.messages.clear();
    this.chat.setProps({ has_earlier: false });
    this.page.setReplying(false);
  }

  // The conversation the user is on, even if it is still loading.
  get targetConversationId() {
    return this.opening ?? this.conversationId;
  }

  openNew() {
    this.#visit++;
    this.#reset();
    this.page.onConversationShown(null);
  }

  /**
   * Loads a conversation and follows its reply in flight, if any.
   * @param {string} id
   * @param {{at?: string | null}} options  the message to scroll to
   */
  async open(id, { at = null } = {}) {
    const visit = ++this.#visit;
    this.opening = id === this.conversationId ? null : id;
    const requestedAt = performance.now();
    let conversation;
    try {
      conversation = await this.#load(id, at);
    } catch (error) {
      if (visit !== this.#visit) return;
      const isMissing = error instanceof ApiError && error.status === 404;
      const stays = this.opening !== null && !isMissing;
      this.opening = null;
      if (isMissing) this.page.onConversationMissing();
      else this.page.reportError(error);
      if (stays) await this.reopen(); // show what was missed while the other one was loading
      return;
    }
    if (visit !== this.#visit) return;
    const again = id === this.conversationId;
    const { following, place, writing } = this.messages;
    this.#reset();
    this.conversationId = id;
    const { comparison = [] } = conversation;
    const alone = comparison.length === 0 ? conversation.messages : conversation.messages.slice(0, -1);
    for (const message of alone) this.#add(message);
    if (comparison.length > 0) this.#addComparison(comparison, conversation.messages.at(-1)?.id ?? null);
    else this.messages.offerReply(conversation.messages.at(-1));
    this.firstId = conversation.messages[0]?.id ?? null;
    this.chat.setProps({ has_earlier: conversation.has_earlier });
    this.page.onConversationShown(conversation, { again, requestedAt });
    if (at !== null && this.messages.lookAt(at)) return;
    if (again && writing) this.messages.goOnWriting(writing);
    if (!again || following) this.messages.toLatest();
    else this.messages.returnTo(place);
  }

  /** @param {string} id @param {string | null} at */
  async #load(id, at) {
    try {
      return await api.getConversation(id, { limit: PAGE_SIZE, at });
    } catch (error) {
      if (at === null) throw error;
      // The message is on another branch, so switch to that; or it was deleted, so open the conversation without it.
      const isElsewhere = error instanceof ApiError && error.code === "invalid_input";
      if (isElsewhere) await api.showMessage(at);
      return await api.getConversation(id, { limit: PAGE_SIZE, at: isElsewhere ? at : null });
    }
  }

  // Reloads the shown conversation, unless another one is loading.
  async reopen() {
    if (this.conversationId && this.opening === null) await this.open(this.conversationId);
  }

  /**
   * Sends text. Resolves to {turn, left}, where `left` says whether the user has left this chat meanwhile; null while
   * another message is being sent or answered.
   * @param {string} text
   * @param {ChatSettings | null} settings
   * @param {boolean} temporary
   */
  async send(text, settings, temporary) {
    if (this.sending || this.activeTurnId) return null;
    const expected = this.turnEvents.expect();
    try {
      return await this.#send(text, settings, temporary, expected.streamId);
    } finally {
      expected.done();
    }
  }

  /** @param {string} text @param {ChatSettings | null} settings @param {boolean} temporary @param {string | null} streamId */
  async #send(text, settings, temporary, streamId) {
    this.sending = true;
    const visit = this.#visit;
    let turn;
    try {
      turn = await this.#start(text, settings, temporary, streamId);
    } finally {
      if (visit === this.#visit) this.sending = false;
    }
    this.crossTab.broadcast("conversation-changed", { id: turn.conversation_id });
    if (visit !== this.#visit) {
      const stayed = turn.conversation_id === this.conversationId; // only reloaded
      if (stayed) await this.reopen();
      return { turn, left: !stayed };
    }
    this.isNew = this.conversationId === null;
    this.conversationId = turn.conversation_id;
    if (this.messages.holds(turn.user_message_id)) {
      await this.reopen(); // a retry: the first attempt had arrived and is shown already
      return { turn, left: false };
    }
    this.#add({ id: turn.user_message_id, role: "user", content: text, status: "complete" });
    this.#add({ ...turn, id: turn.message_id, role: "assistant", content: "", status: "streaming" }, turn.in_stream ? streamId : null);
    this.page.onMessageSent();
    this.messages.toLatest();
    announce("Message sent.");
    return { turn, left: false };
  }

  /** @param {string} text @param {ChatSettings | null} settings @param {boolean} temporary @param {string | null} stream_id */
  #start(text, settings, temporary, stream_id) {
    const message = { conversation_id: this.conversationId, text, temporary };
    const tip_id = this.tipId; // the message replied to, even if another tab has added to the branch since
    return this.#retries.send(message, (request_id) => api.startTurn({ ...message, tip_id, settings, request_id, stream_id }));
  }

  /**
   * Edits a message, or regenerates or continues a reply, and shows it. Resolves to the turn.
   * @param {"edit" | "rewrite" | "regenerate" | "resume"} how  names the API call
   * @param {string} id
   * @param {{text?: string, as_version?: boolean, settings: ChatSettings | null}} options  the new text of an edit
   */
  async #askAgain(how, id, { text = "", as_version = false, settings }) {
    return this.#showAgain(
      this.#retries.send({ how, id, text, as_version }, (request_id) => {
        if (how === "edit" || how === "rewrite") return api[how](id, { text, settings, request_id });
        return how === "resume" ? api.resume(id, { settings, as_version, request_id }) : api.regenerate(id, { settings, request_id });
      }),
    );
  }

  /**
   * Sends a message, or asks about one again, and shows the replies to it side by side. Resolves to the first turn; null
   * while another message is being sent or answered.
   * @param {{text: string, temporary: boolean} | {id: string}} asked  `id`: of a reply to that message
   * @param {ChatSettings[]} variants
   * @param {ChatSettings | null} settings
   */
  async compare(asked, variants, settings) {
    if (this.sending || this.activeTurnId) return null;
    const { conversationId: conversation_id, tipId: tip_id } = this;
    const visit = this.#visit;
    this.sending = true;
    let turn;
    try {
      const { turns } = await this.#retries.send({ how: "compare", conversation_id, asked, variants }, (request_id) =>
        "id" in asked
          ? api.compareAgain(asked.id, { variants, settings, request_id })
          : api.compare({ ...asked, variants, settings, request_id, conversation_id, tip_id }),
      );
      turn = turns[0];
    } finally {
      if (visit === this.#visit) this.sending = false;
    }
    this.crossTab.broadcast("conversation-changed", { id: turn.conversation_id });
    const left = visit !== this.#visit;
    if (!left) {
      this.conversationId = turn.conversation_id;
      await this.reopen();
      this.isNew = conversation_id === null;
      this.messages.toLatest();
    }
    return { turn, left };
  }

  /** @param {VersionView[]} versions @param {string | null} tipId  of those that is shown */
  #addComparison(versions, tipId) {
    const comparison = this.messages.compare(versions);
    this.tipId = tipId;
    for (const { version, reply } of comparison.columns) {
      const { turn_id: turnId, status } = version.message;
      if (status === "streaming" && turnId) this.#follow(turnId, reply, null, () => comparison.update());
    }
  }

  /** @param {string} id  of the reply that the conversation goes on with */
  async #keep(id) {
    try {
      await api.showMessage(id);
    } catch (error) {
      this.page.reportError(error);
      return;
    }
    this.crossTab.broadcast("conversation-changed", { id: this.conversationId });
    await this.reopen();
    announce("This reply was kept. The others are its other versions.");
    this.page.composer.takeFocus();
  }

  /** @param {string} id @param {number} index @param {number} token_id @param {ChatSettings | null} settings */
  #branchAt(id, index, token_id, settings) {
    const point = { index, token_id };
    return this.#showAgain(
      this.#retries.send({ how: "branch-at", id, ...point }, (request_id) => api.branchAt(id, { ...point, settings, request_id })),
    );
  }

  /** @param {string} id @param {Parameters<typeof api.decideTools>[1]} decision */
  async #decide(id, decision) {
    try {
      return await this.#showAgain(api.decideTools(id, decision));
    } catch (error) {
      // Decided elsewhere, overtaken by a message, or the answer to an earlier try was lost: show what has become of it.
      if (error instanceof ApiError) await this.reopen();
      throw error;
    }
  }

  /** Shows the conversation again once a turn in it has started. @param {Promise<TurnRef>} started */
  async #showAgain(started) {
    const turn = await started;
    this.crossTab.broadcast("conversation-changed", { id: turn.conversation_id });
    if (turn.conversation_id === this.conversationId) {
      await this.reopen();
      this.messages.toLatest();
    }
    return turn;
  }

  /** @param {string} id @param {string} step */
  async #showVersion(id, step) {
    if (this.activeTurnId) {
      this.page.warnReplyInProgress();
      return;
    }
    try {
      await api.showMessage(id);
    } catch (error) {
      this.page.reportError(error);
      return;
    }
    this.crossTab.broadcast("conversation-changed", { id: this.conversationId });
    this.messages.stay(); // at the message whose version changed
    await this.reopen();
    this.messages.focusVersion(id, step);
  }

  async stop() {
    await Promise.all([...this.#followed.keys()].map((turnId) => api.stopTurn(turnId)));
  }

  /**
   * @param {Message & {turn_id?: string | null}} message
   * @param {string | null} inStreamId  the event stream that already carries the reply
   */
  #add(message, inStreamId = null) {
    this.tipId = message.id;
    if (message.role === "user") this.page.composer.lastMessage = splitFiles(message.content).text;
    const reply = this.messages.add(message);
    if (reply && message.status === "streaming" && message.turn_id) this.#follow(message.turn_id, reply, inStreamId);
  }

  /** @param {string} turnId @param {ReplyView} reply @param {string | null} inStreamId @param {() => void} onEnd */
  #follow(turnId, reply, inStreamId, onEnd = () => {}) {
    this.activeTurnId ??= turnId;
    this.#followed.set(turnId, () => {});
    this.page.setReplying(true);
    const listener = replyListener(reply, {
      followDown: () => this.messages.followDown(),
      onFinished: () => {
        this.#finished(turnId);
        onEnd();
      },
      onGone: () => {
        if (this.opening === null) this.page.onConversationMissing();
      },
      onConnection: (connected) => this.page.setConnected(connected),
      reopen: () => this.reopen(),
    });
    const unfollow = this.turnEvents.follow(turnId, [codePoints(reply.source), codePoints(reply.thoughts.source)], listener, inStreamId);
    if (this.#followed.has(turnId)) this.#followed.set(turnId, unfollow); // otherwise it has already ended
  }

  /** @param {string} turnId */
  #finished(turnId) {
    if (!this.#followed.delete(turnId)) return;
    this.activeTurnId = [...this.#followed.keys()][0] ?? null;
    if (this.activeTurnId) return; // another reply of the comparison is still written
    this.page.setReplying(false);
    this.isNew = false;
    this.page.setConnected(true);
  }

  async #loadEarlier() {
    const visit = this.#visit;
    const { conversationId, firstId: before } = this;
    if (conversationId === null) return;
    this.chat.earlier.disabled = true;
    try {
      const page = await api.getConversation(conversationId, { limit: PAGE_SIZE, before });
      if (visit !== this.#visit || before !== this.firstId) return; // the list has changed meanwhile
      this.messages.addAbove(page.messages);
      this.firstId = page.messages[0]?.id ?? this.firstId;
      this.chat.setProps({ has_earlier: page.has_earlier });
    } catch (error) {
      this.page.reportError(error);
    } finally {
      this.chat.earlier.disabled = false;
    }
  }
}
