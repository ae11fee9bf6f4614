// What calls an agent: the number of waiting cases in the title, and a sound for a new one, if it is wanted.

import { storage } from "../../shared/dom.js";

/** @import { CaseRow, Counts } from "./types.js" */

/** How many cases wait for this agent. @param {Counts} counts */
export const waitingCount = (counts) => counts.waiting ?? counts.unassigned ?? 0;

/** @param {number} waiting */
export const pageTitle = (waiting) => `${waiting > 0 ? `(${waiting > 99 ? "99+" : waiting}) ` : ""}Cases · Deskmate`;

/** Tells once of each wait that begins after the page was opened. */
export class News {
  /** @type {Set<string>} */
  #told = new Set();

  /** @param {string} me @param {number} since  milliseconds */
  constructor(me, since = Date.now()) {
    this.me = me;
    this.since = since;
  }

  /** Whether a customer has just begun to wait for this agent or for any. @param {CaseRow} row */
  isNew({ id, status, assignee, waiting_since: waiting }) {
    if (status !== "open" || waiting === null || (assignee !== null && assignee.id !== this.me)) return false;
    const key = `${id} ${waiting}`;
    if (Date.parse(waiting) < this.since || this.#told.has(key)) return false;
    this.#told.add(key);
    return true;
  }
}

const SOUND = "deskmate.cases.sound";

/** A short sound, off until it is switched on. */
export class Chime {
  /** @type {AudioContext | null} */
  #audio = null;

  get isOn() {
    return storage.read("localStorage", SOUND) === "on";
  }

  /** @param {boolean} isOn */
  set isOn(isOn) {
    storage.write("localStorage", SOUND, isOn ? "on" : "");
    if (isOn) this.play();
  }

  /** Two notes. A browser is silent until the user has done something on the page. */
  play() {
    if (!this.isOn || !("AudioContext" in globalThis)) return;
    this.#audio ??= new AudioContext();
    const audio = this.#audio;
    audio.resume().catch(() => undefined);
    for (const [delay, frequency] of [[0, 660], [0.14, 880]]) {
      const note = audio.createOscillator();
      const volume = audio.createGain();
      const start = audio.currentTime + delay;
      note.frequency.value = frequency;
      volume.gain.setValueAtTime(0.12, start);
      volume.gain.exponentialRampToValueAtTime(0.001, start + 0.3);
      note.connect(volume).connect(audio.destination);
      note.start(start);
      note.stop(start + 0.3);
    }
  }
}
