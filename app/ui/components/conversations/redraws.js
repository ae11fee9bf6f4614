// When the list may be drawn anew: not while the user presses or edits what is there.

/**
 * What the user is doing in the list.
 * @typedef {object} Interaction
 * @property {boolean} isEditing  writes a title; drawing would take the field away
 * @property {boolean} isPressing  presses an element; removing it would swallow its click
 * @property {string | null} heldId  the conversation whose menu is open, or null; its row has to stay
 */

/**
 * Draws a list now or, of those that come meanwhile, the last one later.
 * @template List
 */
export class Redraws {
  /** @type {{list: List} | null} what is still to be drawn */
  #pending = null;

  /**
   * @param {() => Interaction} look
   * @param {(list: List, heldId: string | null) => boolean} draw  draws all rows but that of `heldId`, which stays as
   *   it is; returns whether there was such a row
   */
  constructor(look, draw) {
    this.look = look;
    this.draw = draw;
  }

  get isPending() {
    return this.#pending !== null;
  }

  /** @param {List} list */
  request(list) {
    const { isEditing, isPressing, heldId } = this.look();
    const isLeftOut = isEditing || isPressing || this.draw(list, heldId);
    this.#pending = isLeftOut ? { list } : null;
  }

  /** The user has let go. */
  release() {
    if (this.#pending) this.request(this.#pending.list);
  }
}
