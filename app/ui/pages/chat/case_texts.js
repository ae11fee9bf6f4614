// Texts of the dialogs about a case.

import { plural } from "../../shared/formats.js";

/** @import { CaseReference, CaseSummary } from "../../shared/api_types.js" */

const NUMBER = /\[([1-9]\d{0,2})\]/;

/** Splits a text at numbers in square brackets: "So [1]." becomes ["So ", 1, "."]. @param {string} text */
export const splitByNumbers = (text) =>
  text
    .split(NUMBER)
    .map((part, index) => (index % 2 ? Number(part) : part))
    .filter((part) => part !== "");

/** What a message of a case is. @param {Pick<CaseReference, "role" | "internal">} reference */
export const nameOf = ({ role, internal }) => (internal ? "Note" : role === "user" ? "Message" : "Reply");

/** What a summary leaves out; empty: nothing. @param {Pick<CaseSummary, "text" | "left_out" | "total" | "has_earlier">} summary */
export function leftOutText({ text, left_out: leftOut, total, has_earlier: hasEarlier }) {
  if (text === "") return hasEarlier ? "There are still older messages." : "";
  const parts = [];
  if (leftOut > 0) parts.push(`${plural(leftOut, "older message")} of ${total} ${leftOut === 1 ? "was" : "were"} left out, as the model reads no more at once.`);
  if (hasEarlier) parts.push("Only the latest messages were read; there are still older ones.");
  return parts.join(" ");
}
