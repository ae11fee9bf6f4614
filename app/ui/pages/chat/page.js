// Entry point of the chat page: connects its components with the JSON API and with each other.

import { ApiError, api } from "../../shared/api.js";
import { beforeServerListeners, register, whenMounted } from "../../shared/component.js";
import { byId, debounce, waitForElement } from "../../shared/dom.js";
import { Settings, waitForSettings } from "../../components/settings/settings.js";
import { setUpAccountMenu } from "./account_menu.js";
import { ChatDeletions } from "./chat_deletions.js";
import { ConversationList } from "./conversation_list.js";
import { AttachedFiles } from "./attached_files.js";
import { ContextBar } from "./context_bar.js";
import { crossTab } from "./cross_tab.js";
import { MessageCommands } from "./message_commands.js";
import { Navigation } from "./navigation.js";
import { OpenConversation } from "./open_conversation.js";
import { ModelSwitch } from "./model_switch.js";
import { CurrentOptions, introduction, loadOptions, retentionNote, suggestion } from "./options.js";
import { openPrompt } from "./prompt_dialog.js";
import { Panels } from "./panels.js";
import { Readiness } from "./readiness.js";
import { openSource } from "./source_viewer.js";
import { SourcesSign } from "./sources_sign.js";
import { Finding } from "./finding.js";
import { draftSources } from "./draft_text.js";
import { ReplyDrafts } from "./reply_drafts.js";
import { Toast } from "./toast.js";
import { Turns } from "./turns.js";

/** @import { Chat } from "../../components/chat/chat.js" */
/** @import { Composer } from "../../components/composer/composer.js" */
/** @import { Conversations } from "../../components/conversations/conversations.js" */
/** @import { Header } from "../../components/header/header.js" */
/** @import { Model } from "../../components/model/model.js" */
/** @import { ModelMenu } from "../../components/model_menu/model_menu.js" */
/** @import { PageOptions } from "../../shared/page_options.js" */

/**
 * The page's components, by name.
 * @typedef {{header: Header, chat: Chat, composer: Composer, conversations: Conversations, model: Model,
 *   modelMenu: ModelMenu}} Components
 */

// When to look for the generated title of a new conversation, in ms after its first reply. Until then the title is the
// start of the first message.
const TITLE_CHECKS_MS = [1500, 4000, 10_000];

const FIELD_WITH_ACCOUNTS = "A model found on the server, or a hub ID such as Qwen/Qwen3-0.6B. Conversations are kept.";
const VIEWER_NOTE = "You have read-only access as a viewer. Ask an admin if you need to write.";

class Page {
  #options;

  /** @param {PageOptions} options @param {Components} components */
  constructor(options, components) {
    const { header, chat, composer, conversations, model, modelMenu } = components;
    this.composer = composer;
    this.model = model;
    this.chat = chat;
    this.#options = new CurrentOptions(options, (error) => this.reportError(error));
    this.refreshSoon = debounce(150, () => this.conversations.refresh());
    this.panels = new Panels(header);
    this.toast = new Toast(composer.element);
    this.readiness = new Readiness(header, {
      modelName: () => this.options.model.name,
      isReplying: () => Boolean(this.openConversation.activeTurnId),
      isLoading: () => this.options.model.is_loading,
      onLoaded: () => this.modelChanged(),
      onReconnect: () => this.#catchUp(),
      withdrawError: (message) => composer.withdrawError(message),
    });
    this.modelSwitch = new ModelSwitch(modelMenu, header, {
      canChange: () => this.options.user.role === "admin",
      modelName: () => this.options.model.name,
      notify: (text) => this.toast.show(text),
      onChange: () => this.modelChanged(),
      broadcast: (type) => crossTab.broadcast(type),
    });
    modelMenu.props.can_change = options.user.role === "admin";
    if (options.user.role === "viewer") this.#makeReadOnly();
    this.settings = this.#makeSettings(options);
    this.#showSources();
    this.conversations = this.#makeList(conversations);
    this.openConversation = this.#makeOpenConversation(chat);
    this.refreshSoon.cancel(); // a chat that was just made is no news for the list
    const { openConversation, settings, toast, panels } = this;
    const { welcome } = chat;
    this.navigation = new Navigation(
      { openConversation, header, composer, welcome, settings, conversations: this.conversations, panels, crossTab },
      { refreshList: this.refreshSoon },
    );
    this.commands = new MessageCommands(
      { openConversation, composer, toast, crossTab },
      {
        navigate: (id) => this.navigate(id),
        refreshList: this.refreshSoon,
        reportError: (error) => this.reportError(error),
      },
    );
    this.attached = new AttachedFiles(composer, {
      conversation: () => openConversation.conversationId,
      changed: () => this.context?.changed(),
      reportError: (error) => this.reportError(error),
    });
    this.turns = new Turns(
      { openConversation, composer, settings, welcome, attached: this.attached },
      {
        onCreated: (id, temporary) => this.navigation.onCreated(id, temporary),
        refreshList: this.refreshSoon,
        reportError: (error) => this.reportError(error),
      },
    );
    this.drafts = this.#makeDrafts(welcome);
    this.context = this.#makeContextBar(options);
    this.deletions = new ChatDeletions(
      { toast, crossTab },
      {
        refreshList: () => this.conversations.refresh(),
        navigate: (id) => this.navigate(id),
        reportError: (error) => this.reportError(error),
      },
    );
    const finding = new Finding(this, { header, composer, modelMenu });
    setUpAccountMenu(header, options, { reportError: (error) => this.reportError(error), listShortcuts: () => finding.listShortcuts() });
    this.#handle(components);
    this.#describeModel();
    this.#listen();
  }

