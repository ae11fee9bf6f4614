// The people who sign in: their roles, invitations, and what an admin may have to do about them.

import { request } from "../api.js";
import { make } from "../dom.js";
import { button, field, latest, moment, plural } from "./controls.js";
import { announce, problem, register } from "./desk.js";

const ROLES = { admin: "Admin", agent: "Agent", viewer: "Viewer" };
const options = (chosen) =>
  Object.entries(ROLES).map(([role, name]) => make("option", { value: role, selected: role === chosen }, name));

async function show(place, viewer) {
  const trouble = make("div");
  const made = make("div", { class: "dk-made", role: "status" });
  const rows = make("tbody");
  const open = make("ul", { class: "dk-people-invitations" });
  const openTitle = make("h2", {}, "Open invitations");
  const history = make("div");
  const only = latest();
  let asked = 0; // what is shown about one of them is what was asked for last

  async function act(work) {
    trouble.replaceChildren();
    try {
      await work();
    } catch (error) {
      trouble.replaceChildren(problem(error));
      trouble.scrollIntoView({ block: "nearest" });
    }
  }

  // Whatever was done, the list is then as the server has it, also where it was refused.
  const change = (work, said) =>
    act(async () => {
      try {
        await work();
        announce(said);
      } finally {
        await look();
      }
    });

  function handOn(link, sentence) {
    asked++;
    const shown = make("input", { readonly: true, "aria-label": "The link" });
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

  const path = ({ id }) => `/api/people/${encodeURIComponent(id)}`;

  function row(person) {
    const { name, display_name: shown, role, disabled_at: disabled, last_seen_at: seen } = person;
    const roles = make("select", { "aria-label": `Role of ${name}` }, ...options(role));
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
      { kind: disabled ? "dk-chip" : "dk-chip dk-danger", "aria-label": `${disabled ? "Enable" : "Disable"} ${name}` },
    );
    const reset = button(
      "Reset link",
      () =>
        act(async () => {
          const { link } = await request("POST", `${path(person)}/reset-link`, {});
          handOn(link, `Give this link to ${name}: for a day, it lets them choose another password, once. It is not shown again.`);
        }),
      { kind: "dk-chip", "aria-label": `Reset link for ${name}` },
    );
    const sessions = button("Sessions", () => act(() => showSessions(person)), {
      kind: "dk-chip",
      "aria-label": `Sessions of ${name}`,
    });
    const erase = button("Delete", () => act(() => previewDeletion(person)), {
      kind: "dk-chip dk-danger",
      "aria-label": `Delete ${name} and all that is theirs`,
    });
    return make(
      "tr",
      { class: disabled ? "dk-disabled" : null },
      make("th", { scope: "row" }, name, name === shown ? null : make("div", { class: "dk-hint" }, shown)),
      make("td", {}, roles),
      make("td", {}, disabled ? `disabled ${moment(disabled)}` : seen ? moment(seen) : "never"),
      make("td", {}, make("div", { class: "dk-buttons" }, reset, sessions, able, erase)),
    );
  }

  async function showSessions(person) {
    const mine = ++asked;
    const sessions = await request("GET", `${path(person)}/sessions`);
    if (mine !== asked) return;
    const lines = sessions.map(({ user_agent: agent, address, last_seen_at: seen }) =>
      make("li", {}, `${agent || "An unknown program"} · ${address} · ${moment(seen)}`),
    );
    const end = button("Sign out everywhere", () =>
      change(async () => {
        await request("DELETE", `${path(person)}/sessions`);
        made.replaceChildren();
      }, `${person.name} was signed out everywhere.`),
    );
    made.replaceChildren(
      make("p", {}, `${person.name} is signed in at ${plural(sessions.length, "place")}.`),
      make("ul", {}, ...lines),
      ...(sessions.length ? [end] : []),
    );
  }

  // What would go is shown first, in numbers; nobody sees what they wrote.
  async function previewDeletion({ id, name }) {
    const address = `/api/desk/people/${encodeURIComponent(id)}`;
    const mine = ++asked;
    const data = await request("GET", `${address}/data`);
    if (mine !== asked) return; // a button that deletes one must not come where another's was
    const numbers = [
      plural(data.conversations, "conversation"),
      plural(data.messages, "message"),
      plural(data.feedback, "rating"),
      plural(data.api_keys, "API key"),
    ];
    const go = button(
      `Delete ${name} for good`,
      () =>
        change(async () => {
          await request("DELETE", address);
          made.replaceChildren();
        }, `${name} was deleted.`),
      { kind: "dk-danger" },
    );
    made.replaceChildren(
      make("p", {}, `This deletes ${name} with all that is theirs: ${numbers.join(", ")}. It cannot be undone; backups keep it until they are gone.`),
      make("div", { class: "dk-buttons" }, go, button("Keep", () => made.replaceChildren())),
    );
    go.focus();
  }

  function invitation({ id, role, note, expires_at: ends }) {
    const back = button(
      "Take back",
      () => change(() => request("DELETE", `/api/people/invitations/${encodeURIComponent(id)}`), "The invitation was taken back."),
      { kind: "dk-chip", "aria-label": `Take back the invitation ${note ?? `of ${moment(ends)}`}` },
    );
    return make("li", {}, `${note ?? "Without a note"} · ${ROLES[role]} · works until ${moment(ends)} `, back);
  }

  // Of several looks the last one counts: what an earlier one saw may arrive after it.
  const look = () =>
    only(
      () => request("GET", "/api/people"),
      (seen) => draw(seen),
      (error) => {
        throw error;
      },
    );

  function draw({ people, invitations, local_conversations: count }) {
    rows.replaceChildren(...people.map(row));
    open.replaceChildren(...invitations.map(invitation));
    open.hidden = openTitle.hidden = invitations.length === 0;
    history.replaceChildren();
    if (count === 0) return;
    const take = button("Take them over", () =>
      change(() => request("POST", "/api/people/local-history", {}), "They are yours now."),
    );
    history.append(make("h2", {}, "From before there were accounts"), make("p", {}, `${plural(count, "conversation")} of the local user.`), take);
  }

  const role = make("select", {}, ...options("agent"));
  const note = make("input", { maxlength: "200" });
  const invite = make("form", { class: "dk-filters" }, field("Role", role), field("Who it is for (a note for you)", note));
  const send = make("button", { type: "submit", class: "dk-button dk-primary" }, "Invite");
  invite.append(send);
  invite.addEventListener("submit", (event) => {
    event.preventDefault();
    if (send.disabled) return; // whoever presses twice invites one
    send.disabled = true;
    const about = note.value;
    act(async () => {
      const { link, expires_at: ends } = await request("POST", "/api/people/invitations", { role: role.value, note: about || null });
      if (note.value === about) note.value = ""; // else it is for somebody else already
      handOn(link, `Give this link to them: until ${moment(ends)}, it makes one account. It is not shown again.`);
      await look();
    }).finally(() => {
      send.disabled = false;
    });
  });

  const heads = ["Name", "Role", "Last here", ""].map((name) => make("th", { scope: "col" }, name));
  if (viewer.name === null) {
    place.append(make("p", { class: "dk-lead" }, "There are no accounts here: one person uses this desk. APP_ACCOUNTS turns them on."));
    return;
  }
  place.append(
    make("p", { class: "dk-lead" }, "Who can sign in. Nobody sees another's conversations, whatever their role."),
    trouble,
    make("h2", {}, "Invite somebody"),
    invite,
    made,
    make("h2", {}, "Accounts"),
    make(
      "div",
      { class: "dk-table", tabindex: "0", role: "region", "aria-label": "Accounts" },
      make("table", {}, make("thead", {}, make("tr", {}, ...heads)), rows),
    ),
    openTitle,
    open,
    history,
  );
  await look();
}

register({ id: "people", title: "People", roles: ["admin"], show });
