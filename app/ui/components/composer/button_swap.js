// The buttons to send and to stop stand in one place, one at a time: a click that was meant for one must not press the other.

const GRACE_MS = 500; // the time of a double click

/** @typedef {"send" | "stop"} Name */

export class ButtonSwap {
  #swappedAt = -Infinity;
  /** @type {{name: Name, at: number}} */
  #last = { name: "send", at: -Infinity };

  /** The other button is shown from now on. @param {number} now  as performance.now() */
  swapped(now = performance.now()) {
    this.#swappedAt = now;
  }

  /**
   * Whether a click was meant for the button that stood here before: the second one of a double click on it, or one to
   * stop a reply that has just ended, which would send what is in the box. A key presses what has the focus.
   * @param {Name} name  of the button that got the click
   * @param {{detail: number, timeStamp: number}} click
   */
  isLate(name, { detail, timeStamp: at }) {
    const last = this.#last;
    this.#last = { name, at };
    if (detail === 0) return false;
    return (last.name !== name && at - last.at < GRACE_MS) || (name === "send" && at - this.#swappedAt < GRACE_MS);
  }
}
