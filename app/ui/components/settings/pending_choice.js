// A choice whose effect the server decides: made, but not part of the settings yet.

const WAIT_MS = 5000; // how long a turn waits for a choice made before it

/**
 * @typedef {object} Choice
 * @property {string} name  what was chosen
 * @property {Promise<void>} done
 * @property {() => void} resolve
 * @property {(error: Error) => void} reject
 */

export class PendingChoice {
  /** @type {Choice | null} */
  #choice = null;

  /** @param {string} noun  what is chosen, such as "preset" */
  constructor(noun) {
    this.noun = noun;
  }

  /** The name of what was chosen last and has no answer yet; null if there is no such choice. */
  get name() {
    return this.#choice?.name ?? null;
  }

  /** @param {string} name */
  make(name) {
    if (this.#choice !== null) {
      this.#choice.name = name; // Gradio runs the listener once more, with this one
      return;
    }
    /** @type {() => void} */
    let resolve = () => {};
    /** @type {(error: Error) => void} */
    let reject = () => {};
    /** @type {Promise<void>} */
    const done = new Promise((...settle) => ([resolve, reject] = settle));
    done.catch(() => {}); // shown in the note; only a turn waits for it
    this.#choice = { name, done, resolve, reject };
  }

  /** The choice is part of the settings, or was given up. */
  end() {
    this.#choice?.resolve();
    this.#choice = null;
  }

  /** The choice has failed. Returns the function to call with the reason, for the turn that waits. */
  fail() {
    const choice = this.#choice;
    this.#choice = null;
    return (/** @type {Error} */ reason) => choice?.reject(reason);
  }

  /** Resolves once the choice has ended; null if there is none. Rejects if it fails or takes too long. */
  wait() {
    if (this.#choice === null) return null;
    /** @type {Promise<void>} */
    const late = new Promise((_, reject) => {
      setTimeout(() => reject(new Error(`The ${this.noun} has not been applied yet. Send again in a moment.`)), WAIT_MS);
    });
    return Promise.race([this.#choice.done, late]);
  }
}