  /** @type {PageOptions} */
  get options() {
    return this.#options.value;
  }

  /**
   * Opens a conversation; `id` null opens a new chat.
   * @param {string | null} id
   * @param {{at?: string | null, focuses?: boolean}} options  see Navigation
   */
  navigate(id, options = {}) {
    return this.navigation.navigate(id, options);
  }

  /** Another model was loaded, or the model went to sleep or woke up. */
  async modelChanged() {
    if (!(await this.#options.reload())) return;
    this.settings.useOptions(this.options);
    this.#describeModel();
    this.context.changed();
    this.readiness.refreshName();
    if (this.openConversation.activeTurnId) this.readiness.connected();
    else await this.readiness.check();
  }

  // The server may have been started again, with another model.
  #catchUp() {
    this.refreshSoon();
    this.modelChanged();
    this.navigation.openMissed();
  }

  /** @param {unknown} error */
  reportError(error) {
    this.composer.showError(error instanceof Error ? error.message : String(error));
    this.readiness.recordFailure(error);
  }

  // ---- the parts

  /** @param {PageOptions} options */
  #makeSettings(options) {
    const settings = new Settings(options, (id, values, keepalive) => api.changeConversation(id, { settings: values }, keepalive), {
      root: byId("dm-settings"),
      onSaveFailed: (error) =>
        this.toast.show(`The settings of the chat you left were not saved. Open it to try again. ${error.message}`),
    });
    settings.explain = () => this.#explainFailure();
    if (options.user.role !== "viewer") settings.onModelTooSmall = (sentence) => this.composer.showNote(sentence);
    register("settings", settings);
    return settings;
  }

