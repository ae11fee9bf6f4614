// The model in the header: its menu, the progress of a download, and the change to another model. Every page of every
// user shows the progress; while nothing happens, no page asks for it.

import { api } from "../../shared/api.js";
import { isMoving } from "../../components/model/model_text.js";
import { isRunning } from "../../components/model_menu/model_texts.js";

const POLL_MS = 1000;

export class ModelSwitch {
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #timer;
  /** @type {import("../../components/model/model_text.js").EngineState | null} */
  #engine = null;
  #lastRequest = 0; // sequence number; responses to older requests are dropped

  /**
   * @param {import("../../components/model_menu/model_menu.js").ModelMenu} menu
   * @param {{showProgress(text: string): void}} header
   * @param {object} page
   * @param {() => boolean} page.canChange
   * @param {() => string} page.modelName  that the page shows
   * @param {(text: string) => void} page.notify  shows a short notification
   * @param {() => unknown} page.onChange  another model was loaded
   * @param {(type: string) => void} page.broadcast  tells the other tabs
   */
  constructor(menu, header, { canChange, modelName, notify, onChange, broadcast }) {
    this.menu = menu;
    this.header = header;
    this.canChange = canChange;
    this.modelName = modelName;
    this.notify = notify;
    this.onChange = onChange;
    this.broadcast = broadcast;
    menu.handle({
      open: () => this.#opened(),
      close: () => undefined,
      load: ({ model }) => this.#act(() => api.swapModel(model)),
      download: ({ model }) => this.download(model),
      cancel: () => this.#act(() => api.cancelDownload()),
    });
  }

  /** Downloads a model and loads it. @param {string} model  a recommended name or a hub id */
  async download(model) {
    const started = await this.#act(() => api.downloadModel(model));
    if (!started) return;
    this.menu.clearInput();
    this.broadcast("model-download");
  }

  /** Asks for the state, and goes on asking while something happens or the menu is open. */
  async refresh() {
    clearTimeout(this.#timer);
    const request = ++this.#lastRequest;
    try {
      const engine = await api.engine();
      if (request !== this.#lastRequest) return;
      this.#show(engine);
    } catch (error) {
      if (request !== this.#lastRequest) return;
      if (this.menu.isOpen) this.menu.showError(error instanceof Error ? error.message : String(error));
    }
    const happens = this.#engine !== null && (isRunning(this.#engine.download) || isMoving(this.#engine));
    if ((happens || this.menu.isOpen) && !document.hidden) this.#timer = setTimeout(() => this.refresh(), POLL_MS);
  }

  #opened() {
    this.menu.showError("");
    this.refresh();
    this.#listModels();
  }

  async #listModels() {
    if (!this.canChange() || this.#engine?.remote) return;
    try {
      this.menu.show({ models: await api.listModels() });
    } catch (error) {
      this.menu.showError(error instanceof Error ? error.message : String(error));
    }
  }

  /**
   * Makes a request of the menu, and shows why it failed. Resolves to whether it succeeded.
   * @param {() => Promise<unknown>} request
   */
  async #act(request) {
    this.menu.showError("");
    this.menu.setBusy(true);
    const sent = request();
    this.refresh(); // shows the progress meanwhile
    try {
      await sent;
      return true;
    } catch (error) {
      this.menu.showError(error instanceof Error ? error.message : String(error));
      return false;
    } finally {
      this.menu.setBusy(false);
      this.refresh();
    }
  }

  /** @param {import("../../components/model/model_text.js").EngineState} engine */
  #show(engine) {
    const before = this.#engine;
    this.#engine = engine;
    this.menu.show({ engine });
    const { download } = engine;
    const isDownloading = download?.state === "downloading";
    this.header.showProgress(isDownloading ? `${Math.floor(100 * download.progress)} %` : "");
    if (before === null) {
      if (engine.model.name !== this.modelName()) this.onChange(); // another page has changed it
      return;
    }
    const hasEnded = isRunning(before.download) && !isRunning(download);
    if (hasEnded && download?.state === "failed") {
      if (this.menu.isOpen) this.menu.showError(download.error ?? "");
      else this.notify(`${download.title} was not loaded. ${download.error}`);
    }
    const changed = `${engine.source} ${engine.model.name} ${engine.state}` !== `${before.source} ${before.model.name} ${before.state}`;
    if (changed) {
      this.onChange();
      this.broadcast("model-changed");
    }
    if (hasEnded && download?.state === "done" && download.load) this.notify(`${download.title} is ready.`);
    if ((changed || hasEnded) && this.menu.isOpen) this.#listModels();
  }
}
