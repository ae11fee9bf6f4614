import assert from "node:assert/strict";
import { test } from "node:test";

import { HEIGHT, shapesOf, shares, WIDTH } from "../../app/ui/components/settings/setting_shapes.js";

const kept = (name, value) => shapesOf(name, value).filter(({ kind }) => kind === "kept");
const sum = (numbers) => numbers.reduce((total, each) => total + each, 0);

test("a picture shows what a filter removes", () => {
  assert.equal(kept("top_k", 3).length, 3);
  assert.equal(kept("top_k", 0).length, 12, "0 keeps all");
  assert.equal(kept("top_p", 1).length, 12);
  assert.ok(kept("top_p", 0.5).length < kept("top_p", 0.9).length);
  assert.equal(kept("min_p", 1).length, 1, "only the likeliest one is as likely as itself");
  assert.equal(kept("temperature", 0).length, 1, "0 always takes the likeliest one");
  assert.ok(kept("top_n_sigma", 1).length < 12);
  assert.ok(kept("typical_p", 0.3).length < 12);
});

test("temperature reshapes the words and removes none", () => {
  const [cold, warm] = [shares("temperature", 0.4).after, shares("temperature", 1.8).after];
  assert.ok(cold[0] > warm[0] && cold[11] < warm[11]);
  assert.ok(Math.abs(sum(cold) - 1) < 1e-5 && Math.abs(sum(warm) - 1) < 1e-5);
  assert.deepEqual(shares("temperature", 1).after, shares("temperature", 1).before);
});

test("penalties take from words that the reply has, and more from those it has more often", () => {
  for (const [name, value] of [["repetition_penalty", 1.5], ["presence_penalty", 2], ["frequency_penalty", 1]]) {
    const { before, after } = shares(name, value);
    assert.ok(after[0] < before[0] && after[4] < before[4], name);
    assert.ok(after[1] > before[1], `${name}: what the others lose, the rest gains`);
  }
  const { before, after } = shares("frequency_penalty", 1);
  assert.ok(after[4] / before[4] < after[2] / before[2]);
  assert.ok(shares("presence_penalty", -2).after[0] > before[0]);
});

test("other settings show whether they are set", () => {
  for (const [name, set] of [["stop", "END"], ["stop_regex", "x+"], ["forbidden_words", "foo"], ["json_schema", "{}"], ["seed", 0], ["max_tokens", 20]]) {
    assert.notDeepEqual(shapesOf(name, set), shapesOf(name, ""), name);
    assert.deepEqual(shapesOf(name, null), shapesOf(name, undefined), name);
  }
  const written = (tokens) => sum(kept("max_tokens", tokens).map(({ width }) => width));
  assert.ok(written(1) < written(100) && written(100) < written(2000));
});

test("nothing is drawn outside a picture, whatever the value", () => {
  const values = [0, 0.01, 0.5, 1, 1.07, 2, 5, 200, 1e9, -2, null, undefined, "", "a\nb", Number.NaN, Number.POSITIVE_INFINITY];
  const names = [
    ...["temperature", "top_k", "top_p", "min_p", "typical_p", "top_n_sigma", "repetition_penalty", "presence_penalty", "frequency_penalty"],
    ...["max_tokens", "max_thinking_tokens", "stop", "stop_regex", "forbidden_words", "seed", "json_schema"],
  ];
  for (const name of names) {
    for (const value of values) {
      for (const { x, y, width, height } of shapesOf(name, value)) {
        const says = `${name} ${value}`;
        assert.ok([x, y, width, height].every(Number.isFinite), says);
        assert.ok(x >= 0 && y >= 0 && width > 0 && height > 0 && x + width <= WIDTH + 0.01 && y + height <= HEIGHT + 0.01, `${says}: ${x} ${y} ${width} ${height}`);
      }
    }
  }
});