  /** Says below the message box which collections the chat's replies rest on. */
  #showSources() {
    const { settings, composer } = this;
    const sign = new SourcesSign(composer.element, {
      choose: () => {
        if (!this.panels.settings.open) this.panels.toggle("settings");
        settings.focusSources();
      },
      removeGone: () => settings.removeGoneSources(),
    });
    settings.changed = () => sign.show(settings.value.collections ?? [], settings.options.collections);
    settings.changed();
  }

  /** @param {Conversations} view */
  #makeList(view) {
    return new ConversationList(view, {
      onNew: () => this.navigate(null),
      onSelect: (id, messageId) => this.navigate(id, { at: messageId }),
      onListed: (items) => this.navigation.onListed(items),
      onRenamed: (id, title) => this.navigation.onRenamed(id, title),
      onDeleted: (ids, deletion, title) => {
        const open = this.openConversation.targetConversationId;
        for (const id of ids) {
          this.drafts.forget(id);
          this.attached.forgetAll(id);
          this.navigation.onDeleted(id);
        }
        if (deletion) this.deletions.offer(deletion, title, ids.find((id) => id === open) ?? null);
      },
      onStatus: (text) => this.toast.show(text),
      onError: (error) => this.reportError(error),
      onListFailed: (error) => {
        if (error instanceof ApiError && error.status === 0) this.readiness.show("not reachable");
        else this.reportError(error);
      },
    });
  }

  /** @param {Chat} chat */
  #makeOpenConversation(chat) {
    return new OpenConversation(
      {
        composer: this.composer,
        askAgain: (start) => this.turns.askAgain(start),
        compare: (id) => this.turns.compare(id),
        useSettings: (id) => this.#useSettings(id),
        branch: (id) => this.commands.branch(id),
        mark: (id, citation) => this.commands.mark(id, citation),
        deleteMessage: (id) => this.commands.delete(id),
        warnReplyInProgress: () => this.composer.warnReplyInProgress(),
        onConversationShown: (conversation, how) => {
          this.navigation.onConversationShown(conversation, how);
          this.attached?.show(); // missing while it is being made
          if (how?.again) this.#messagesChanged();
          else this.drafts.use(conversation?.id ?? null);
        },
        onMessageSent: () => this.#messagesChanged(),
        onConversationMissing: () => this.navigation.onConversationMissing(),
        setReplying: (active) => this.#setReplying(active),
        setConnected: (connected) => this.#setConnected(connected),
        reportError: (error) => this.reportError(error),
      },
      chat,
    );
  }

  #messagesChanged() {
    const { conversationId } = this.openConversation;
    if (conversationId !== null) this.drafts.keepFor(conversationId);
    this.drafts.messagesChanged();
  }

  /** @param {Chat["welcome"]} welcome */
  #makeDrafts(welcome) {
    const { composer, settings, openConversation } = this;
    const drafts = new ReplyDrafts(composer, {
      lastMessage: () => composer.lastMessage,
      rests: () => draftSources(this.options.collections.filter(({ id }) => settings.value.collections.includes(id)).map(({ name }) => name)),
      notify: (text) => this.toast.show(text),
      prepare: async (id, text, onCreated) => {
        await settings.pendingChoice();
        const carried = settings.settingsForTurn();
        try {
          if (id !== null) {
            if (carried !== null) await api.changeConversation(id, { settings: carried });
            if (openConversation.conversationId === id) settings.onTurnAccepted(id, carried);
            return id;
          }
          const { conversation_id: created } = await api.createConversation({ text, settings: carried, temporary: welcome.temporary });
          onCreated(created);
          if (openConversation.targetConversationId === null) {
            settings.onTurnAccepted(created, carried);
            composer.keepDraftFor(created);
            this.attached.keepFor(created);
            await this.navigation.navigate(created, { from: null });
          }
          this.refreshSoon();
          return created;
        } catch (error) {
          settings.onTurnRefused();
          throw error;
        }
      },
    });
    composer.element.prepend(drafts.panel.element);
    return drafts;
  }

  /** @param {PageOptions} options */
  #makeContextBar({ user }) {
    const { composer, settings, openConversation } = this;
    const bar = new ContextBar(composer.find(".dm-composer-row"), {
      next: () => ({ text: this.attached.withFiles(composer.text), conversation_id: openConversation.conversationId, settings: settings.value }),
      read: (next) => openPrompt((offset) => api.nextPrompt({ ...next, offset }), (error) => this.reportError(error)),
    });
    if (user.role !== "viewer") bar.start();
    const { changed } = settings;
    settings.changed = () => {
      changed();
      bar.changed();
    };
    return bar;
  }

  /** Handles the components' events. @param {Components} components */
  #handle({ header, chat, composer, model, modelMenu }) {
    header.handle({
      models_open: () => modelMenu.open(header.modelsButton),
      toggle: ({ panel }) => {
        this.panels.toggle(panel);
        if (panel === "settings") model.refresh();
      },
    });
    composer.handle({
      submit: () => this.turns.send(),
      input: () => this.context.changed(),
      stop: () => this.turns.stop(),
      draft: () => this.drafts.open(),
      compare: () => this.turns.compare(),
      canned_open: () => api.listCanned(),
      canned_fill: ({ name, values }) => api.fillCanned(name, values),
      error: (error) => this.reportError(error),
    });
    chat.handle({
      example_select: ({ text }) => this.turns.send(text),
      suggestion_select: () => this.#getSuggested(modelMenu, header),
      source: ({ citation }) => openSource(citation),
      temporary: () => undefined, // asked of the welcome screen when the first message is sent
    });
    model.isOpen = () => this.panels.settings.open;
    model.canChange = () => this.options.user.role === "admin";
    model.explain = () => this.#explainFailure();
    if (this.options.accounts) model.describeField("Model or hub ID", FIELD_WITH_ACCOUNTS);
    beforeServerListeners(() => api.health());
    model.handle({
      another_state: () => {
        this.modelChanged();
        crossTab.broadcast("model-changed");
      },
    });
  }

  /** Handles events of the window, and news from other tabs that are not about one conversation. */
  #listen() {
    crossTab.on("model-changed", () => this.modelChanged());
    crossTab.on("model-download", () => this.modelSwitch.refresh());
    document.addEventListener("visibilitychange", () => {
      if (document.visibilityState !== "visible") return;
      this.refreshSoon();
      this.readiness.check();
      if (this.options.model.is_downloading) this.modelSwitch.refresh();
      if (this.panels.settings.open) this.model.refresh();
    });
  }

  /** Puts what a version was written with into the settings panel. @param {string} id */
  async #useSettings(id) {
    const from = this.openConversation.targetConversationId;
    try {
      const { versions } = await api.listVersions(id);
      if (from !== this.openConversation.targetConversationId) return;
      this.settings.use(versions[0].settings);
      this.toast.show("The chat has the settings of this version now.");
    } catch (error) {
      this.reportError(error);
    }
  }

  // ---- what the parts show together

  /** @param {boolean} active  a reply is in flight */
  #setReplying(active) {
    this.composer.setReplying(active);
    this.readiness.show(active ? "replying" : "ready");
    if (active) return;
    this.refreshSoon();
    this.context?.changed();
    // `openConversation` is missing while it is being made.
    if (this.openConversation?.isNew) for (const wait of TITLE_CHECKS_MS) setTimeout(this.refreshSoon, wait);
  }

  /** @param {boolean} connected  to the event stream */
  #setConnected(connected) {
    if (connected) this.readiness.connected();
    else this.readiness.show("not reachable");
  }

  #describeModel() {
    this.chat.setProps({
      introduction: introduction(this.options),
      examples: this.options.welcome.examples,
      suggestion: suggestion(this.options),
      can_continue: this.options.model.can_continue, // not every model server can continue an incomplete reply
      can_inspect: this.options.model.can_inspect, // nor report the probabilities behind a reply
      loaded_model: this.options.model, // whose speed has a limit that may be known
    });
    this.conversations.showNote(retentionNote(this.options));
  }

  /** Downloads the model that the welcome screen suggests; its menu shows the progress. @param {ModelMenu} menu @param {Header} header */
  #getSuggested(menu, header) {
    const suggested = this.options.suggested_model;
    if (suggested === null) return;
    if (!menu.isOpen) menu.open(header.modelsButton);
    this.modelSwitch.download(suggested.name);
  }

  // A viewer can see conversations and their settings, but change nothing.
  #makeReadOnly() {
    this.chat.setProps({ read_only: true });
    document.documentElement.classList.add("dm-viewer");
    this.composer.showNote(VIEWER_NOTE);
    /** @type {NodeListOf<HTMLElement>} */
    const parts = document.querySelectorAll("#dm-settings .form, .dm-prompt-about, .dm-reset");
    for (const part of parts) part.inert = true;
  }

  /** Resolves to why a listener in Python did not answer. Redirects to the sign-in page if the session has ended. */
  async #explainFailure() {
    try {
      await api.engine();
    } catch (error) {
      return error instanceof Error ? error.message : String(error);
    }
    return "The server did not answer. Try again.";
  }
}

