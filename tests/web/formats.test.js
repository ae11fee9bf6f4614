import assert from "node:assert/strict";
import { test } from "node:test";

import { compact, count, percent, plural, rate, seconds, size } from "../../app/ui/shared/formats.js";

/** What `format` makes of the keys. */
const check = (format, expected) => {
  for (const [value, text] of expected) assert.equal(format(value), text, String(value));
};

test("a count has its separators, and one of a thing is singular", () => {
  check(count, [[0, "0"], [1234567, "1,234,567"]]);
  check((number) => plural(number, "message"), [[0, "0 messages"], [1, "1 message"], [2000, "2,000 messages"]]);
  assert.equal(plural(2, "reply", "replies"), "2 replies");
});

test("large numbers are short, small ones exact", () => {
  check(compact, [[0, "0"], [9999, "9,999"], [10_000, "10K"], [10_500, "10.5K"], [999_999, "1M"], [12_345_678, "12.3M"]]);
});

test("a duration is in seconds from one second on, also after rounding", () => {
  check(seconds, [[null, "–"], [0, "0 ms"], [999, "999 ms"], [999.4, "999 ms"], [999.6, "1.00 s"], [1000, "1.00 s"], [61_230, "61.23 s"]]);
});

test("what was not measured, and a part of nothing, is a dash", () => {
  check(rate, [[null, "–"], [0, "0.0"], [12.34, "12.3"]]);
  assert.equal(percent(0, 0), "–");
  assert.deepEqual([percent(0, 5), percent(1, 3), percent(5, 5)], ["0 %", "33 %", "100 %"]);
});

test("a size has the larger unit from 1 GiB on, also after rounding, and is never 0 if something is there", () => {
  const MIB = 2 ** 20;
  check(size, [
    [0, "0 MiB"],
    [1, "less than 0.1 MiB"],
    [0.0999 * MIB, "less than 0.1 MiB"],
    [0.1 * MIB, "0.1 MiB"],
    [9.94 * MIB, "9.9 MiB"],
    [9.96 * MIB, "10 MiB"],
    [10.4 * MIB, "10 MiB"],
    [1023.4 * MIB, "1,023 MiB"],
    [1023.6 * MIB, "1 GiB"],
    [1024 * MIB, "1 GiB"],
    [1536 * MIB, "1.5 GiB"],
  ]);
});
