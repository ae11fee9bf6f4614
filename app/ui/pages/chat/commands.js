// What the page does by key and from the palette, besides opening what was found: one list for both.

import { openAppearance } from "../../shared/appearance.js";
import { download } from "./transfer.js";
import { listShortcuts } from "../../shared/shortcuts.js";

/** @import { Shortcut } from "../../shared/shortcuts.js" */
/** @import { Entry } from "./palette.js" */

/**
 * @typedef {object} CommandHost
 * @property {() => unknown} openPalette
 * @property {() => unknown} newChat
 * @property {() => unknown} stop
 * @property {() => boolean} isReplying
 * @property {() => unknown} openModels
 * @property {() => unknown} toggleSettings
 * @property {() => unknown} focusBox
 * @property {(step: 1 | -1) => unknown} openNeighbour  of the open conversation, in the list
 */

/** Opens the lens of the last reply, or closes it. */
function toggleLens() {
  const switches = /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll("#dm-chat .dm-lens-switch"));
  [...switches].at(-1)?.click();
}

// In a panel, Esc closes menus. In the message box, it has stopped the reply already.
/** @param {KeyboardEvent} event */
const isNotHandled = ({ target }) => !(target instanceof Element && target.closest("#dm-conversations, #dm-settings, #dm-composer"));

/**
 * The table of keys.
 * @param {CommandHost} host
 * @returns {Shortcut[]}
 */
export function shortcuts(host) {
  /** @type {Shortcut[]} */
  const table = [
    { key: "mod+k", name: "Find anything", run: host.openPalette },
    { key: "n", name: "New chat", run: host.newChat },
    { key: "escape", name: "Stop the reply", run: host.stop, when: isNotHandled },
    { key: "w", name: "Write a message", run: host.focusBox },
    { key: "j", name: "Next conversation", run: () => host.openNeighbour(1) },
    { key: "k", name: "Previous conversation", run: () => host.openNeighbour(-1) },
    { key: "l", name: "Lens of the last reply", run: toggleLens },
    { key: "m", name: "Models", run: host.openModels },
    { key: ",", name: "Settings", run: host.toggleSettings },
    { key: "?", name: "Keyboard shortcuts", run: () => listShortcuts(table) },
  ];
  return table;
}

/**
 * The commands that the palette lists. Those that have a key show it.
 * @param {CommandHost} host
 * @param {Shortcut[]} table
 * @param {(key: string) => string} printed
 * @returns {Entry[]}
 */
export function commands(host, table, printed) {
  /** @param {string} key @param {string} [words] */
  const byKey = (key, words = "") => {
    const found = table.find((each) => each.key === key);
    return { key, title: found?.name ?? key, hint: printed(key), words, run: () => found?.run() };
  };
  /** @param {string} title @param {() => unknown} run @param {string} [words] */
  const named = (title, run, words = "") => ({ key: title, title, words, run });
  return [
    byKey("n"),
    ...(host.isReplying() ? [byKey("escape")] : []),
    byKey("m", "change model load"),
    byKey(",", "sampling temperature"),
    byKey("l", "probabilities"),
    named("Appearance", openAppearance, "theme dark light text size"),
    byKey("?"),
    named("Export all as JSON", () => download(null, "json"), "save download"),
    named("Export all as Markdown", () => download(null, "markdown"), "save download"),
    named("Desk", () => location.assign("/desk")),
  ];
}
