// Entry point of the chat page: connects its components with the JSON API and with each other.

import { conversationUrl, parseLocation } from "../../shared/address.js";
import { api } from "../../shared/api.js";
import { setUpAccountMenu } from "./account_menu.js";
import { ConversationList } from "./conversation_list.js";
import { OpenConversation } from "./open_conversation.js";
import { beforeServerListeners, register, whenMounted } from "../../shared/component.js";
import { announce, byId, debounce, waitForElement } from "../../shared/dom.js";
import { loadOptions } from "./options.js";
import { Panels } from "./panels.js";
import { Readiness } from "./readiness.js";
import { Settings, waitForSettings } from "../../components/settings/settings.js";
import { crossTab } from "../../shared/cross_tab.js";
import { Toast } from "../../shared/toast.js";

// When to look for the generated title of a new conversation, in ms after its first reply. Until then the title is the
// start of the first message.
const TITLE_CHECKS_MS = [1500, 4000, 10_000];

const VIEWER_NOTE = "You have read-only access as a viewer. Ask an admin if you need to write.";

class Page {
  #title = "New chat";
  #lastOptionsRequest = 0; // sequence number; responses to older requests are dropped
  #focusBefore = null; // the focused element when the user opened another conversation

  // `components`: the page's components by name.
  constructor(options, { header, chat, composer, conversations, model }) {
    this.options = options;
    this.header = header;
    this.composer = composer;
    this.model = model;
    this.messages = chat;
    this.welcome = chat.welcome;
    this.panels = new Panels(header);
    this.readiness = new Readiness(header, {
      modelName: () => this.options.model.name,
      isReplying: () => Boolean(this.chat?.activeTurnId),
      onReconnect: () => this.refreshSoon(),
      withdrawError: (message) => composer.withdrawError(message),
    });
    header.handle({
      toggle: ({ panel }) => {
        this.panels.toggle(panel);
        if (panel === "settings") this.model.refresh();
      },
    });
    setUpAccountMenu(header, options, (error) => this.reportError(error));
    if (options.user.role === "viewer") this.#makeReadOnly();
    composer.handle({
      submit: () => this.send(),
      stop: () => this.stop(),
      canned_open: () => api.listCanned(),
      canned_fill: ({ name, values }) => api.fillCanned(name, values),
      error: (error) => this.reportError(error),
    });
    this.settings = new Settings(options, (id, settings, keepalive) => api.changeConversation(id, { settings }, keepalive), {
      root: byId("dm-settings"),
      onSaveFailed: (error) => this.toast.show(`The settings of the chat you left were not saved. Open it to try again. ${error.message}`),
    });
    this.settings.explain = () => this.#explainFailure();
    register("settings", this.settings);
    this.conversations = new ConversationList(conversations, {
      onNew: () => this.navigate(null),
      onSelect: (id, messageId) => this.navigate(id, { at: messageId }),
      onListed: (items) => this.#listed(items),
      onRenamed: (id, title) => this.#renamed(id, title),
      onDeleted: (id) => this.#deleted(id),
      onStatus: (text) => this.toast.show(text),
      onError: (error) => this.reportError(error),
      onListFailed: (error) => (error.status === 0 ? this.readiness.show("not reachable") : this.reportError(error)),
    });
    model.isOpen = () => this.panels.settings.open;
    model.canChange = () => this.options.user.role === "admin";
    model.explain = () => this.#explainFailure();
    beforeServerListeners(() => api.health());
    model.handle({
      another_state: () => {
        this.modelChanged();
        crossTab.broadcast("model-changed");
      },
    });
    this.toast = new Toast(composer.element);
    chat.handle({
      example_select: ({ text }) => this.composer.fill(text),
      temporary: () => undefined, // asked of `welcome` when the first message is sent
    });
    this.#describeModel();
    this.chat = new OpenConversation(this, chat);
    this.refreshSoon = debounce(150, () => this.conversations.refresh());
    this.#listen();
  }

  // ---- commands called by Gradio's components

