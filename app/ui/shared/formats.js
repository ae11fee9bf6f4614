// Numbers, sizes, durations and times as users read them.

const whole = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const moments = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });

/** @param {number} number */
export const count = (number) => whole.format(number);
/** @param {number} number */
export const compact = (number) => (number < 10_000 ? whole.format(number) : short.format(number));
/** @param {number} number @param {string} word */
export const plural = (number, word, words = `${word}s`) => `${count(number)} ${number === 1 ? word : words}`;
/** @param {string} iso */
export const moment = (iso) => moments.format(new Date(iso));

/** @param {number | null} milliseconds */
export function seconds(milliseconds) {
  if (milliseconds === null) return "–";
  const rounded = Math.round(milliseconds);
  return rounded < 1000 ? `${rounded} ms` : `${(milliseconds / 1000).toFixed(2)} s`;
}

/** @param {number | null} perSecond */
export const rate = (perSecond) => (perSecond === null ? "–" : perSecond.toFixed(1));

/** A part of a total in percent. @param {number} part @param {number} all */
export const percent = (part, all) => (all === 0 ? "–" : `${Math.round((100 * part) / all)} %`);

/** A size in memory or on disk. A small size above zero is never shown as 0. @param {number} bytes */
export function size(bytes) {
  const mebibytes = bytes / 2 ** 20;
  /** @param {number} value @param {number} digits */
  const number = (value, digits) => value.toLocaleString("en", { maximumFractionDigits: digits });
  if (Math.round(mebibytes) >= 1024) return `${number(mebibytes / 1024, 1)} GiB`;
  if (bytes > 0 && mebibytes < 0.1) return "less than 0.1 MiB";
  return `${number(mebibytes, mebibytes < 10 ? 1 : 0)} MiB`;
}
