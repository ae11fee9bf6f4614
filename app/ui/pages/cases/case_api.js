// The routes of cases and inboxes.

import { draftRoutes, query, request, writingRoutes } from "../../shared/api.js";

/** @import { CaseDetail, CasePage, CaseRow, Inbox, Mode } from "./types.js" */
/** @import { Sent } from "./outbox.js" */

/** @param {string} id @param {string} [action] */
export const casePath = (id, action) => `/api/cases/${encodeURIComponent(id)}${action ? `/${action}` : ""}`;

/** A command of a case. Each says of which state of the case it is meant. @param {string} action */
const command =
  (action) =>
  /** @param {CaseRow} row @param {object} body @returns {Promise<any>} */
  ({ id, epoch }, body = {}) =>
    request("POST", casePath(id, action), { ...body, epoch });

export const caseDrafts = draftRoutes((id) => casePath(id));
export const caseWriting = writingRoutes((id) => casePath(id));

export const cases = {
  /** @param {Record<string, unknown>} parameters @returns {Promise<CasePage>} */
  list: (parameters) => request("GET", `/api/cases?${query(parameters)}`),
  /** @returns {Promise<{tags: Record<string, number>}>} */
  tags: () => request("GET", "/api/cases/tags"),
  /** @param {string} id @param {string | null} before  only messages before this one @returns {Promise<CaseDetail>} */
  get: (id, before = null) => request("GET", `${casePath(id)}?${query({ before })}`),
  /** @param {string} id @param {Mode} mode @param {{text: string, client_id: string, epoch: number}} body @returns {Promise<Sent>} */
  send: (id, mode, body) => request("POST", casePath(id, mode === "note" ? "notes" : "messages"), body),
  /** @param {CaseRow} row @param {object} change */
  change: ({ id, epoch }, change) => request("PATCH", casePath(id), { ...change, epoch }),
  assign: command("assign"),
  snooze: command("snooze"),
  resolve: command("resolve"),
  reopen: command("reopen"),
  merge: command("merge"),
  // `keepalive`: the request outlives the page.
  /** @param {string} id @param {{typing: boolean, here: boolean}} presence */
  presence: (id, presence) => request("POST", casePath(id, "presence"), presence, { keepalive: true }),
  /** @returns {Promise<{inboxes: Inbox[]}>} */
  inboxes: () => request("GET", "/api/inboxes"),
};
