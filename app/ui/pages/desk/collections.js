// Collections of documents, for admins: creating, renaming and deleting them, and who may use and edit them.

import { request } from "../../shared/api.js";
import { announce, make } from "../../shared/dom.js";
import { conversationUrl } from "../chat/address.js";
import { button, field } from "./controls.js";
import { oneAtATime } from "./desk.js";
import { deletionText, inboxesText, RIGHTS, USERS } from "./knowledge_texts.js";

/** @import { AccountView, CollectionMemberView, CollectionUse, CollectionView, MemberList, PeopleView, Viewer } from "../../shared/api_types.js" */

/**
 * The buttons and the panel that change collections.
 * @param {object} host
 * @param {Viewer} host.viewer
 * @param {() => CollectionView | undefined} host.current  the chosen collection
 * @param {(id: string | null) => Promise<unknown>} host.changed  shows the collections again; chooses this one, or the first
 */
export function collectionControls({ viewer, current, changed }) {
  const panel = make("div", { class: "dm-card dk-collection", hidden: true });
  const create = button("New collection", () => open(create, () => showNew()));
  const manage = button("Manage collection", () => open(manage, () => showManage()));
  for (const opener of [create, manage]) opener.setAttribute("aria-expanded", "false");
  let visit = 0; // answers to an earlier panel are dropped

  /** @param {HTMLElement} opener @param {() => unknown} show */
  function open(opener, show) {
    if (opener.getAttribute("aria-expanded") === "true") return close();
    for (const each of [create, manage]) each.setAttribute("aria-expanded", String(each === opener));
    panel.hidden = false;
    show();
  }

  function close() {
    visit++;
    const opener = [create, manage].find((each) => each.getAttribute("aria-expanded") === "true");
    opener?.setAttribute("aria-expanded", "false");
    if (panel.contains(document.activeElement)) opener?.focus();
    panel.hidden = true;
    panel.replaceChildren();
  }

  /** @param {CollectionView | null} given @param {string} action @param {(values: object) => Promise<unknown>} save */
  function form(given, action, save) {
    const trouble = make("div");
    const run = oneAtATime(trouble);
    const name = make("input", { maxlength: "100", required: true, value: given?.name ?? "", autocomplete: "off" });
    const description = make("input", { maxlength: "500", value: given?.description ?? "", autocomplete: "off" });
    const users = make("select", {}, ...USERS.map(([value, text]) => make("option", { value, selected: value === String(given?.everyone ?? false) }, text)));
    const element = make(
      "form",
      { class: "dk-filters" },
      field("Name", name),
      field("Description (optional)", description),
      field("Who may search it", users),
      make("div", { class: "dm-buttons" }, make("button", { type: "submit", class: "dm-button dm-primary" }, action), button("Close", close)),
    );
    element.addEventListener("submit", (event) => {
      event.preventDefault();
      run(() => save({ name: name.value, description: description.value, everyone: users.value === "true" }));
    });
    return { element: make("div", {}, element, trouble), name };
  }

  function showNew() {
    const { element, name } = form(null, "Create", async (values) => {
      /** @type {CollectionView} */
      const made = await request("POST", "/api/kb/collections", values);
      close();
      await changed(made.id);
      announce(`The collection ${made.name} was created.`);
      manage.focus();
    });
    panel.replaceChildren(make("h2", {}, "New collection"), element);
    name.focus();
  }

  function showManage() {
    const collection = current();
    if (!collection) return;
    const path = `/api/kb/collections/${encodeURIComponent(collection.id)}`;
    const trouble = make("div");
    const run = oneAtATime(trouble);
    const members = make("div");
    const going = make("div");
    const number = ++visit;
    const { element, name } = form(collection, "Save", async (values) => {
      await request("PATCH", path, values);
      await changed(collection.id);
      announce("Saved.");
      if (number === visit) showManage(); // by its new name
    });

    async function askDeletion() {
      /** @type {CollectionUse} */
      const use = await request("GET", `${path}/use`);
      if (number !== visit) return;
      if (!use.can_delete) {
        going.replaceChildren(make("p", { class: "dm-notice" }, "This collection always exists. Remove its documents instead."));
        return;
      }
      const go = button(
        `Delete ${collection?.name} for good`,
        () =>
          run(async () => {
            await request("DELETE", path);
            close();
            await changed(null);
            announce(`The collection ${collection?.name} was deleted.`);
            create.focus();
          }),
        { kind: "dm-primary dm-danger" },
      );
      const cancel = button("Cancel", () => {
        going.replaceChildren();
        remove.focus();
      });
      going.replaceChildren(
        make(
          "div",
          { class: "dm-notice" },
          make("p", {}, deletionText(use)),
          use.own_chats.length
            ? make("ul", {}, ...use.own_chats.map(({ id, title }) => make("li", { dir: "auto" }, make("a", { href: conversationUrl(id) }, title))))
            : null,
          make("div", { class: "dm-buttons" }, cancel, go),
        ),
      );
      cancel.focus();
    }

    const remove = button("Delete collection", () => run(askDeletion), { kind: "dm-danger" });
    panel.replaceChildren(
      make("h2", { dir: "auto" }, `Collection ${collection.name}`),
      element,
      make("h3", {}, "Members"),
      members,
      trouble,
      make("div", { class: "dm-buttons" }, remove),
      going,
    );
    name.focus();
    if (viewer.name === null) members.replaceChildren(make("p", { class: "dm-hint" }, "Accounts are off: this desk has a single user, who may do everything."));
    else {
      const runMembers = oneAtATime(trouble);
      runMembers(() => showMembers(path, members, runMembers, () => number === visit));
    }
  }

  /**
   * @param {string} path  of the collection
   * @param {HTMLElement} place
   * @param {(work: () => Promise<unknown>) => Promise<void>} run
   * @param {() => boolean} isShown
   */
  async function showMembers(path, place, run, isShown) {
    const [{ members }, { people }, { inboxes }] = /** @type {[MemberList, PeopleView, CollectionUse]} */ (
      await Promise.all([request("GET", `${path}/members`), request("GET", "/api/people"), request("GET", `${path}/use`)])
    );
    if (!isShown()) return;
    /** @param {string} id */
    const memberPath = (id) => `${path}/members/${encodeURIComponent(id)}`;
    const roles = new Map(people.map(({ id, role }) => [id, role]));
    /** @param {() => Promise<unknown>} work @param {string} said  @param {string} focused  a selector, in the members */
    const change = (work, said, focused) =>
      run(async () => {
        try {
          await work();
          announce(said);
        } finally {
          await showMembers(path, place, run, isShown); // also after a refusal, so that it matches the server
        }
        const next = place.querySelector(focused) ?? place.querySelector("select");
        if (next instanceof HTMLElement) next.focus();
      });

    /** @param {string} label @param {boolean} mayEdit */
    const rights = (label, mayEdit) => make("select", { class: "dm-input", "aria-label": label }, ...RIGHTS.map(([value, text]) => make("option", { value, selected: value === String(mayEdit) }, text)));
    /** @param {CollectionMemberView} member */
    function row({ user_id: id, name, may_edit: mayEdit }) {
      const right = rights(`Right of ${name}`, mayEdit);
      right.dataset.member = id;
      right.addEventListener("change", () =>
        change(() => request("PUT", memberPath(id), { may_edit: right.value === "true" }), `${name}: ${right.selectedOptions[0].text}.`, `[data-member="${CSS.escape(id)}"]`),
      );
      const out = button("Remove", () => change(() => request("DELETE", memberPath(id)), `${name} is no member any more.`, "select"), {
        kind: "dm-small dm-danger",
        "aria-label": `Remove ${name} from the members`,
      });
      const note = roles.get(id) === "viewer" && mayEdit ? make("div", { class: "dm-hint" }, "Viewers never edit.") : null;
      return make("li", {}, make("div", { dir: "auto" }, make("strong", {}, name), note), right, out);
    }
    const there = new Set(members.map(({ user_id: id }) => id));
    const others = people.filter(({ id, role, disabled_at: disabled }) => !there.has(id) && role !== "admin" && !disabled);
    const who = make("select", {}, ...others.map((person) => make("option", { value: person.id }, personText(person))));
    const what = make("select", {}, ...RIGHTS.map(([value, text]) => make("option", { value }, text)));
    const add = make("form", { class: "dk-filters dk-add-member" }, field("User", who), field("May", what), make("button", { type: "submit", class: "dm-button" }, "Add member"));
    add.addEventListener("submit", (event) => {
      event.preventDefault();
      const person = others.find(({ id }) => id === who.value);
      if (person) change(() => request("PUT", memberPath(person.id), { may_edit: what.value === "true" }), `${person.display_name} is a member now.`, ".dk-add-member select");
    });
    place.replaceChildren(
      make("p", { class: "dm-hint" }, "Admins may do everything. If every user may search the collection, members are those who may also edit it."),
      ...(inboxes.length ? [make("p", { class: "dm-hint dk-inboxes", dir: "auto" }, inboxesText(inboxes))] : []),
      members.length ? make("ul", { class: "dk-members", "aria-label": "Members" }, ...members.map(row)) : make("p", {}, "There are no members yet."),
      others.length ? add : make("p", { class: "dm-hint" }, "There is no other user to add."),
    );
  }

  return { buttons: [create, manage], panel, close };
}

/** @param {AccountView} person */
const personText = ({ name, display_name: shown, role }) => [shown === name ? name : `${shown} (${name})`, role === "viewer" ? "viewer" : null].filter(Boolean).join(", ");
