// The account page: display name, password, storage, sessions and API keys.

import { request, signOut } from "../../shared/api.js";
import { byId, make } from "../../shared/dom.js";
import { onSubmit, errorMessage } from "./forms.js";

/** @import { CreatedKey, KeyView, SessionView, Storage } from "../../shared/api_types.js" */

const moments = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });
/** @param {string} iso */
const moment = (iso) => moments.format(new Date(iso));

const problem = byId("dp-problem");
/** @param {string} text */
const say = (text) => {
  byId("dp-said").textContent = text;
};

/** A readable browser and system name from a User-Agent header. @param {string} agent */
export function browserOf(agent) {
  const names = [["Edg/", "Edge"], ["OPR/", "Opera"], ["Firefox/", "Firefox"], ["Chrome/", "Chrome"], ["Safari/", "Safari"]];
  const systems = [["Android", "Android"], ["iPhone", "iPhone"], ["iPad", "iPad"], ["Windows", "Windows"], ["Mac OS", "macOS"], ["Linux", "Linux"]];
  /** @param {string[][]} list */
  const find = (list) => list.find(([mark]) => agent.includes(mark))?.[1];
  const [browser, system] = [find(names), find(systems)];
  return browser && system ? `${browser} on ${system}` : (browser ?? (agent.slice(0, 60) || "Unknown client"));
}

/** @param {() => unknown} work */
async function act(work) {
  problem.textContent = "";
  say("");
  try {
    await work();
  } catch (error) {
    problem.textContent = errorMessage(error);
    problem.scrollIntoView({ block: "nearest" });
  }
}

/** @param {string} name @param {string} label @param {() => unknown} onclick */
const button = (name, label, onclick) => make("button", { type: "button", class: "dm-button", "aria-label": label, onclick }, name);
/** @param {string} title @param {string} about @param {HTMLElement[]} buttons */
const line = (title, about, ...buttons) =>
  make("li", {}, make("div", {}, make("strong", {}, title), make("p", { class: "dm-hint" }, about)), ...buttons);

/**
 * Returns a function that loads `path` and renders it. Drops responses to older requests, which may arrive after newer
 * ones.
 * @template Item
 * @param {string} path
 * @param {(items: Item[]) => void} draw
 */
function list(path, draw) {
  let lastLoad = 0;
  return async () => {
    const load = ++lastLoad;
    const listed = await request("GET", path);
    if (load === lastLoad) draw(listed);
  };
}

const showSessions = list("/api/account/sessions", (/** @type {SessionView[]} */ sessions) => {
  byId("dp-sessions").replaceChildren(
    ...sessions.map(({ id, user_agent: agent, address, last_seen_at: seen, current }) => {
      const name = browserOf(agent);
      const about = `${current ? "This session" : `Last seen ${moment(seen)}`} · ${address}`;
      if (current) return line(name, about);
      const end = () =>
        act(async () => {
          await request("DELETE", `/api/account/sessions/${id}`);
          await showSessions();
          say("The session was signed out.");
        });
      return line(name, about, button("Sign out", `Sign out ${name}, ${address}`, end));
    }),
  );
});

const showKeys = list("/api/account/keys", (/** @type {KeyView[]} */ keys) => {
  byId("dp-keys").replaceChildren(
    ...keys.map(({ id, name, beginning, scopes, expires_at: ends, last_used_at: used }) => {
      const about = [
        `${beginning}…`,
        scopes.includes("chat") ? "chat and list models" : "list models only",
        used ? `last used ${moment(used)}` : "never used",
        ends ? `${new Date(ends) < new Date() ? "expired" : "expires"} ${moment(ends)}` : "never expires",
      ].join(" · ");
      const revoke = () =>
        act(async () => {
          await request("DELETE", `/api/account/keys/${id}`);
          await showKeys();
          say(`The key “${name}” was revoked.`);
        });
      return line(name, about, button("Revoke", `Revoke ${name}`, revoke));
    }),
  );
});

