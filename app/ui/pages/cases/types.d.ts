// The API's types by the names of this page, and what is sent over its streams.

import type * as Api from "../../shared/api_types.js";

export type CaseStatus = Api.CaseStatus;
export type CaseView = "mine" | "unassigned" | "bot" | "snoozed" | "resolved" | "all";
export type Priority = Api.CasePriority;
export type Mode = "reply" | "note";
export type Named = Api.NamedUser;
export type CaseRow = Api.CaseRow;
export type CaseMessage = Api.CaseMessageData;
export type CaseEvent = Omit<Api.CaseEventData, "details"> & { details: Record<string, any> }; // what an event has depends on its kind
export type CasePage = Api.CaseList;
export type CaseDetail = Api.WholeCase;
export type Present = Api.PresentUser;
export type CaseFigures = Api.Figures;
export type CaseReport = Api.FiguresReport;

export interface Hours {
  day: number; // 0: Monday
  from: string;
  to: string; // 24:00: the end of the day
}

export type Inbox = Omit<Api.InboxData, "opening_hours"> & { opening_hours: Hours[] };

/** A part of the text of a message that is being written. `offset`: code points before it. */
export interface Delta {
  message_id: string;
  offset: number;
  text: string;
}

/** Cases by view; `waiting`: those whose customers wait for this user or for any. */
export type Counts = Partial<Record<CaseView | "waiting", number>>;
