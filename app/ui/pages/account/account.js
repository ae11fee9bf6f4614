// The account page: display name, password, storage, sessions and API keys.

import { errorMessage, request, signOut } from "../../shared/api.js";
import { byId, make } from "../../shared/dom.js";
import { plural } from "../../shared/formats.js";
import { clientName, keyText, sessionText, storageText, usedText } from "./account_text.js";
import { onSubmit } from "./forms.js";
import { connectionText, problemText } from "./oidc_texts.js";

/** @import { CreatedKey, KeyView, OidcConnection, OidcStart, SessionView, Storage } from "../../shared/api_types.js" */

const problem = byId("dp-problem");
/** @param {string} text */
const say = (text) => {
  byId("dp-said").textContent = text;
};

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
    ...sessions.map((session) => {
      const { id, user_agent: agent, address, current } = session;
      const name = clientName(agent);
      if (current) return line(name, sessionText(session));
      const end = () =>
        act(async () => {
          await request("DELETE", `/api/account/sessions/${id}`);
          await showSessions();
          say("The session was signed out.");
        });
      return line(name, sessionText(session), button("Sign out", `Sign out ${name}, ${address}`, end));
    }),
  );
});

const showKeys = list("/api/account/keys", (/** @type {KeyView[]} */ keys) => {
  byId("dp-keys").replaceChildren(
    ...keys.map((key) => {
      const { id, name } = key;
      const revoke = () =>
        act(async () => {
          await request("DELETE", `/api/account/keys/${id}`);
          await showKeys();
          say(`The key “${name}” was revoked.`);
        });
      return line(name, keyText(key), button("Revoke", `Revoke ${name}`, revoke));
    }),
  );
});

/** Offers to delete the stored responses, in two clicks. @param {number} number */
function offerDeletion(number) {
  const place = byId("dp-responses");
  const remove = () =>
    act(async () => {
      await request("DELETE", "/api/account/responses");
      await showStorage();
      say("The stored responses were deleted.");
    });
  const ask = () => {
    const sure = make("button", { type: "button", class: "dm-button", onclick: remove }, `Delete ${plural(number, "stored response")} for good`);
    place.replaceChildren(sure, make("button", { type: "button", class: "dm-button", onclick: () => offerDeletion(number) }, "Keep"));
    sure.focus();
  };
  const offer = make("button", { type: "button", class: "dm-button", onclick: ask }, "Delete stored responses…");
  place.replaceChildren(...(number ? [offer] : []));
}

async function showStorage() {
  /** @type {Storage} */
  const storage = await request("GET", "/api/account/storage");
  byId("dp-storage-said").textContent = storageText(storage);
  offerDeletion(storage.responses);
  const { used_bytes: used, max_bytes: max } = storage;
  const meter = byId("dp-storage");
  meter.hidden = max === null;
  if (max === null) return;
  Object.assign(meter, { max, high: 0.9 * max, optimum: 0, value: Math.min(used, max) });
  meter.textContent = usedText(storage);
}

/** Shows the connection to the sign-in provider, or how to make one. */
async function showConnection() {
  /** @type {OidcConnection} */
  const connection = await request("GET", "/api/account/oidc");
  const { provider, connected_as: connectedAs, has_password: hasPassword } = connection;
  byId("dp-password-section").hidden = !hasPassword;
  byId("dp-oidc").hidden = provider === null;
  if (provider === null) return connection;
  byId("dp-oidc-title").textContent = `Sign-in with ${provider}`;
  byId("dp-oidc-said").textContent = connectionText(connection);
  byId("dp-oidc-submit").textContent = connectedAs === null ? `Connect ${provider}` : `Disconnect ${provider}`;
  byId("dp-oidc-proof").hidden = connectedAs !== null;
  byId("dp-oidc-password").required = connectedAs === null;
  byId("dp-oidc-form").hidden = !hasPassword;
  return connection;
}

function listen() {
  onSubmit(byId("dp-oidc-form"), problem, async () => {
    say("");
    const { provider, connected_as: connectedAs } = await showConnection();
    if (connectedAs === null) {
      /** @type {OidcStart} */
      const { address } = await request("POST", "/api/account/oidc", { password: byId("dp-oidc-password").value });
      location.assign(address);
      return;
    }
    await request("DELETE", "/api/account/oidc");
    await Promise.all([showConnection(), showSessions()]);
    say(`${provider} was disconnected.`);
  });
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
  const [{ provider }] = await Promise.all([showConnection(), showStorage(), showSessions(), showKeys()]);
  listen();
  byId("dp-sections").hidden = false;
  const parameters = new URLSearchParams(location.search);
  const failure = parameters.get("problem");
  if (failure !== null) problem.textContent = problemText(failure, provider);
  else if (parameters.has("connected")) say(`${provider} was connected.`);
  if (location.search !== "") history.replaceState(null, "", location.pathname); // a reload must not say it again
});
document.querySelector("main")?.removeAttribute("aria-busy");
