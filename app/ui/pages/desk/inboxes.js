// Inboxes: where cases come in. A list, and next to it the selected one: its settings, members, script tag and key.

import { api, request } from "../../shared/api.js";
import { announce, make } from "../../shared/dom.js";
import { plural } from "../../shared/formats.js";
import { button, copyField, field } from "./controls.js";
import { oneAtATime, problem, register } from "./desk.js";
import { inboxForm } from "./inbox_form.js";
import { aboutInbox, FIRST_STEPS, mailText, scriptTag } from "./inbox_text.js";

/** @import { AccountView, CollectionView, MailView, PeopleView, Viewer } from "../../shared/api_types.js" */
/** @import { Inbox } from "../cases/types.js" */

/** @param {HTMLElement} place @param {Viewer} viewer */
async function show(place, viewer) {
  place.append(make("p", { class: "dk-lead" }, "An inbox is where customers write: a website with the widget, or a program by the API. Its members see its cases and answer them; admins see all."));
  if (viewer.name === null) {
    place.append(make("p", { class: "dm-notice" }, "Inboxes need accounts: this desk has a single user. Set APP_ACCOUNTS=true to turn them on."));
    return;
  }
  const list = make("ul", { class: "dk-list", "aria-label": "Inboxes" });
  const work = make("div", { class: "dk-work" });
  const create = button("New inbox", () => open(null), { kind: "dm-primary" });
  create.disabled = true; // until the collections that the form offers are there
  const mail = make("p", { class: "dm-hint dk-mail", dir: "auto" });
  place.append(mail, make("div", { class: "dk-two" }, make("div", { class: "dk-side" }, create, list), work));
  /** @type {Inbox[]} */
  let inboxes = [];
  /** @type {CollectionView[]} */
  let collections = [];
  /** @type {AccountView[]} */
  let people = [];
  /** @type {string | null} */
  let selected = null;

  async function load() {
    /** @type {[{inboxes: Inbox[]}, {collections: CollectionView[]}, PeopleView, MailView]} */
    const [listed, documents, users, mails] = await Promise.all([
      request("GET", "/api/inboxes"),
      api.listCollections(),
      request("GET", "/api/people"),
      request("GET", "/api/desk/mail"),
    ]);
    mail.textContent = mailText(mails);
    mail.className = mails.error === null ? "dm-hint" : "dm-alert";
    ({ inboxes } = listed);
    ({ collections } = documents);
    ({ people } = users);
    drawList();
  }

  function drawList() {
    list.replaceChildren(
      ...inboxes.map((inbox) =>
        make(
          "li",
          {},
          make("button", { type: "button", class: "dm-option", "aria-current": inbox.id === selected ? "true" : null, onclick: () => open(inbox.id) }, make("strong", { dir: "auto" }, inbox.name), make("span", {}, aboutInbox(inbox))),
        ),
      ),
    );
  }

  // What makes a website's visitors come in.
  function showBeginning() {
    work.replaceChildren(
      make("h2", {}, "There are no inboxes yet"),
      make("p", {}, "So no customer can write, and there are no cases. Three steps lead there:"),
      make("ol", { class: "dk-steps" }, ...FIRST_STEPS.map(([name, text]) => make("li", {}, make("strong", {}, name), ` ${text}`))),
      make("p", { class: "dm-hint" }, "The assistant answers from documents: add them under ", make("a", { href: "#knowledge" }, "Knowledge"), ", now or later. Without any, it hands over to people."),
    );
  }

  /** Shows an inbox, or the form of a new one. @param {string | null} id @param {boolean} moveFocus */
  function open(id, moveFocus = true) {
    selected = id;
    drawList();
    const inbox = inboxes.find((each) => each.id === id) ?? null;
    const form = inboxForm(inbox, collections);
    const trouble = make("div");
    const run = oneAtATime(trouble);
    const save = make("button", { type: "submit", class: "dm-button dm-primary" }, inbox ? "Save" : "Create");
    const element = make("form", { class: "dk-inbox" }, form.element, trouble, make("div", { class: "dm-buttons" }, save));
    element.addEventListener("submit", (event) => {
      event.preventDefault();
      run(async () => {
        const values = form.read();
        /** @type {Inbox} */
        const saved = await request(inbox ? "PATCH" : "POST", inbox ? path(inbox) : "/api/inboxes", values);
        await load();
        announce(inbox ? "Saved." : `The inbox ${saved.name} was created.`);
        open(saved.id);
        if (inbox) work.querySelector(".dk-saved")?.replaceChildren("Saved.");
      });
    });
    const more = inbox ? [make("h2", {}, "Members"), members(inbox), ...(inbox.kind === "widget" ? embedding(inbox) : []), ...identity(inbox), ...removal(inbox)] : [];
    work.replaceChildren(make("h2", { dir: "auto" }, inbox ? inbox.name : "New inbox"), make("p", { class: "dk-saved dm-hint", role: "status" }), element, ...more);
    if (!moveFocus) return;
    form.name.focus({ preventScroll: true });
    work.scrollIntoView({ block: "nearest" });
  }

  /** @param {Inbox} inbox */
  const path = ({ id }) => `/api/inboxes/${encodeURIComponent(id)}`;

  /** @param {Inbox} inbox */
  function members(inbox) {
    const trouble = make("div");
    const run = oneAtATime(trouble);
    const element = make("div");
    /** @param {string} method @param {string} userId @param {string} said */
    const change = (method, userId, said) =>
      run(async () => {
        await request(method, `${path(inbox)}/members/${encodeURIComponent(userId)}`, method === "PUT" ? {} : undefined);
        await load();
        announce(said);
        draw(inboxes.find(({ id }) => id === inbox.id) ?? inbox);
        element.querySelector("select")?.focus();
      });
    /** @param {Inbox} shown */
    function draw({ members: there }) {
      const known = new Set(there.map(({ id }) => id));
      const others = people.filter(({ id, disabled_at: disabled }) => !known.has(id) && !disabled);
      const who = make("select", {}, ...others.map((person) => make("option", { value: person.id }, person.role === "viewer" ? `${person.display_name} (viewer: reads only)` : person.display_name)));
      const add = make("form", { class: "dk-filters" }, field("User", who), make("button", { type: "submit", class: "dm-button" }, "Add member"));
      add.addEventListener("submit", (event) => {
        event.preventDefault();
        change("PUT", who.value, `${who.selectedOptions[0].text} is a member now.`);
      });
      /** @param {Inbox["members"][number]} member */
      const row = ({ id, name }) => {
        const remove = button("Remove", () =>
          run(async () => {
            await request("DELETE", `${path(inbox)}/members/${encodeURIComponent(id)}`);
            await load();
            announce(`${name} is no member any more.`);
            // The row stays: the button of the next one must not come to where this one was pressed.
            const undo = button("Undo", () => change("PUT", id, `${name} is a member again.`), { kind: "dm-small", "aria-label": `Make ${name} a member again` });
            item.replaceChildren(make("div", { dir: "auto" }, `${name} is no member any more.`), undo);
            undo.focus();
          }), { kind: "dm-small dm-danger", "aria-label": `Remove ${name} from the members` });
        const item = make("li", {}, make("div", { dir: "auto" }, name), remove);
        return item;
      };
      element.replaceChildren(
        make("p", { class: "dm-hint" }, "Members see the cases of this inbox and answer them; viewers among them only read. Other users, but admins, see none of it."),
        there.length ? make("ul", { class: "dk-members", "aria-label": "Members" }, ...there.map(row)) : make("p", {}, "There are no members yet: only admins see what comes in."),
        others.length ? add : make("p", { class: "dm-hint" }, "There is no other user to add. Invite agents under ", make("a", { href: "#people" }, "Users"), "."),
        trouble,
      );
    }
    draw(inbox);
    return element;
  }

  /** @param {Inbox} inbox */
  const embedding = (inbox) => [
    make("h2", {}, "Put it on the website"),
    make("p", { class: "dm-hint" }, inbox.allowed_origins.length ? "Add this line to each page that shall have the widget, before </body>." : "Name the websites that may show it above and save; then add this line to their pages, before </body>."),
    copyField("Script tag", scriptTag(location.origin, inbox.token)),
  ];

  /** @param {Inbox} inbox */
  function identity(inbox) {
    const shown = make("div");
    const run = oneAtATime(shown);
    const renew = button("New identity key", () =>
      run(async () => {
        const { secret } = await request("POST", `${path(inbox)}/secret`, {});
        shown.replaceChildren(make("p", { class: "dm-notice" }, "Keep this key on your website’s server. It won’t be shown again. The one before it is accepted for another day."), copyField("Identity key", secret));
        shown.querySelector("input")?.focus();
        shown.querySelector("input")?.select();
      }),
    );
    return [
      make("h2", {}, "Known customers"),
      make("p", { class: "dm-hint" }, "Your website signs a short-lived token for a customer who is signed in there; cases then carry their proven name and address. Without it, visitors say themselves who they are."),
      make("div", { class: "dm-buttons" }, renew),
      shown,
    ];
  }

  /** @param {Inbox} inbox */
  function removal(inbox) {
    const asked = make("div");
    const run = oneAtATime(asked);
    const remove = button("Delete inbox", () => {
      const cancel = button("Cancel", () => {
        asked.replaceChildren();
        remove.focus();
      });
      const go = button(`Delete ${inbox.name} for good`, () =>
        run(async () => {
          await request("DELETE", path(inbox));
          await load();
          announce(`The inbox ${inbox.name} was deleted.`);
          selected = null;
          drawList();
          if (inboxes.length) work.replaceChildren();
          else showBeginning();
          create.focus();
        }), { kind: "dm-primary dm-danger" });
      asked.replaceChildren(make("p", { class: "dm-notice" }, `This deletes ${inbox.name} with all of its cases, contacts and figures, for ${plural(inbox.members.length, "member")}. It can’t be undone. The widget disappears from its websites.`), make("div", { class: "dm-buttons" }, cancel, go));
      cancel.focus();
    }, { kind: "dm-danger" });
    return [make("h2", {}, "Delete"), make("div", { class: "dm-buttons" }, remove), asked];
  }

  try {
    await load();
  } catch (error) {
    work.replaceChildren(problem(error));
    return;
  }
  create.disabled = false;
  if (inboxes.length) open(inboxes[0].id, false);
  else showBeginning();
}

register({ id: "inboxes", title: "Inboxes", roles: ["admin"], show });