/** A readable size. A small size above zero is never shown as 0. @param {number} bytes */
export function sizeOf(bytes) {
  const mebibytes = bytes / 2 ** 20;
  /** @param {number} value @param {number} digits */
  const number = (value, digits) => value.toLocaleString(undefined, { maximumFractionDigits: digits });
  if (mebibytes >= 1024) return `${number(mebibytes / 1024, 1)} GiB`;
  if (bytes > 0 && mebibytes < 0.1) return "less than 0.1 MiB";
  return `${number(mebibytes, mebibytes < 10 ? 1 : 0)} MiB`;
}

async function showStorage() {
  /** @type {Storage} */
  const storage = await request("GET", "/api/account/storage");
  const { used_bytes: used, max_bytes: maxBytes, conversations, max_conversations: maxConversations } = storage;
  /** @param {string} what @param {string | null} limit */
  const of = (what, limit) => (limit === null ? what : `${what} of ${limit}`);
  const room = of(sizeOf(used), maxBytes === null ? null : sizeOf(maxBytes));
  const number = of(conversations.toLocaleString(), maxConversations === null ? null : maxConversations.toLocaleString());
  const full = (maxBytes !== null && used >= maxBytes) || (maxConversations !== null && conversations >= maxConversations);
  const near = maxBytes !== null && used > 0.9 * maxBytes;
  const advice = full ? " To add more, delete some conversations." : near ? " Your storage is almost full." : "";
  byId("dp-storage-said").textContent = `You use ${room}, in ${number} conversations.${advice}`;
  const meter = byId("dp-storage");
  meter.hidden = maxBytes === null;
  if (maxBytes === null) return;
  Object.assign(meter, { max: maxBytes, high: 0.9 * maxBytes, optimum: 0, value: Math.min(used, maxBytes) });
  meter.textContent = room;
}

function listen() {
  onSubmit(byId("dp-about"), problem, async () => {
    await request("PATCH", "/api/account", { display_name: byId("dp-display").value });
    await showProfile();
    say("Saved.");
  });
  onSubmit(byId("dp-password"), problem, async () => {
    say("");
    await request("POST", "/api/account/password", { present: byId("dp-present").value, new: byId("dp-new").value });
    byId("dp-password").reset();
    await showSessions();
    say("Your password was changed. You were signed out everywhere else.");
  });
  onSubmit(byId("dp-new-key"), problem, async () => {
    const days = byId("dp-key-days").value;
    /** @type {CreatedKey} */
    const made = await request("POST", "/api/account/keys", {
      name: byId("dp-key-name").value,
      scopes: byId("dp-key-opens").value.split(" "),
      days: days === "" ? null : Number(days),
    });
    byId("dp-new-key").reset();
    byId("dp-key").textContent = made.key;
    byId("dp-made").hidden = false;
    await showKeys();
  });
  byId("dp-copy").addEventListener("click", () =>
    act(async () => {
      await navigator.clipboard.writeText(byId("dp-key").textContent);
      say("Copied.");
    }),
  );
  byId("dp-sign-out").addEventListener("click", () => act(() => signOut()));
  byId("dp-everywhere").addEventListener("click", () => act(() => signOut({ everywhere: true })));
}

async function showProfile() {
  const me = await request("GET", "/api/account");
  byId("dp-who").textContent = me.accounts
    ? `Signed in as ${me.name}, ${me.role}.`
    : "Accounts are off: this desk has a single user. Set APP_ACCOUNTS=true to turn them on.";
  if (!me.accounts) return false;
  byId("dp-username").value = me.name;
  byId("dp-display").value = me.display_name;
  return true;
}

await act(async () => {
  byId("dp-base").textContent = `${location.origin}/v1`;
  if (!(await showProfile())) return;
  await Promise.all([showStorage(), showSessions(), showKeys()]);
  listen();
  byId("dp-sections").hidden = false;
});
document.querySelector("main")?.removeAttribute("aria-busy");
