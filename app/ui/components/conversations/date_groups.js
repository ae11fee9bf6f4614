// The list heading of a conversation, by the local calendar day of its last message.

const month = new Intl.DateTimeFormat("en", { month: "long", year: "numeric" });

/** @param {Date} moment */
const midnight = (moment) => new Date(moment.getFullYear(), moment.getMonth(), moment.getDate()).getTime();

/**
 * Null where the time of the last message is not known.
 * @param {{ pinned?: boolean, updated_at?: string | null }} summary
 */
export function dateGroup(summary, now = new Date()) {
  if (summary.pinned) return "Pinned";
  const moment = new Date(summary.updated_at ?? NaN);
  if (Number.isNaN(moment.getTime())) return null;
  // Rounded because a day on which summer time begins has 23 hours.
  const days = Math.round((midnight(now) - midnight(moment)) / 86_400_000);
  if (days <= 0) return "Today";
  if (days === 1) return "Yesterday";
  if (days <= 7) return "Previous 7 days";
  if (days <= 30) return "Previous 30 days";
  return month.format(moment);
}
