// The frame's storage. Browsers may refuse it to a frame of another origin: what is written then lives as long as the page.

export class Store {
  /** @type {Map<string, string>} what the browser refused */
  #memory = new Map();

  /** @param {string} prefix @param {Storage | null} area  null: there is none */
  constructor(prefix, area) {
    this.prefix = prefix;
    this.area = area;
  }

  /** The store of an inbox. @param {string} inbox  its public token */
  static of(inbox) {
    /** @type {Storage | null} */
    let area = null;
    try {
      area = window.localStorage; // throws where it is refused
    } catch {
      // Memory only.
    }
    return new Store(`deskmate:${inbox}:`, area);
  }

  /** @param {string} key */
  get(key) {
    if (this.#memory.has(key)) return this.#memory.get(key) ?? null;
    try {
      return this.area?.getItem(this.prefix + key) ?? null;
    } catch {
      return null;
    }
  }

  /** @param {string} key @param {string} value */
  set(key, value) {
    try {
      if (this.area === null) throw new Error("no storage");
      this.area.setItem(this.prefix + key, value);
      this.#memory.delete(key);
    } catch {
      this.#memory.set(key, value); // refused, or full
    }
  }

  /** @param {string} key */
  remove(key) {
    this.#memory.delete(key);
    try {
      this.area?.removeItem(this.prefix + key);
    } catch {
      // Then there was nothing.
    }
  }

  /** The keys that begin with `start`. @param {string} start */
  keys(start) {
    const found = [...this.#memory.keys()];
    try {
      for (let index = 0; index < (this.area?.length ?? 0); index++) {
        const key = this.area?.key(index);
        if (key?.startsWith(this.prefix)) found.push(key.slice(this.prefix.length));
      }
    } catch {
      // Only what is in memory.
    }
    return [...new Set(found.filter((key) => key.startsWith(start)))];
  }
}
