// Client of the JSON API. Every failure is an ApiError whose message can be shown to the user.

import { addLabels, withLabels } from "./labels.js";

export class ApiError extends Error {
  constructor(message, status, code) {
    super(message);
    this.status = status; // 0 when there was no response
    this.code = code;
  }
}

// Not crypto.randomUUID: browsers offer it only in secure contexts (HTTPS or localhost).
export const randomId = () => [...crypto.getRandomValues(new Uint32Array(4))].map((n) => n.toString(16)).join("-");

export function request(method, path, body, options = {}) {
  if (body === undefined) return send(path, { method });
  return send(path, { ...options, method, headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
}

async function send(path, options) {
  let response;
  try {
    response = await fetch(path, { cache: "no-store", ...options });
  } catch {
    throw new ApiError("Deskmate cannot be reached. Check that it is running, then try again.", 0, "unreachable");
  }
  if (!response.ok) {
    const answer = await response.json().catch(() => null);
    if (response.status === 401 && answer?.error?.code === "not_signed_in") signInAgain();
    const message = answer?.error?.message ?? `The server answered with an error (${response.status}). Try again.`;
    throw new ApiError(withLabels(message), response.status, answer?.error?.code ?? "unknown");
  }
  return response.status === 204 ? null : response.json();
}

// While the user signs out, 401 responses to other requests must not redirect to /sign-in?next=...
let isSigningOut = false;

export async function signOut({ everywhere = false } = {}) {
  isSigningOut = true;
  try {
    await request("POST", everywhere ? "/api/account/sign-out-everywhere" : "/api/account/sign-out", {});
  } catch (error) {
    if (error.code !== "not_signed_in") {
      isSigningOut = false;
      throw error;
    }
  }
  location.assign("/sign-in");
}

// The back button must not restore the page from the bfcache after signing out.
addEventListener("pageshow", () => {
  if (isSigningOut) location.reload();
});

// The session has ended, in this tab or elsewhere. Drafts are in sessionStorage and survive the redirect.
function signInAgain() {
  if (isSigningOut) return;
  location.assign(`/sign-in?next=${encodeURIComponent(location.pathname + location.search + location.hash)}`);
}

export function query(parameters) {
  const chosen = Object.entries(parameters).filter(([, value]) => value !== null && value !== undefined);
  return new URLSearchParams(chosen).toString();
}

const messagePath = (id, action) => `/api/messages/${encodeURIComponent(id)}/${action}`;
const conversationPath = (id) => `/api/conversations/${encodeURIComponent(id)}`;

export const api = {
  options: async () => {
    const options = await request("GET", "/ui/options");
    addLabels(options.parameters);
    return options;
  },
  account: () => request("GET", "/api/account"),
  health: () => request("GET", "/health"),
  ready: () => request("GET", "/ready"),
  engine: () => request("GET", "/api/engine"),
  listConversations: (parameters) => request("GET", `/api/conversations?${query(parameters)}`),
  getConversation: (id, parameters = {}) => request("GET", `${conversationPath(id)}?${query(parameters)}`),
  // `keepalive`: the request outlives the page, for saves on pagehide.
  changeConversation: (id, change, keepalive = false) => request("PATCH", conversationPath(id), change, { keepalive }),
  deleteConversation: (id) => request("DELETE", conversationPath(id)),
  listTags: () => request("GET", "/api/tags"),
  startTurn: (turn) => request("POST", "/api/turns", turn),
  edit: (id, edited) => request("POST", messagePath(id, "edit"), edited),
  regenerate: (id, { settings, request_id }) => request("POST", messagePath(id, "regenerate"), { settings, request_id }),
  resume: (id, { settings }) => request("POST", messagePath(id, "continue"), { settings }),
  showMessage: (id) => request("POST", messagePath(id, "show"), {}),
  branch: (id) => request("POST", messagePath(id, "branch"), {}),
  rate: (id, opinion) => request("PUT", messagePath(id, "feedback"), opinion),
  unrate: (id) => request("DELETE", messagePath(id, "feedback")),
  listCanned: () => request("GET", "/api/canned"),
  fillCanned: (name, values) => request("POST", `/api/canned/${encodeURIComponent(name)}/fill`, { values }),
  fillPrompt: (name, values) => request("POST", `/api/prompts/${encodeURIComponent(name)}/fill`, { values }),
  deleteMessage: (id) => request("DELETE", `/api/messages/${encodeURIComponent(id)}`),
  undoDeletion: (id) => request("POST", `/api/deletions/${encodeURIComponent(id)}/undo`, {}),
  exportPath: (id, format) => `${id ? conversationPath(id) : "/api"}/export?${query({ format })}`,
  importFile: (file) =>
    send("/api/import", { method: "POST", headers: { "Content-Type": "application/octet-stream" }, body: file }),
  stopTurn: (id) => request("POST", `/api/turns/${encodeURIComponent(id)}/stop`),
};