  async send() {
    const text = this.composer.text;
    if (text.trim() === "") {
      this.composer.showError("The message is empty. Write something first.");
      return;
    }
    if (this.chat.activeTurnId) {
      this.warnReplyInProgress();
      return;
    }
    if (this.chat.opening) {
      this.composer.showError("The conversation is still opening. Send again in a moment.");
      return;
    }
    this.composer.showError("");
    const from = this.chat.conversationId;
    if (!(await this.#choiceMade())) return;
    const settings = this.settings.settingsForTurn();
    try {
      const sent = await this.chat.send(text, settings, from === null && this.welcome.temporary);
      if (!sent) return;
      this.composer.clearSent(text, from);
      if (!sent.left) this.welcome.hide();
      if (sent.left) {
        this.refreshSoon(); // the user has left that chat, so only the list can show it
        return;
      }
      if (from === null) this.composer.keepDraftFor(sent.turn.conversation_id);
      this.settings.onTurnAccepted(sent.turn.conversation_id, settings);
      if (from === null) this.#created(sent.turn.conversation_id, this.welcome.temporary);
      this.composer.takeFocus();
    } catch (error) {
      this.settings.onTurnRefused();
      this.reportError(error);
      if (error.status === 409) await this.chat.reopen(); // another tab sent a message: show it
    }
    this.refreshSoon();
  }

  // Waits for a preset or system prompt that was chosen just before, so that it goes with the turn. Resolves to whether
  // the turn may start: the choice is applied, and the same chat is open.
  async #choiceMade() {
    const pending = this.settings.pendingChoice();
    if (pending === null) return true;
    const from = this.chat.targetConversationId;
    try {
      await pending;
    } catch (error) {
      this.composer.showError(error.message);
      return false;
    }
    return this.chat.targetConversationId === from && !this.chat.activeTurnId;
  }

  // Edits a message, or regenerates or continues a reply, with the current settings. `start(settings)` resolves to the
  // turn. Resolves to whether the server accepted it.
  async askAgain(start) {
    if (this.chat.activeTurnId) {
      this.warnReplyInProgress();
      return false;
    }
    this.composer.showError("");
    if (!(await this.#choiceMade())) return false;
    const settings = this.settings.settingsForTurn();
    try {
      const turn = await start(settings);
      this.settings.onTurnAccepted(turn.conversation_id, settings);
    } catch (error) {
      this.settings.onTurnRefused();
      this.reportError(error);
      if (error.status === 409) await this.chat.reopen();
      return false;
    }
    this.composer.takeFocus();
    this.refreshSoon();
    return true;
  }

  // Copies the conversation up to a message into a new conversation and opens that.
  async branch(id) {
    try {
      const { conversation_id: branched } = await api.branch(id);
      await this.navigate(branched);
    } catch (error) {
      this.reportError(error);
      return;
    }
    announce("You are in a new conversation now.");
    this.refreshSoon();
  }

  // Deletes a message and everything after it, and offers to undo that for a while.
  async deleteMessage(id) {
    if (this.chat.activeTurnId) return this.warnReplyInProgress();
    let deletion;
    try {
      deletion = await api.deleteMessage(id);
    } catch (error) {
      this.reportError(error);
      return;
    }
    await this.chat.reopen();
    crossTab.broadcast("conversation-changed", { id: deletion.conversation_id });
    const what = deletion.messages === 1 ? "The message was deleted." : `${deletion.messages} messages were deleted.`;
    this.toast.show(what, "Undo", () => this.#undo(deletion));
  }

  async #undo({ deletion_id: id, conversation_id: conversation }) {
    try {
      await api.undoDeletion(id);
    } catch (error) {
      this.reportError(error);
      return;
    }
    crossTab.broadcast("conversation-changed", { id: conversation });
    if (this.chat.conversationId === conversation) await this.chat.reopen();
    announce("The messages were restored.");
  }

  warnReplyInProgress() {
    this.composer.warnReplyInProgress();
  }

  async stop() {
    try {
      await this.chat.stop();
    } catch (error) {
      this.reportError(error);
    }
  }

  // ---- navigation

  // Opens a conversation, at message `at` if given; `id` null opens a new chat.
  navigate(id, { record = true, at = null, from = document.activeElement } = {}) {
    const address = conversationUrl(id, at);
    this.#focusBefore = from;
    if (record && address !== location.pathname + location.search) history.pushState(null, "", address);
    this.panels.closeOverlays();
    this.conversations.markCurrent(id);
    return id ? this.chat.open(id, { at }) : this.chat.openNew();
  }

  #created(id, temporary) {
    history.pushState(null, "", conversationUrl(id));
    this.welcome.hide();
    if (temporary) this.#entitle("Temporary chat");
    this.header.markTemporary(temporary);
    this.conversations.markCurrent(id);
  }

  // Takes the open conversation's title and unread state from the list.
  #listed(items) {
    const open = items.find((item) => item.id === this.chat?.conversationId);
    if (!open) return;
    if (open.title !== this.#title) this.#entitle(open.title);
    if (open.unread && !open.streaming && document.visibilityState === "visible") this.#markRead(open.id);
  }

  async #markRead(id) {
    try {
      await api.changeConversation(id, { unread: false });
    } catch {
      return; // the unread mark stays until the next refresh
    }
    this.refreshSoon();
    crossTab.broadcast("conversation-changed", { id, title: this.#title });
  }

  #renamed(id, title) {
    if (id === this.chat.conversationId) this.#entitle(title);
    crossTab.broadcast("conversation-changed", { id, title });
  }

  #deleted(id) {
    this.composer.deleteDraft(id);
    crossTab.broadcast("conversation-deleted", { id });
    if (id === this.chat.targetConversationId) this.navigate(null);
  }

  #entitle(title) {
    this.#title = title;
    this.header.setTitle(title);
    document.title = `${title} · Deskmate`;
  }

  // ---- callbacks of the chat

