// A line below the message box that says which collections the replies of this chat rest on.

import { make } from "../../shared/dom.js";

const MAX_NAMES = 2;

/**
 * What the sign says; null where there is nothing to choose.
 * @param {string[]} chosen  ids
 * @param {{id: string, name: string, is_empty: boolean}[]} usable
 * @returns {{text: string, isGone: boolean} | null}
 */
export function signOf(chosen, usable) {
  if (chosen.some((id) => usable.every((each) => each.id !== id)))
    return { text: "A collection of this chat is gone, or no longer yours to use. Remove it", isGone: true };
  if (chosen.length === 0 && usable.every(({ is_empty: isEmpty }) => isEmpty)) return null;
  const names = usable.filter(({ id }) => chosen.includes(id)).map(({ name }) => name);
  const more = names.length - MAX_NAMES;
  const named = names.slice(0, MAX_NAMES).join(", ");
  return { text: `Sources: ${named || "none"}${more > 0 ? ` and ${more} more` : ""}`, isGone: false };
}

export class SourcesSign {
  /**
   * @param {HTMLElement} parent
   * @param {{choose: () => void, removeGone: () => void}} actions  opens the choice of sources; unticks what is gone
   */
  constructor(parent, actions) {
    this.button = make("button", {
      type: "button",
      class: "dm-action dm-sources-sign",
      hidden: true,
      onclick: () => (this.isGone ? actions.removeGone() : actions.choose()),
    });
    this.isGone = false;
    parent.append(this.button);
  }

  /** @param {string[]} chosen @param {{id: string, name: string, is_empty: boolean}[]} usable */
  show(chosen, usable) {
    const sign = signOf(chosen, usable);
    this.isGone = sign?.isGone ?? false;
    this.button.hidden = sign === null;
    this.button.textContent = sign?.text ?? "";
    this.button.classList.toggle("dm-warns", this.isGone);
  }
}
