// Client of the JSON API. Every failure is an ApiError whose message can be shown to the user.

import { InputError } from "./input_error.js";
import { addLabels, withLabels } from "./labels.js";

/** @import * as Types from "./api_types.js" */
/** @import { PageOptions } from "./page_options.js" */

export class ApiError extends Error {
  /** @param {string} message @param {number} status @param {string} code */
  constructor(message, status, code) {
    super(message);
    this.status = status; // 0 when there was no response
    this.code = code;
  }
}

/** The error in words for a user: its own, or that the page itself is at fault. @param {unknown} error */
export function errorMessage(error) {
  if (error instanceof ApiError || error instanceof InputError) return error.message;
  return `Something went wrong on this page (${error instanceof Error ? error.message : error}). Reload it.`;
}

// Not crypto.randomUUID: browsers offer it only in secure contexts (HTTPS or localhost).
export const randomId = () => [...crypto.getRandomValues(new Uint32Array(4))].map((n) => n.toString(16)).join("-");

/**
 * Resolves to the response's JSON, or null if it has none. The type is the caller's claim: see the API's models.
 * @template {unknown} [Result=any]
 * @param {string} method
 * @param {string} path
 * @param {unknown} [body]  sent as JSON
 * @param {RequestInit} options
 * @returns {Promise<Result>}
 */
export function request(method, path, body, options = {}) {
  if (body === undefined) return send(path, { method });
  return send(path, { ...options, method, headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
}

/** @param {string} path @param {RequestInit} options @returns {Promise<any>} */
async function send(path, options) {
  const response = await fetched(path, options);
  return response.status === 204 ? null : response.json();
}

/** @param {string} path @param {RequestInit} options */
async function fetched(path, options) {
  let response;
  try {
    response = await fetch(path, { cache: "no-store", ...options });
  } catch {
    throw new ApiError("Deskmate cannot be reached. Check that it is running, then try again.", 0, "unreachable");
  }
  if (!response.ok) throw await refusal(response);
  return response;
}

/** The error of a response that is none of success. @param {Response} response */
async function refusal(response) {
  const answer = await response.json().catch(() => null);
  if (response.status === 401 && answer?.error?.code === "not_signed_in") signInAgain();
  const message = answer?.error?.message ?? `The server answered with an error (${response.status}). Try again.`;
  return new ApiError(withLabels(message), response.status, answer?.error?.code ?? "unknown");
}

/**
 * Sends JSON and calls `onEvent` for each server-sent event of the response. Resolves once the stream has ended.
 * @param {string} path
 * @param {unknown} body
 * @param {AbortSignal} signal
 * @param {(name: string, data: any) => void} onEvent
 */
async function stream(path, body, signal, onEvent) {
  const lost = () => new ApiError("The connection to Deskmate was lost. Check that it is running, then try again.", 0, "unreachable");
  const options = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal };
  const response = await fetch(path, options).catch((error) => {
    throw signal.aborted ? error : lost();
  });
  if (!response.ok || !response.body) throw await refusal(response);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read().catch((error) => {
      throw signal.aborted ? error : lost();
    });
    const parts = (rest + (value ?? "")).split("\n\n");
    rest = parts.pop() ?? "";
    for (const part of parts) {
      const [, name = "", data = ""] = /^event: (.*)\ndata: (.*)$/.exec(part) ?? [];
      if (name !== "") onEvent(name, JSON.parse(data)); // the others are pings
    }
    if (done) return;
  }
}

// While the user signs out, 401 responses to other requests must not redirect to /sign-in?next=...
let isSigningOut = false;

