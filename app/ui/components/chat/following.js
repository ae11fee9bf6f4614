// Whether a scrolling list keeps its end in view while text is added.

/** Whether the end counts as being in view. @param {number} fromEnd  the pixels below the view */
export const isAtEnd = (fromEnd) => fromEnd < 24;

/**
 * Knows from where the user scrolls whether to follow new text. Both the browser's scroll events and new text call
 * `look`: an event may come after text that arrived in the same frame, and must not be taken for a second movement.
 */
export class Following {
  /** @type {number} the place at the last look, in pixels */
  #lastTop = 0;

  on = true;

  /**
   * Scrolling up by any amount stops following; scrolling down to the end starts it again. If the content became shorter,
   * the browser scrolls up by itself and the end stays in view, which is not the user's doing and changes neither.
   * @param {{top: number, fromEnd: number}} where  the place and the pixels below the view
   */
  look({ top, fromEnd }) {
    if (top < this.#lastTop && fromEnd >= 1) this.on = false;
    else if (top > this.#lastTop && isAtEnd(fromEnd)) this.on = true;
    this.#lastTop = top;
  }

  /**
   * The program scrolled, and decides whether to follow from here.
   * @param {{top: number}} where  @param {boolean} on
   */
  put({ top }, on) {
    this.#lastTop = top;
    this.on = on;
  }

  /** Whether to offer a way to the end. @param {{fromEnd: number}} where */
  isBehind({ fromEnd }) {
    return !this.on && !isAtEnd(fromEnd);
  }
}
