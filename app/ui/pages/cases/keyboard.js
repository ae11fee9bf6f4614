// The keys of the page. A key does nothing while the user types, in a dialog, or with a modifier.

/** @type {[key: string, command: string, text: string][]} */
export const KEYS = [
  ["j", "next", "Next case"],
  ["k", "previous", "Previous case"],
  ["Enter", "enter", "Go into the case"],
  ["r", "reply", "Reply to the customer"],
  ["n", "note", "Write an internal note"],
  ["a", "assign", "Assign"],
  ["e", "resolve", "Resolve or reopen"],
  ["s", "snooze", "Snooze"],
  ["/", "search", "Search"],
  ["Escape", "leave", "Back to the list"],
  ["?", "keys", "Show the keys"],
];

const FIELDS = "input, textarea, select, [contenteditable]";
const PRESSED_BY_ENTER = "a, button, summary";

/**
 * The command of a key press; null: none.
 * @param {Pick<KeyboardEvent, "key" | "ctrlKey" | "metaKey" | "altKey" | "isComposing" | "repeat" | "defaultPrevented">} event
 * @param {{matches?: (selector: string) => boolean} | null} target  what has the focus
 * @param {{isDialogOpen: boolean, isOn: boolean}} state  `isOn`: letters are commands
 */
export function commandOf({ key, ctrlKey, metaKey, altKey, isComposing, repeat, defaultPrevented }, target, { isDialogOpen, isOn }) {
  if (ctrlKey || metaKey || altKey || isComposing || defaultPrevented || isDialogOpen) return null;
  if (key === "Escape") return "leave"; // also out of a field
  if (target?.matches?.(FIELDS) || !isOn) return null;
  if (key === "Enter" && target?.matches?.(PRESSED_BY_ENTER)) return null;
  const command = KEYS.find(([each]) => each === key)?.[1] ?? null;
  return repeat && command !== "next" && command !== "previous" ? null : command;
}