export async function signOut({ everywhere = false } = {}) {
  isSigningOut = true;
  let next = "/sign-in";
  try {
    const signedOut = await request("POST", everywhere ? "/api/account/sign-out-everywhere" : "/api/account/sign-out", {});
    next = signedOut?.sign_out_at ?? next; // the sign-in provider's page, which leads back
  } catch (error) {
    if (!(error instanceof ApiError) || error.code !== "not_signed_in") {
      isSigningOut = false;
      throw error;
    }
  }
  location.assign(next);
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

/**
 * The query string of these parameters: without those that are null or undefined, and with each value of a list.
 * @param {Record<string, unknown>} parameters
 */
export function query(parameters) {
  const chosen = Object.entries(parameters).flatMap(([name, value]) => [value ?? []].flat().map((each) => [name, String(each)]));
  return new URLSearchParams(chosen).toString();
}

/** @param {string} id @param {string} action */
const messagePath = (id, action) => `/api/messages/${encodeURIComponent(id)}/${action}`;
/** @param {string} id */
const conversationPath = (id) => `/api/conversations/${encodeURIComponent(id)}`;

/** @param {string} id */
const documentPath = (id) => `/api/kb/documents/${encodeURIComponent(id)}`;

/**
 * What comes while a draft is written.
 * @typedef {{name: "draft", data: {id: string, sources: Types.Citation[]}} | {name: "text", data: {text: string}} |
 *   {name: "end", data: Types.Draft}} ReplyDraftEvent
 */

/**
 * Options of another reply to the same message.
 * @typedef {{settings: Types.ChatSettings | null, request_id: string}} Again
 */

/**
 * The routes of drafts of replies to a customer.
 * @param {(id: string) => string} pathOf  of a conversation or a case
 */
export const draftRoutes = (pathOf) => ({
  /**
   * Writes a draft. Resolves once it has ended; rejects with an ApiError if it failed.
   * @param {string} id  of the conversation or the case
   * @param {Types.DraftToWrite} wanted
   * @param {AbortSignal} signal  stops it
   * @param {(event: ReplyDraftEvent) => void} onEvent
   */
  write: async (id, wanted, signal, onEvent) => {
    let hasEnded = false;
    await stream(`${pathOf(id)}/draft`, wanted, signal, (name, data) => {
      if (name === "error") throw new ApiError(withLabels(data.message), data.status, data.code);
      hasEnded ||= name === "end";
      onEvent(/** @type {ReplyDraftEvent} */ ({ name, data }));
    });
    if (!hasEnded) throw new ApiError("The server stopped while it wrote the draft. Try again.", 0, "unreachable");
  },
  /** Keeps what a user made of a draft. @param {string} id @param {string} draft  its id @param {Types.DraftInUse} used */
  use: (id, draft, used) => request("PUT", `${pathOf(id)}/drafts/${encodeURIComponent(draft)}`, used),
});

/**
 * The routes of what the model makes of a case.
 * @param {(id: string) => string} pathOf  of a conversation or a case
 */
export const writingRoutes = (pathOf) => ({
  /** @param {string} id @param {AbortSignal} signal  stops it @returns {Promise<Types.CaseSummary>} */
  summarise: (id, signal) => request("POST", `${pathOf(id)}/summary`, {}, { signal }),
  /** @param {string} id @param {string} collection  its id @param {AbortSignal} signal  stops it @returns {Promise<Types.ProposedArticle>} */
  proposeArticle: (id, collection, signal) => request("POST", `${pathOf(id)}/article`, { collection }, { signal }),
});

export const conversationDrafts = draftRoutes(conversationPath);
export const conversationWriting = writingRoutes(conversationPath);

export const api = {
  /** @returns {Promise<PageOptions>} */
  options: async () => {
    const options = await request("GET", "/ui/options");
    addLabels(options.parameters);
    return options;
  },
  account: () => request("GET", "/api/account"),
  health: () => request("GET", "/health"),
  ready: () => request("GET", "/ready"),
  /** @returns {Promise<Types.EngineView>} */
  engine: () => request("GET", "/api/engine"),
  /** @param {string} model @returns {Promise<Types.EngineView>} */
  swapModel: (model) => request("POST", "/api/engine/swap", { model }),
  /** @returns {Promise<Types.ModelsView>} */
  listModels: () => request("GET", "/api/models"),
  /** @param {string} model @returns {Promise<Types.DownloadView>} */
  downloadModel: (model) => request("POST", "/api/models/download", { model }),
  cancelDownload: () => request("DELETE", "/api/models/download", {}),
  /** @param {Record<string, unknown>} parameters @returns {Promise<Types.ConversationSummaryPage>} */
  listConversations: (parameters) => request("GET", `/api/conversations?${query(parameters)}`),
  /** @param {string} id @param {Record<string, unknown>} parameters @returns {Promise<Types.ConversationView>} */
  getConversation: (id, parameters = {}) => request("GET", `${conversationPath(id)}?${query(parameters)}`),
  // `keepalive`: the request outlives the page, for saves on pagehide.
  /** @param {string} id @param {Types.ConversationChange} change */
  changeConversation: (id, change, keepalive = false) => request("PATCH", conversationPath(id), change, { keepalive }),
  /** @param {string[]} ids @returns {Promise<Types.ConversationDeletion>} */
  deleteConversations: (ids) => request("POST", "/api/conversations/delete", { ids }),
  /** @param {string[]} ids @param {Omit<Types.ManyChange, "ids">} change @returns {Promise<Types.ChangedConversations>} */
  changeConversations: (ids, change) => request("POST", "/api/conversations/change", { ids, ...change }),
  /** @returns {Promise<Types.FolderView[]>} */
  listFolders: () => request("GET", "/api/folders"),
  /** @param {string} name @returns {Promise<Types.FolderView>} */
  createFolder: (name) => request("POST", "/api/folders", { name }),
  /** @param {string} id @param {string} name */
  renameFolder: (id, name) => request("PATCH", `/api/folders/${encodeURIComponent(id)}`, { name }),
  /** @param {string} id */
  deleteFolder: (id) => request("DELETE", `/api/folders/${encodeURIComponent(id)}`),
  /** @returns {Promise<Record<string, number>>} */
  listTags: () => request("GET", "/api/tags"),
  /** @param {Types.StartTurn} turn @returns {Promise<Types.StartedTurn>} */
  startTurn: (turn) => request("POST", "/api/turns", turn),
  /** @param {string} id @param {Types.EditedMessage} edited @returns {Promise<Types.TurnRef>} */
  edit: (id, edited) => request("POST", messagePath(id, "edit"), edited),
  /** @param {string} id @param {Again} options @returns {Promise<Types.TurnRef>} */
  regenerate: (id, { settings, request_id }) => request("POST", messagePath(id, "regenerate"), { settings, request_id }),
  /** @param {Types.NextMessage} next @returns {Promise<Types.ContextView>} */
  countContext: (next) => request("POST", "/api/context", next),
  /** @param {Types.NextPrompt} next @returns {Promise<Types.PromptView>} */
  nextPrompt: (next) => request("POST", "/api/context/prompt", next),
  /** @param {string} id @param {number} offset @returns {Promise<Types.PromptView>} */
  promptOf: (id, offset) => request("GET", messagePath(id, `prompt?${query({ offset })}`)),
  /** @param {string} id @returns {Promise<Types.LensView>} */
  lens: (id) => request("GET", messagePath(id, "lens")),
  /** @param {string} id @param {number} index @returns {Promise<Types.LensChoice>} */
  lensChoice: (id, index) => request("GET", messagePath(id, `lens/${index}`)),
  /** @param {string} id @param {Types.BranchPoint} point @returns {Promise<Types.TurnRef>} */
  branchAt: (id, point) => request("POST", messagePath(id, "branch-at"), point),
  /** @param {string} id @param {Types.ContinuedReply} options @returns {Promise<Types.TurnRef>} */
  resume: (id, options) => request("POST", messagePath(id, "continue"), options),
  /** @param {string} id @param {Types.EditedReply} edited @returns {Promise<Types.TurnRef>} */
  rewrite: (id, edited) => request("POST", messagePath(id, "rewrite"), edited),
  /** @param {Types.StartComparison} wanted @returns {Promise<Types.Comparison>} */
  compare: (wanted) => request("POST", "/api/comparisons", wanted),
  /** @param {string} id @param {Types.MoreReplies} wanted @returns {Promise<Types.Comparison>} */
  compareAgain: (id, wanted) => request("POST", messagePath(id, "compare"), wanted),
  /** @param {string} id @returns {Promise<Types.Versions>} */
  listVersions: (id) => request("GET", messagePath(id, "versions")),
  /** @param {string} id @param {Types.GivenDecision} decision @returns {Promise<Types.TurnRef>} */
  decideTools: (id, decision) => request("POST", messagePath(id, "tools"), decision),
  /** @param {string} id @returns {Promise<Types.ConversationRef>} */
  showMessage: (id) => request("POST", messagePath(id, "show"), {}),
  /** @param {string} id @returns {Promise<Types.ConversationRef>} */
  branch: (id) => request("POST", messagePath(id, "branch"), {}),
  /** @param {string} id @param {Types.GivenFeedback} feedback @returns {Promise<Types.FeedbackView>} */
  rate: (id, feedback) => request("PUT", messagePath(id, "feedback"), feedback),
  /** @param {string} id */
  unrate: (id) => request("DELETE", messagePath(id, "feedback")),
  /** @param {Types.NewConversation} conversation @returns {Promise<Types.CreatedConversation>} */
  createConversation: (conversation) => request("POST", "/api/conversations", conversation),
  /** @returns {Promise<Types.CannedReply[]>} */
  listCanned: () => request("GET", "/api/canned"),
  /** @param {string} name @param {Record<string, string>} values @returns {Promise<Types.RenderedText>} */
  fillCanned: (name, values) => request("POST", `/api/canned/${encodeURIComponent(name)}/fill`, { values }),
  /** @param {string} name @param {Record<string, string>} values @returns {Promise<Types.RenderedText>} */
  fillPrompt: (name, values) => request("POST", `/api/prompts/${encodeURIComponent(name)}/fill`, { values }),
  /** @param {string} name @param {object} settings @returns {Promise<Types.OwnPreset>} */
  savePreset: (name, settings) => request("POST", "/api/presets", { name, settings }),
  /** @param {string} id */
  deletePreset: (id) => request("DELETE", `/api/presets/${encodeURIComponent(id)}`),
  /** @param {object | null} settings  null: the model's defaults */
  useForNewChats: (settings) => request("PUT", "/api/presets/new-chats", { settings }),
  /** @param {string} id @returns {Promise<Types.Deletion>} */
  deleteMessage: (id) => request("DELETE", `/api/messages/${encodeURIComponent(id)}`),
  /** @param {string} id */
  undoDeletion: (id) => request("POST", `/api/deletions/${encodeURIComponent(id)}/undo`, {}),
  /** @param {string | null} id @param {string} format */
  exportPath: (id, format) => `${id ? conversationPath(id) : "/api"}/export?${query({ format })}`,
  /** @param {string[]} ids @param {string} format @returns {Promise<{blob: Blob, name: string}>} */
  exportChosen: async (ids, format) => {
    const headers = { "Content-Type": "application/json" };
    const response = await fetched("/api/export", { method: "POST", headers, body: JSON.stringify({ ids, format }) });
    const name = /filename="([^"]*)"/.exec(response.headers.get("Content-Disposition") ?? "")?.[1];
    return { blob: await response.blob(), name: name ?? (format === "json" ? "Deskmate.json" : "Deskmate.zip") };
  },
  /** @param {Blob} file @returns {Promise<Types.ImportCounts>} */
  importFile: (file) =>
    send("/api/import", { method: "POST", headers: { "Content-Type": "application/octet-stream" }, body: file }),
  /** @param {File} file @returns {Promise<Types.FileInMessage>} */
  readFile: (file) => {
    const body = new FormData();
    body.append("file", file);
    return send("/api/files", { method: "POST", body });
  },
  /** @param {File} file @param {string} collection  its id @returns {Promise<Types.Added>} */
  addDocument: (file, collection) => {
    const body = new FormData();
    body.append("collection", collection);
    body.append("file", file);
    return send("/api/kb/documents", { method: "POST", body });
  },
  /** @param {string} id @returns {Promise<Types.DocumentView>} */
  getDocument: (id) => request("GET", documentPath(id)),
  /** @param {string} id @param {{version: number, start: number, end: number}} part @returns {Promise<Types.TextSpan>} */
  documentText: (id, part) => request("GET", `${documentPath(id)}/text?${query(part)}`),
  /** @param {Types.QuestionMark} mark @returns {Promise<Types.MarkedQuestion>} */
  markQuestion: (mark) => request("POST", "/api/kb/questions", mark),
  /** @returns {Promise<Types.CollectionList>} */
  listCollections: () => request("GET", "/api/kb/collections"),
  /** @param {string} id */
  stopTurn: (id) => request("POST", `/api/turns/${encodeURIComponent(id)}/stop`),
};
