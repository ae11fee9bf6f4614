// Calendar days in the browser's time zone, named as the API names them: 2026-03-29.

/** The browser's time zone, which the API gets with every range of days. */
export const zone = Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";

/** @param {number} number */
const two = (number) => String(number).padStart(2, "0");
/** The name of the day of `date`. @param {Date} date */
export const dayOf = (date) => `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;

/** The range of the last `days` days, of which `now` is in the last. @param {number} days @param {Date} now */
export function lastDays(days, now = new Date()) {
  // Not a multiple of 24 hours: a day can have 23 or 25.
  const first = new Date(now.getFullYear(), now.getMonth(), now.getDate() - days + 1);
  return { first: dayOf(first), last: dayOf(now) };
}

/** When a day begins, in seconds since 1970. @param {string} day */
export const beginningOf = (day) => new Date(`${day}T00:00:00`).getTime() / 1000;
