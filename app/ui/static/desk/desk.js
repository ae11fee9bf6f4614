// The page for those who run the desk: one section at a time, named in the address (/desk#usage).

import { ApiError, request } from "../api.js";
import { byId, make } from "../dom.js";

const sections = [];

// A section: {id, title, roles, show(place, viewer)}. `roles`: who may see it; none is everybody.
// `show` draws into the element `place`; `viewer` is {user_id, name, role}. It may return a function that is called when it is left.
export function register(section) {
  sections.push(section);
}

export const isAdmin = (viewer) => viewer.role === "admin";

// Tells a screen reader something once, without moving the focus.
export function announce(text) {
  byId("dk-announcer").textContent = text;
}

// A sentence that says what went wrong, where it went wrong.
export function problem(error) {
  const text = error instanceof ApiError ? error.message : `Something went wrong in this page (${error.message}). Load it again.`;
  return make("p", { class: "dk-problem", role: "alert" }, text);
}

class Desk {
  #leave = null;
  #visit = 0;

  constructor(viewer) {
    this.viewer = viewer;
    this.main = byId("dk-main");
    this.sections = sections.filter(({ roles }) => !roles || roles.includes(viewer.role));
    byId("dk-nav").replaceChildren(
      ...this.sections.map(({ id, title }) => make("a", { href: `#${id}`, "data-section": id }, title)),
    );
    if (viewer.name) byId("dk-who").textContent = viewer.name;
    // Before anybody can choose the section that is shown already: it would be read and drawn a second time.
    if (location.hash === "") history.replaceState(null, "", `#${this.sections[0].id}`);
    addEventListener("hashchange", () => this.#show(true));
    this.#show(false);
  }

  async #show(moveFocus) {
    const id = location.hash.slice(1).split("/")[0];
    const section = this.sections.find((each) => each.id === id) ?? this.sections[0];
    if (section.id !== id) history.replaceState(null, "", `#${section.id}`); // that one is not for them, or nowhere
    const visit = ++this.#visit;
    this.#leave?.();
    this.#leave = null;
    for (const link of byId("dk-nav").children) {
      if (link.dataset.section === section.id) {
        link.setAttribute("aria-current", "page");
        link.scrollIntoView({ block: "nearest", inline: "nearest" });
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

export async function start() {
  try {
    new Desk(await request("GET", "/api/desk"));
  } catch (error) {
    byId("dk-main").replaceChildren(problem(error));
  }
}
