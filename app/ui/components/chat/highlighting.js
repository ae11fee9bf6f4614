// Asks the worker for the colours of code, one text at a time, and remembers the last answers: a block that is drawn again
// while a reply grows has its colours at once.

/** @typedef {string[]} Parts  of code, from its beginning; each is a list of pieces (code_tokens.js) as JSON */
/** @typedef {{text: string, language: string, parts: Parts}} Answer */
/** @typedef {{text: string, language: string, resolve: (parts: Parts | null) => void}} Task */

const MAX_ANSWERS = 24;
const MAX_MS = 5000; // of one text: a grammar's expressions may take for ever
const WORKER = new URL("./highlight_worker.js", import.meta.url);

export class Highlighting {
  /** @type {Worker | null} */
  #worker = null;
  /** @type {Task[]} the first one is with the worker */
  #tasks = [];
  /** @type {Answer[]} the last one last */
  #answers = [];
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #timer;
  #id = 0;

  /** @param {() => Worker} makeWorker */
  constructor(makeWorker = () => new Worker(WORKER, { type: "module" })) {
    this.makeWorker = makeWorker;
  }

  /** The longest answer about the beginning of a text. @param {string} text @param {string} language */
  known(text, language) {
    const fitting = this.#answers.filter((answer) => answer.language === language && text.startsWith(answer.text));
    return fitting.sort((one, other) => other.text.length - one.text.length)[0];
  }

  /** The parts of a text; null: it stays without colours. @param {string} text @param {string} language @returns {Promise<Parts | null>} */
  ask(text, language) {
    const known = this.known(text, language);
    if (known?.text === text) return Promise.resolve(known.parts);
    return new Promise((resolve) => {
      this.#tasks.push({ text, language, resolve });
      if (this.#tasks.length === 1) this.#send();
    });
  }

  #send() {
    const { text, language } = this.#tasks[0];
    this.#id++;
    this.#timer = setTimeout(() => this.#restart(), MAX_MS);
    try {
      this.#worker ??= this.#start();
      this.#worker.postMessage({ id: this.#id, text, language });
    } catch {
      this.#restart();
    }
  }

  #start() {
    const worker = this.makeWorker();
    worker.onmessage = ({ data }) => {
      if (data.id === this.#id) this.#answer(data.parts);
    };
    worker.onerror = () => this.#restart();
    return worker;
  }

  /** The worker failed, or takes too long: what it was asked stays without colours. */
  #restart() {
    this.#worker?.terminate();
    this.#worker = null;
    this.#answer(null);
  }

  /** @param {Parts | null} parts */
  #answer(parts) {
    clearTimeout(this.#timer);
    const task = this.#tasks.shift();
    if (!task) return;
    const { text, language, resolve } = task;
    if (parts) this.#answers = [...this.#answers.filter((answer) => !isBeginning(answer, task)), { text, language, parts }].slice(-MAX_ANSWERS);
    if (this.#tasks.length > 0) this.#send();
    resolve(parts);
  }
}

/** @param {Answer} answer @param {{text: string, language: string}} of */
const isBeginning = (answer, { text, language }) => answer.language === language && text.startsWith(answer.text);
