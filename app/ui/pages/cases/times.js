// Times as an agent reads them, and the moments until which a case can be snoozed.

const MINUTE = 60_000;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;
const clock = new Intl.DateTimeFormat(undefined, { timeStyle: "short" });
const shortDate = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short" });
const longDate = new Intl.DateTimeFormat(undefined, { weekday: "long", day: "numeric", month: "long", year: "numeric" });
const weekday = new Intl.DateTimeFormat(undefined, { weekday: "short", day: "numeric", month: "short", hour: "numeric", minute: "2-digit" });

/** @param {string} iso */
export const clockTime = (iso) => clock.format(new Date(iso));
/** @param {string} iso */
export const dayName = (iso) => longDate.format(new Date(iso));
/** @param {Date} date */
export const momentName = (date) => weekday.format(date);

/** How long ago something was: "now", "12 min", "3 h", "5 d", and then its date. @param {string} iso @param {number} now */
export function ago(iso, now = Date.now()) {
  const passed = now - Date.parse(iso);
  if (passed < MINUTE) return "now";
  if (passed < HOUR) return `${Math.floor(passed / MINUTE)} min`;
  if (passed < DAY) return `${Math.floor(passed / HOUR)} h`;
  if (passed < 7 * DAY) return `${Math.floor(passed / DAY)} d`;
  return shortDate.format(new Date(iso));
}

/** A duration in seconds: "45 s", "12 min", "3.5 h", "2 d". @param {number | null | undefined} seconds */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 60) return `${Math.round(seconds)} s`;
  if (seconds < 3600) return `${Math.round(seconds / 60)} min`;
  if (seconds < 48 * 3600) return `${Number((seconds / 3600).toFixed(1))} h`;
  return `${Number((seconds / 86_400).toFixed(1))} d`;
}

/** A day at 9 in the morning, by the clock on the wall. @param {Date} now @param {number} days */
const morning = (now, days) => new Date(now.getFullYear(), now.getMonth(), now.getDate() + days, 9);

/** The choices of a snooze. @param {Date} now @returns {[name: string, until: Date][]} */
export function snoozeChoices(now = new Date()) {
  const toMonday = (8 - now.getDay()) % 7 || 7;
  /** @type {[string, Date][]} */
  const choices = [
    ["In 1 hour", new Date(now.getTime() + HOUR)],
    ["In 4 hours", new Date(now.getTime() + 4 * HOUR)],
    ["Tomorrow morning", morning(now, 1)],
  ];
  if (toMonday > 1) choices.push(["Monday morning", morning(now, toMonday)]);
  choices.push(["In 1 week", morning(now, 7)]);
  return choices;
}

/** A moment as a field of type datetime-local has it. @param {Date} date */
export function localValue(date) {
  /** @param {number} number */
  const two = (number) => String(number).padStart(2, "0");
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}T${two(date.getHours())}:${two(date.getMinutes())}`;
}