/**
 * Resolves to a component, once Gradio has rendered it.
 * @template {keyof Components} Name
 * @param {Name} name
 * @returns {Promise<Components[Name]>}
 */
const component = (name) => whenMounted(name);

/** Called once, after Gradio has rendered its components. */
export async function start() {
  const [header, chat, composer, conversations, model, modelMenu] = await Promise.all([
    component("header"),
    component("chat"),
    component("composer"),
    component("conversations"),
    component("model"),
    whenMounted("model_menu"),
  ]);
  await Promise.all([waitForElement(".dm-prompt-about"), waitForElement(".dm-show-settings")]);
  byId("dm-chat").setAttribute("role", "region");
  byId("dm-chat").setAttribute("aria-label", "Chat");
  const options = await loadOptions((message) => composer.showError(message));
  await waitForSettings(options);
  const page = new Page(options, { header, chat, composer, conversations, model, modelMenu });
  composer.showError("");
  Object.assign(window, { deskmate: page }); // for the console, and for tests
  page.conversations.refresh();
  await page.navigation.openAddress();
  page.refreshSoon.cancel(); // the list was requested above
  page.conversations.notifyListed(); // the list may have loaded first, with this conversation still unread
  page.readiness.check();
  page.deletions.resume();
  if (options.model.is_downloading) page.modelSwitch.refresh();
  document.documentElement.classList.add("dm-visible", "dm-ready");
  composer.focus(); // only now: an invisible element can't take the focus
}
