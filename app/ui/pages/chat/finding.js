// Finding and getting about: connects the palette and the keys with the page.

import { commands, shortcuts } from "./commands.js";
import { Palette } from "./palette.js";
import { PaletteFinder } from "./palette_sources.js";
import { bindShortcuts, listShortcuts, printed } from "../../shared/shortcuts.js";

/** @import { Composer } from "../../components/composer/composer.js" */
/** @import { Header } from "../../components/header/header.js" */
/** @import { ModelMenu } from "../../components/model_menu/model_menu.js" */
/** @import { Settings } from "../../components/settings/settings.js" */
/** @import { PageOptions } from "../../shared/page_options.js" */
/** @import { ConversationList } from "./conversation_list.js" */
/** @import { OpenConversation } from "./open_conversation.js" */
/** @import { Panels } from "./panels.js" */

/**
 * What it needs of the page.
 * @typedef {object} FindingPage
 * @property {PageOptions} options
 * @property {ConversationList} conversations
 * @property {OpenConversation} openConversation
 * @property {Panels} panels
 * @property {Settings} settings
 * @property {(id: string | null, how?: {at?: string | null, focuses?: boolean}) => unknown} navigate
 */

export class Finding {
  /**
   * @param {FindingPage} page
   * @param {{header: Header, composer: Composer, modelMenu: ModelMenu}} components
   */
  constructor(page, { header, composer, modelMenu }) {
    const host = {
      openPalette: () => this.palette.open(),
      newChat: () => page.navigate(null),
      stop: () => composer.stopReply(),
      isReplying: () => Boolean(page.openConversation.activeTurnId),
      openModels: () => modelMenu.isOpen || header.modelsButton.click(),
      toggleSettings: () => header.toggles["settings"]?.click(),
      focusBox: () => composer.textarea.focus({ preventScroll: true }),
      openNeighbour: (/** @type {1 | -1} */ step) => openNeighbour(page, step),
    };
    this.shortcuts = shortcuts(host);
    this.palette = new Palette(
      new PaletteFinder({
        canWrite: page.options.user.role !== "viewer",
        options: () => page.options,
        commands: () => commands(host, this.shortcuts, printed),
        recent: () => page.conversations.items,
        open: (id, at) => page.navigate(id, { at }),
        showSetting: (selector) => {
          if (!page.panels.settings.open) page.panels.toggle("settings");
          page.settings.focusControl(selector);
        },
        choosePrompt: (name) => page.settings.usePrompt(name),
        useCanned: (reply) => composer.canned.use(reply),
      }),
    );
    bindShortcuts(this.shortcuts);
    header.setFind(`Find anything (${printed("mod+k")})`, host.openPalette);
  }

  listShortcuts() {
    listShortcuts(this.shortcuts);
  }
}

/**
 * Opens the conversation below or above the open one in the list. The message box does not get the focus: it would take
 * the next press of the key as text.
 * @param {FindingPage} page
 * @param {1 | -1} step
 */
async function openNeighbour(page, step) {
  const { conversations, openConversation } = page;
  const from = openConversation.targetConversationId;
  const next = await conversations.neighbour(from, step);
  if (next && openConversation.targetConversationId === from) await page.navigate(next.id, { focuses: false });
}