  onConversationShown(conversation, { again = false, requestedAt } = {}) {
    this.header.markTemporary(Boolean(conversation?.temporary));
    if (conversation === null || conversation.messages.length === 0) this.welcome.show({ exists: conversation !== null });
    else this.welcome.hide();
    this.#entitle(conversation?.title ?? "New chat");
    if (again) return; // a reload: the user may be typing or changing settings
    this.settings.open(conversation?.id ?? null, conversation?.settings, requestedAt);
    this.composer.useDraft(conversation?.id ?? null);
    this.composer.takeFocus(this.#focusBefore);
  }

  setReplying(active) {
    this.composer.setReplying(active);
    this.readiness.show(active ? "replying" : "ready");
    if (active || !this.refreshSoon) return;
    this.refreshSoon();
    if (this.chat.isNew) for (const wait of TITLE_CHECKS_MS) setTimeout(this.refreshSoon, wait);
  }

  setConnected(connected) {
    if (connected) this.readiness.connected();
    else this.readiness.show("not reachable");
  }

  // Another model was loaded, or the model went to sleep or woke up.
  async modelChanged() {
    const request = ++this.#lastOptionsRequest;
    try {
      const options = await api.options();
      if (request !== this.#lastOptionsRequest) return;
      this.options = options;
    } catch (error) {
      if (request === this.#lastOptionsRequest) this.reportError(error);
      return;
    }
    this.settings.useOptions(this.options);
    this.#describeModel();
    this.readiness.refreshName();
    if (this.chat.activeTurnId) this.readiness.connected();
    else await this.readiness.check();
  }

  #describeModel() {
    const { model, accounts, retention_days: days } = this.options;
    const place = model.remote
      ? "which runs on another server. What you write is sent there."
      : `which runs on this ${accounts ? "server" : "machine"}. Nothing you write leaves it.`;
    this.messages.setProps({
      introduction: `You are talking to ${model.name}, ${place}`,
      can_continue: model.can_continue, // not every model server can continue an incomplete reply
    });
    const retention = `Conversations without a message for ${days} days are deleted.`;
    this.conversations.showNote(days === null ? "" : retention);
  }

  // A viewer can see conversations and their settings, but change nothing.
  #makeReadOnly() {
    this.messages.setProps({ read_only: true });
    document.documentElement.classList.add("dm-viewer");
    this.composer.showNote(VIEWER_NOTE);
    for (const part of document.querySelectorAll("#dm-settings .form, .dm-prompt-about, .dm-reset")) part.inert = true;
  }

  onConversationMissing() {
    const temporary = this.header.isTemporary;
    history.replaceState(null, "", "/");
    this.navigate(null, { from: null }); // not requested by the user, so take no focus
    this.composer.showError(
      temporary
        ? "This temporary chat has ended: it was kept in the memory of a server that has stopped or cannot be reached."
        : "This conversation does not exist. It may have been deleted.",
    );
  }

  reportError(error) {
    this.composer.showError(error.message);
    this.readiness.recordFailure(error);
  }

  // Resolves to why a listener in Python did not answer. Redirects to the sign-in page if the session has ended.
  async #explainFailure() {
    try {
      await api.engine();
    } catch (error) {
      return error.message;
    }
    return "The server did not answer. Try again.";
  }

  // ---- setup

  #listen() {
    addEventListener("popstate", () => {
      const { id, at } = parseLocation();
      this.navigate(id, { record: false, at });
    });
    document.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || event.isComposing || event.defaultPrevented) return;
      // In a panel, Esc closes menus. In the message box, it has stopped the reply already.
      if (!event.target.closest("#dm-conversations, #dm-settings, #dm-composer")) this.composer.stopReply();
    });
    crossTab.on("model-changed", () => this.modelChanged());
    crossTab.on("conversation-changed", ({ id, title }) => {
      this.refreshSoon();
      if (id !== this.chat.conversationId) return;
      if (title) this.#entitle(title);
      else this.chat.reopen();
    });
    crossTab.on("conversation-deleted", ({ id }) => {
      this.refreshSoon();
      if (id === this.chat.targetConversationId) this.onConversationMissing();
    });
    document.addEventListener("visibilitychange", () => {
      if (document.visibilityState !== "visible") return;
      this.refreshSoon();
      this.readiness.check();
      if (this.panels.settings.open) this.model.refresh();
    });
  }
}

// Called once, after Gradio has rendered its components.
export async function start() {
  const names = ["header", "chat", "composer", "conversations", "model"];
  const mounted = await Promise.all(names.map(whenMounted));
  const components = Object.fromEntries(names.map((name, index) => [name, mounted[index]]));
  await Promise.all([waitForElement(".dm-prompt-about"), waitForElement(".dm-show-settings")]);
  byId("dm-chat").setAttribute("role", "region");
  byId("dm-chat").setAttribute("aria-label", "Chat");
  const options = await loadOptions((message) => components.composer.showError(message));
  await waitForSettings(options);
  const page = new Page(options, components);
  components.composer.showError("");
  window.deskmate = page;
  page.conversations.refresh();
  const { id, at } = parseLocation();
  await page.navigate(id, { record: false, at });
  page.refreshSoon.cancel(); // the list was requested above
  page.conversations.notifyListed(); // the list may have loaded first, with this conversation still unread
  page.readiness.check();
  document.documentElement.classList.add("dm-visible", "dm-ready");
  page.composer.focus(); // only now: an invisible element can't take the focus
}
