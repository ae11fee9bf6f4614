// The keys of the page of cases.

/** @import { Shortcut } from "../../shared/shortcuts.js" */

const PRESSED_BY_ENTER = "a, button, summary";

/** @type {(Pick<Shortcut, "key" | "name" | "when" | "repeats"> & {command: string})[]} */
const KEYS = [
  { key: "j", command: "next", name: "Next case", repeats: true },
  { key: "k", command: "previous", name: "Previous case", repeats: true },
  { key: "enter", command: "enter", name: "Go into the case", when: ({ target }) => !(target instanceof Element && target.closest(PRESSED_BY_ENTER)) },
  { key: "r", command: "reply", name: "Reply to the customer" },
  { key: "n", command: "note", name: "Write an internal note" },
  { key: "a", command: "assign", name: "Assign" },
  { key: "e", command: "resolve", name: "Resolve or reopen" },
  { key: "s", command: "snooze", name: "Snooze" },
  { key: "/", command: "search", name: "Search" },
  { key: "escape", command: "leave", name: "Back to the list" }, // also out of a field
  { key: "?", command: "keys", name: "Keyboard shortcuts" },
];

/** What the message box binds itself. */
export const OTHER_KEYS = [{ key: "mod+enter", name: "Send what the button says" }];

/** The table of keys. @param {(command: string) => boolean} run  returns whether there is something to do @returns {Shortcut[]} */
export const shortcuts = (run) => KEYS.map(({ command, ...key }) => ({ ...key, run: () => run(command) }));
