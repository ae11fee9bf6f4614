// The views of the list of cases: their names, and which cases each has.

/** @import { CaseRow, CaseView } from "./types.js" */

/** @type {[id: CaseView, title: string, empty: string][]} */
export const VIEWS = [
  ["mine", "Mine", "You have no open case. Take one from Unassigned."],
  ["unassigned", "Unassigned", "No customer waits for a person."],
  ["bot", "Bot", "The assistant answers no case at the moment."],
  ["snoozed", "Snoozed", "No case is snoozed."],
  ["resolved", "Resolved", "No case is resolved yet."],
  ["all", "All", "There are no cases yet."],
];

/** What the list says if it has no case. @param {{view: CaseView, inbox: string | null, tag: string | null, q: string}} filter */
export function emptyText({ view, inbox, tag, q }) {
  if (q !== "") return `No case has “${q}”. Try other words, or the view All.`;
  if (tag !== null) return `No case here has the tag “${tag}”. Try the view All, or all tags.`;
  if (inbox !== null) return "This inbox has no case here. Try the view All, or all inboxes.";
  return VIEWS.find(([id]) => id === view)?.[2] ?? "";
}

/**
 * What the page says on a desk where no customer has written yet, and the page that leads on.
 * @param {string} role  of the user
 * @param {number} numInboxes  whose cases the user may read
 * @returns {{text: string, link: [name: string, href: string] | null}}
 */
export function beginning(role, numInboxes) {
  if (role === "admin" && numInboxes === 0) {
    return {
      text: "There is no inbox yet. Create one, add the agents as its members, and put its script tag on your website: then customers can write, and their cases appear here.",
      link: ["Create an inbox", "/desk#inboxes"],
    };
  }
  if (numInboxes === 0) return { text: "You are no member of an inbox yet, so you see no cases. Ask an admin to make you one.", link: null };
  const text = "There are no cases yet. One appears here as soon as a customer writes.";
  return { text, link: role === "admin" ? ["Script tags and members", "/desk#inboxes"] : null };
}

/** @param {string | undefined} id @returns {CaseView | null} */
export const knownView = (id) => VIEWS.find(([view]) => view === id)?.[0] ?? null;

/** Whether a view has a case. @param {CaseView} view @param {CaseRow} row @param {string} me  id of the user */
export function isOfView(view, { status, assignee }, me) {
  if (view === "all") return true;
  if (view === "mine") return status === "open" && assignee?.id === me;
  if (view === "unassigned") return status === "open" && assignee === null;
  return status === view;
}

/** What narrows a view down. @typedef {{inbox: string | null, tag: string | null}} Narrowing */

/**
 * The address of a case in a view. It keeps what narrows the view down, so that a link does, too.
 * @param {CaseView} view
 * @param {string | null} [caseId]
 * @param {Partial<Narrowing>} [narrowing]
 */
export function hashOf(view, caseId = null, { inbox = null, tag = null } = {}) {
  const filters = new URLSearchParams({ ...(inbox === null ? {} : { inbox }), ...(tag === null ? {} : { tag }) }).toString();
  return `#${view}${caseId === null ? "" : `/${encodeURIComponent(caseId)}`}${filters ? `?${filters}` : ""}`;
}

/** What an address names. @param {string} hash @returns {{view: CaseView | null, caseId: string | null} & Narrowing} */
export function placeOf(hash) {
  const [place, filters = ""] = hash.replace(/^#/, "").split("?");
  const [view, id = ""] = place.split("/");
  const parameters = new URLSearchParams(filters);
  let caseId = null;
  try {
    caseId = decodeURIComponent(id) || null;
  } catch {
    // no address of this page
  }
  return { view: knownView(view), caseId, inbox: parameters.get("inbox") || null, tag: parameters.get("tag") || null };
}

/** Whether a case's last message is the one that its subject was made of: a row need not say both. @param {string} preview @param {string} subject */
export const repeats = (preview, subject) => preview.startsWith(subject.replace(/\s*…$/, ""));
