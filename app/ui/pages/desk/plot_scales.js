// The ranges and steps of the plots' axes.

const HALF_A_DAY = 43_200;

/** The steps between the ticks of an axis of whole numbers: 1, 2, 5, 10, 20, … */
export const WHOLE_STEPS = Array.from({ length: 13 }, (_, power) => [1, 2, 5].map((digit) => digit * 10 ** power)).flat();

const HOUR = 3600;

/** The steps of durations in seconds: round in the unit that they are written in. */
export const DURATION_STEPS = [1, 5, 15, 30, 60, 120, 300, 600, 900, 1800, ...[1, 2, 4, 8, 12, 24, 48, 96, 240, 480, 960, 2400].map((hours) => hours * HOUR)];

/**
 * The range of an axis of days, in seconds: a column is a day wide.
 * @param {number} first @param {number} last  when the first and the last day begin
 * @returns {[number, number]}
 */
export const daysRange = (first, last) => [first - HALF_A_DAY, last + HALF_A_DAY];

/**
 * The range of an axis of values: from zero to a little above the largest one.
 * @param {number | null} max  null if no day has a value
 * @returns {[number, number]}
 */
export const valuesRange = (max) => [0, max !== null && max > 0 ? max * 1.1 : 1];
