// When people answer, by the visitor's clock.

import { language, t } from "./texts.js";

const WEEK_MS = 6 * 24 * 3600 * 1000;

/**
 * A coming moment, such as "Monday 09:00", or with the date if it is further away than a week.
 * @param {string} iso @param {Date} now @param {string | undefined} timeZone  the visitor's own unless it is given
 */
export function comingMoment(iso, now = new Date(), timeZone = undefined) {
  const at = new Date(iso);
  const isFar = at.getTime() - now.getTime() > WEEK_MS;
  /** @type {Intl.DateTimeFormatOptions} */
  const day = isFar ? { weekday: "long", day: "numeric", month: "long" } : { weekday: "long" };
  return new Intl.DateTimeFormat(language(), { ...day, hour: "numeric", minute: "2-digit", timeZone }).format(at);
}

/** @param {{open: boolean, opens_at: string | null}} hours */
export function hoursText({ open, opens_at: opensAt }, now = new Date()) {
  if (open) return t("Our team is here now.");
  if (opensAt === null) return t("Our team isn't here at the moment.");
  return t("Our team answers again on {when} (your time).", { when: comingMoment(opensAt, now) });
}
