// The desk page, for admins and viewers. Shows one section at a time, named in the URL (/desk#usage).

import { errorMessage, request } from "../../shared/api.js";
import { byId, make, prepareAnnouncements } from "../../shared/dom.js";

/** @import { BackupsView, Viewer } from "../../shared/api_types.js" */

/**
 * A section. `roles`: the roles that may see it; without, every role. `show` renders into the element `place` and may
 * return a function to call on leaving.
 * @typedef {object} Section
 * @property {string} id
 * @property {string} title
 * @property {string[]} [roles]
 * @property {(place: HTMLElement, viewer: Viewer) => Promise<void | (() => void)>} show
 */

/** @type {Section[]} */
const sections = [];

/** @param {Section} section */
export function register(section) {
  sections.push(section);
}

/** @param {Viewer} viewer */
export const isAdmin = (viewer) => viewer.role === "admin";

/** An element that shows an error where it happened. @param {unknown} error */
export function problem(error) {
  return make("p", { class: "dm-alert", role: "alert" }, errorMessage(error));
}

/**
 * A function that runs commands, and shows their errors in `trouble`. While one runs it takes no other: a double click must
 * not do something twice.
 * @param {HTMLElement} trouble
 */
export function oneAtATime(trouble) {
  let isRunning = false;
  /** @param {() => Promise<unknown>} work */
  return async (work) => {
    if (isRunning) return;
    isRunning = true;
    trouble.replaceChildren();
    try {
      await work();
    } catch (error) {
      trouble.replaceChildren(problem(error));
    } finally {
      isRunning = false;
    }
  };
}

class Desk {
  /** @type {(() => void) | null} */
  #leave = null;
  #visit = 0;

  /** @param {Viewer} viewer */
  constructor(viewer) {
    this.viewer = viewer;
    this.main = byId("dk-main");
    this.sections = sections.filter(({ roles }) => !roles || roles.includes(viewer.role));
    byId("dk-nav").replaceChildren(
      ...this.sections.map(({ id, title }) => make("a", { href: `#${id}`, "data-section": id }, title)),
    );
    if (viewer.name) byId("dk-who").textContent = viewer.name;
    byId("dk-to-cases").hidden = viewer.name === null; // cases need accounts
    // Set the hash first: otherwise a click on the first section's link would load it a second time.
    if (location.hash === "") history.replaceState(null, "", `#${this.sections[0].id}`);
    addEventListener("hashchange", () => this.#show(true));
    this.#show(false);
  }

  /** @param {boolean} moveFocus */
  async #show(moveFocus) {
    const id = location.hash.slice(1).split("/")[0];
    const section = this.sections.find((each) => each.id === id) ?? this.sections[0];
    if (section.id !== id) history.replaceState(null, "", `#${section.id}`); // unknown section, or not for this role
    const visit = ++this.#visit;
    this.#leave?.();
    this.#leave = null;
    for (const link of byId("dk-nav").children) {
      if (link.dataset.section === section.id) {
        link.setAttribute("aria-current", "page");
        link.scrollIntoView({ block: "nearest", inline: "center" });
      } else link.removeAttribute("aria-current");
    }
    document.title = `${section.title} · Desk · Deskmate`;
    const place = make("section", { class: `dk-section dk-${section.id}`, "aria-labelledby": "dk-title" });
    place.append(make("h1", { id: "dk-title" }, section.title));
    this.main.replaceChildren(place);
    if (moveFocus) this.main.focus({ preventScroll: true });
    let leave;
    try {
      leave = await section.show(place, this.viewer);
    } catch (error) {
      if (visit === this.#visit) place.append(problem(error));
    }
    if (visit !== this.#visit) leave?.();
    else this.#leave = leave ?? null;
    place.dataset.ready = "true";
  }
}

/** Says above every section what is wrong with the backups: an admin must not have to look for it. */
async function warnOfBackups() {
  /** @type {BackupsView} */
  const { problem: trouble } = await request("GET", "/api/desk/backups");
  if (trouble === null) return;
  const link = make("a", { href: "#backups" }, "Backups");
  byId("dk-warning").replaceChildren(make("p", { class: "dm-alert", role: "alert" }, `${trouble} `, link));
}

export async function start() {
  prepareAnnouncements();
  try {
    const viewer = await request("GET", "/api/desk");
    new Desk(viewer);
    if (isAdmin(viewer)) await warnOfBackups();
  } catch (error) {
    byId("dk-main").replaceChildren(problem(error));
  }
}
