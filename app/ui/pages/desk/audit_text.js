// The entries of the audit log in words: labels for field names, names for ids.

/** @import { AuditEntry } from "../../shared/api_types.js" */

/** Fields and values of the log by the words that the pages have for them. @type {Record<string, string>} */
const LABELS = {
  fields: "Changed",
  user_id: "User",
  everyone: "For every user",
  before: "Before",
  by: "By",
  address: "Address",
  allowed_origins: "Websites that may show it",
  time_zone: "Time zone",
  opening_hours: "Opening hours",
  greeting: "Greeting",
  collections: "Collections",
  bot: "Assistant",
  inbox_id: "Cases of",
  url: "Address",
  events: "It is told when",
  enabled: "On or off",
  api_keys: "API keys",
  may_edit: "May edit",
  provider: "Sign-in provider",
  widget: "Website",
  api: "API",
};

/** @param {string} name */
export const words = (name) => LABELS[name] ?? name[0].toUpperCase() + name.slice(1).replaceAll("_", " ");

/** @param {string} action */
export const actionText = (action) => action[0].toUpperCase() + action.slice(1).replaceAll("_", " ");

/** Where a value is one of a few words of ours. */
const CHOICES = new Set(["role", "before", "kind", "by"]);

/** @param {string} field @param {unknown} value @param {Record<string, string>} names */
function valueText(field, value, names) {
  if (typeof value === "boolean") return value ? "yes" : "no";
  const text = String(value ?? "–");
  if (field === "fields") return text.split(" ").filter(Boolean).map(words).join(", ");
  if (CHOICES.has(field) && text !== "") return words(text);
  return names[text] ?? text;
}

/** What has no name: the action says which it was. @type {Record<string, string>} */
const NAMELESS = {
  signed_in: "Session",
  signed_out: "Session",
  session_revoked: "Session",
  invited: "Invitation",
  invitation_revoked: "Invitation",
  conversation_deleted: "Conversation",
  messages_deleted: "Conversation",
  reply_reviewed: "Reply",
};

/** What was acted on, by its name, now or then, or else by its kind; of other things that were deleted the id is left. @param {AuditEntry} entry */
export const targetText = ({ action, target, names, details }) => (target === null ? "" : String(names[target] ?? details.name ?? NAMELESS[action] ?? target));

/** @param {AuditEntry} entry */
export const detailsText = ({ details, names }) =>
  Object.entries(details)
    .map(([field, value]) => `${words(field)}: ${valueText(field, value, names)}`)
    .join("; ");
