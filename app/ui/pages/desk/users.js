// Accounts: roles, invitations, password reset links, sessions and deletion. For admins.

import { request } from "../../shared/api.js";
import { announce, make } from "../../shared/dom.js";
import { moment, plural } from "../../shared/formats.js";
import { button, field, latest } from "./controls.js";
import { problem, register } from "./desk.js";
import { identityPanel } from "./identity.js";
import { stackedRow, stackedTable } from "./stacked_table.js";

/** @import { AccountView, DeletionPreview, LinkView, PeopleView, PersonIdentity, SessionView, UserRole, Viewer } from "../../shared/api_types.js" */

const COLUMNS = ["Name", "Role", "Last seen", "Actions"];
/** @type {Record<string, string>} */
const ROLES = { admin: "Admin", agent: "Agent", viewer: "Viewer" };
/** @param {UserRole} chosen */
const options = (chosen) =>
  Object.entries(ROLES).map(([role, name]) => make("option", { value: role, selected: role === chosen }, name));

/** @param {HTMLElement} place @param {Viewer} viewer */
async function show(place, viewer) {
  const trouble = make("div");
  const made = make("div", { class: "dm-notice dk-made", role: "status" });
  const rows = make("tbody");
  const open = make("ul", { class: "dm-rows dk-people-invitations" });
  const openTitle = make("h2", {}, "Open invitations");
  const history = make("div");
  const runLatest = latest();
  let provider = /** @type {string | null} */ (null); // the name of the sign-in provider
  let lastDetailsRequest = 0; // sequence number: details about an account are shown only for the latest request

  /** @param {() => Promise<unknown>} work */
  async function act(work) {
    trouble.replaceChildren();
    try {
      await work();
    } catch (error) {
      trouble.replaceChildren(problem(error));
      trouble.scrollIntoView({ block: "nearest" });
    }
  }

  /**
   * Reloads the list after every change, also a refused one, so that it matches the server.
   * @param {() => Promise<unknown>} work
   * @param {string} announcement
   */
  const change = (work, announcement) =>
    act(async () => {
      try {
        await work();
        announce(announcement);
      } finally {
        await load();
      }
    });

  /** @param {string} link @param {string} sentence */
  function showLink(link, sentence) {
    lastDetailsRequest++;
    const shown = make("input", { class: "dm-input", readonly: true, "aria-label": "The link" });
    shown.value = link;
    const copy = button("Copy", () =>
      act(async () => {
        await navigator.clipboard.writeText(link);
        announce("Copied.");
      }),
    );
    made.replaceChildren(make("p", {}, sentence), make("div", { class: "dk-people-link" }, shown, copy));
    shown.focus();
    shown.select();
  }

  /** @param {AccountView} person */
  const path = ({ id }) => `/api/people/${encodeURIComponent(id)}`;

  /** @param {AccountView} person */
  function row(person) {
    const { name, display_name: shown, role, disabled_at: disabled, last_seen_at: seen } = person;
    const roles = make("select", { class: "dm-input", "aria-label": `Role of ${name}` }, ...options(role));
    roles.addEventListener("change", () =>
      change(() => request("PATCH", path(person), { role: roles.value }), `${name} is ${ROLES[roles.value]} now.`),
    );
    const able = button(
      disabled ? "Enable" : "Disable",
      () =>
        change(
          () => request("PATCH", path(person), { disabled: !disabled }),
          disabled ? `${name} can sign in again.` : `${name} is disabled.`,
        ),
      { kind: disabled ? "dm-small" : "dm-small dm-danger", "aria-label": `${disabled ? "Enable" : "Disable"} ${name}` },
    );
    const reset = button(
      "Reset link",
      () =>
        act(async () => {
          const { link } = await request("POST", `${path(person)}/reset-link`, {});
          showLink(link, `Give this link to ${name}. They can use it once within a day to set a new password. It won't be shown again.`);
        }),
      { kind: "dm-small", "aria-label": `Reset link for ${name}` },
    );
    const sessions = button("Sessions", () => act(() => showSessions(person)), {
      kind: "dm-small",
      "aria-label": `Sessions of ${name}`,
    });
    const identity = button("Identity", () => act(() => showIdentity(person)), {
      kind: "dm-small",
      "aria-label": `Identity of ${name} at ${provider}`,
    });
    const erase = button("Delete", () => act(() => previewDeletion(person)), {
      kind: "dm-small dm-danger",
      "aria-label": `Delete ${name} and all of their data`,
    });
    return stackedRow(
      COLUMNS,
      { class: disabled ? "dk-disabled" : null },
      make("th", { scope: "row" }, name, name === shown ? null : make("div", { class: "dm-hint" }, shown)),
      make("td", {}, roles),
      make("td", {}, disabled ? `disabled ${moment(disabled)}` : seen ? moment(seen) : "never"),
      make("td", {}, make("div", { class: "dm-buttons" }, reset, ...(provider ? [identity] : []), sessions, able, erase)),
    );
  }

  /** @param {AccountView} person */
  async function showSessions(person) {
    const number = ++lastDetailsRequest;
    /** @type {SessionView[]} */
    const sessions = await request("GET", `${path(person)}/sessions`);
    if (number !== lastDetailsRequest) return;
    const lines = sessions.map(({ user_agent: agent, address, last_seen_at: seen }) =>
      make("li", {}, `${agent || "Unknown client"} · ${address} · ${moment(seen)}`),
    );
    const end = button("Sign out everywhere", () =>
      change(async () => {
        await request("DELETE", `${path(person)}/sessions`);
        made.replaceChildren();
      }, `${person.name} was signed out everywhere.`),
    );
    made.replaceChildren(
      make("p", {}, `${person.name} has ${plural(sessions.length, "active session")}.`),
      make("ul", {}, ...lines),
      ...(sessions.length ? [end] : []),
    );
  }

  /** @param {AccountView} person */
  async function showIdentity(person) {
    const number = ++lastDetailsRequest;
    /** @type {PersonIdentity} */
    const linked = await request("GET", `${path(person)}/identity`);
    if (number !== lastDetailsRequest) return;
    /** @param {string} method @param {string} said @param {object} [body] */
    const set = async (method, said, body) => {
      await request(method, `${path(person)}/identity`, body);
      announce(said);
      await Promise.all([load(), showIdentity(person)]);
    };
    const { element, first } = identityPanel(person.name, linked, {
      link: (subject) => set("PUT", `${person.name} can sign in with ${linked.provider} now.`, { subject }),
      unlink: () => set("DELETE", `${person.name} can no longer sign in with ${linked.provider}.`),
    });
    made.replaceChildren(element);
    first.focus({ preventScroll: true });
    element.scrollIntoView({ block: "nearest" }); // the button may be far below
  }

  /**
   * Shows how much would be deleted, as counts only: an admin doesn't get to see the content.
   * @param {AccountView} person
   */
  async function previewDeletion({ id, name }) {
    const address = `/api/desk/people/${encodeURIComponent(id)}`;
    const number = ++lastDetailsRequest;
    /** @type {DeletionPreview} */
    const data = await request("GET", `${address}/data`);
    if (number !== lastDetailsRequest) return; // the delete button of one account must not replace that of another
    const numbers = [
      plural(data.conversations, "conversation"),
      plural(data.messages, "message"),
      plural(data.feedback, "rating"),
      plural(data.responses, "stored response"),
      plural(data.drafts, "draft"),
      plural(data.articles, "proposed article"),
      plural(data.marked_questions, "marked question"),
      plural(data.api_keys, "API key"),
    ];
    const go = button(
      `Delete ${name} for good`,
      () =>
        change(async () => {
          await request("DELETE", address);
          made.replaceChildren();
        }, `${name} was deleted.`),
      { kind: "dm-primary dm-danger" },
    );
    made.replaceChildren(
      make("p", {}, `This deletes ${name} and all of their data: ${numbers.join(", ")}. It can't be undone. Backups keep the data until they are deleted.`),
      make("div", { class: "dm-buttons" }, go, button("Cancel", () => made.replaceChildren())),
    );
    go.focus();
  }

  /** @param {LinkView} invitation */
  function invitation({ id, role, note, expires_at: ends }) {
    const back = button(
      "Revoke",
      () => change(() => request("DELETE", `/api/people/invitations/${encodeURIComponent(id)}`), "The invitation was revoked."),
      { kind: "dm-small", "aria-label": `Revoke the invitation ${note ?? `of ${moment(ends)}`}` },
    );
    return make("li", {}, `${note ?? "No note"} · ${ROLES[role]} · expires ${moment(ends)} `, back);
  }

  // Loads the list. Drops responses to older requests, which may arrive after newer ones.
  const load = () =>
    runLatest(
      () => /** @type {Promise<PeopleView>} */ (request("GET", "/api/people")),
      (seen) => draw(seen),
      (error) => {
        throw error;
      },
    );

  /** @param {PeopleView} listed */
  function draw({ people, invitations, local_conversations: count, provider: name }) {
    provider = name;
    rows.replaceChildren(...people.map(row));
    open.replaceChildren(...invitations.map(invitation));
    open.hidden = openTitle.hidden = invitations.length === 0;
    history.replaceChildren();
    if (count === 0) return;
    const take = button("Move to my account", () =>
      change(() => request("POST", "/api/people/local-history", {}), "The conversations were moved to your account."),
    );
    history.append(make("h2", {}, "From before accounts were turned on"), make("p", {}, `${plural(count, "conversation")} of the local user.`), take);
  }

  const role = make("select", {}, ...options("agent"));
  const note = make("input", { maxlength: "200" });
  const invite = make("form", { class: "dk-filters" }, field("Role", role), field("Note (who it's for)", note));
  const send = make("button", { type: "submit", class: "dm-button dm-primary" }, "Invite");
  invite.append(send);
  invite.addEventListener("submit", (event) => {
    event.preventDefault();
    if (send.disabled) return; // a double click must not create two invitations
    send.disabled = true;
    const noteText = note.value;
    act(async () => {
      const { link, expires_at: ends } = await request("POST", "/api/people/invitations", { role: role.value, note: noteText || null });
      if (note.value === noteText) note.value = ""; // otherwise the next note is being typed
      showLink(link, `Give this link to the new user. Until ${moment(ends)}, it can create one account. It won't be shown again.`);
      await load();
    }).finally(() => {
      send.disabled = false;
    });
  });

  if (viewer.name === null) {
    place.append(make("p", { class: "dk-lead" }, "Accounts are off: this desk has a single user. Set APP_ACCOUNTS=true to turn them on."));
    return;
  }
  place.append(
    make("p", { class: "dk-lead" }, "Users who can sign in. No user can browse another user's conversations, whatever their role."),
    trouble,
    make("h2", {}, "Invite a user"),
    invite,
    made,
    make("h2", {}, "Accounts"),
    stackedTable("Accounts", COLUMNS, rows),
    openTitle,
    open,
    history,
  );
  await load();
}

register({ id: "people", title: "Users", roles: ["admin"], show });
