// The folders above the list: chosen by a press, renamed and deleted by the menu of the chosen one; rows are dropped on them.

import { icon, make } from "../../shared/dom.js";
import { openMenu } from "../../shared/menu.js";
import { askName, confirmDeletion } from "./dialogs.js";

/** @typedef {{id: string, name: string, conversations: number}} Folder */

/**
 * @typedef {object} FolderHost
 * @property {(id: string | null) => void} choose
 * @property {(name: string) => void} create
 * @property {(id: string, name: string) => void} rename
 * @property {(id: string) => void} remove
 * @property {(ids: string[], folderId: string) => void} move
 */

export const DRAGGED = "application/x-deskmate-conversations";

export class FolderBar {
  #drawn = "";

  /** @param {HTMLElement} element @param {FolderHost} host */
  constructor(element, host) {
    this.element = element;
    this.host = host;
  }

  /** @param {Folder[]} folders @param {string | null} chosen  id of the folder whose conversations are listed */
  show(folders, chosen) {
    const drawn = JSON.stringify([folders, chosen]);
    if (drawn === this.#drawn || this.element.querySelector("[aria-expanded='true']")) return;
    this.#drawn = drawn;
    const focused = this.element.contains(document.activeElement) ? document.activeElement : null;
    const focusedId = focused instanceof HTMLElement ? focused.dataset["folder"] : undefined;
    const add = make("button", { type: "button", class: "dm-chip", "data-folder": "", onclick: () => this.#create() }, "New folder");
    this.element.replaceChildren(...folders.flatMap((folder) => this.#controls(folder, folder.id === chosen)), add);
    if (focusedId === undefined) return;
    /** @type {HTMLElement[]} */
    const chips = [...this.element.querySelectorAll("button")];
    (chips.find((chip) => chip.dataset["folder"] === focusedId) ?? add).focus();
  }

  /** @param {Folder} folder @param {boolean} isChosen */
  #controls(folder, isChosen) {
    const chip = make(
      "button",
      {
        type: "button",
        class: "dm-chip dm-folder",
        "data-folder": folder.id,
        "aria-pressed": String(isChosen),
        title: folder.name,
        onclick: () => this.host.choose(isChosen ? null : folder.id),
      },
      icon("folder"),
      make("span", { class: "dm-folder-name", dir: "auto" }, folder.name),
      make("span", { class: "dm-folder-count" }, String(folder.conversations)),
    );
    chip.addEventListener("dragover", (event) => {
      if (!event.dataTransfer?.types.includes(DRAGGED)) return;
      event.preventDefault();
      chip.classList.add("dm-drop");
    });
    chip.addEventListener("dragleave", () => chip.classList.remove("dm-drop"));
    chip.addEventListener("drop", (event) => {
      chip.classList.remove("dm-drop");
      const ids = event.dataTransfer?.getData(DRAGGED);
      if (!ids) return;
      event.preventDefault();
      this.host.move(ids.split(" "), folder.id);
    });
    return isChosen ? [chip, this.#menu(folder)] : [chip];
  }

  /** @param {Folder} folder */
  #menu(folder) {
    const label = `Actions for the folder ${folder.name}`;
    const more = make(
      "button",
      { type: "button", class: "dm-icon-button dm-small", "aria-label": label, "aria-haspopup": "menu", "aria-expanded": "false" },
      icon("more"),
    );
    more.addEventListener("click", () =>
      openMenu(more, label, [
        { name: "Rename", iconName: "rename", action: () => this.#rename(folder) },
        { name: "Delete", iconName: "delete", danger: true, action: () => this.#remove(folder) },
      ]),
    );
    return more;
  }

  async #create() {
    const name = await askName("New folder", "");
    if (name) this.host.create(name);
  }

  /** @param {Folder} folder */
  async #rename({ id, name: before }) {
    const name = await askName("Rename the folder", before);
    if (name && name !== before) this.host.rename(id, name);
  }

  /** @param {Folder} folder */
  async #remove({ id, name }) {
    const text = `“${name}” will be deleted. Its conversations are kept, in no folder.`;
    if (await confirmDeletion(text, "Delete this folder?")) this.host.remove(id);
  }
}
