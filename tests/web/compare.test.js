import assert from "node:assert/strict";
import { test } from "node:test";

import { headingsOf, versionNote } from "../../app/ui/components/chat/difference_texts.js";
import { differingWords, markedWords, wordsOf } from "../../app/ui/components/chat/word_diff.js";
import { NO_PROMPT, OWN_PROMPT, promptChoice, sameReplies, settingsOf, unchanged } from "../../app/ui/pages/chat/compare_variants.js";
import { SettingsRules } from "../../app/ui/components/settings/settings_rules.js";

/** @param {string} text */
const split = (text) => wordsOf(text).map((word) => word.text);

/** The words that are marked. @param {string} left @param {string} right */
function told(left, right) {
  const marks = differingWords(split(left), split(right));
  return marks && [split(left).filter((_, index) => marks.left[index]), split(right).filter((_, index) => marks.right[index])];
}

test("the words that only one of two texts has are told, whatever stands between them", () => {
  assert.deepEqual(told("a red cat sat down", "a blue cat sat"), [["red", "down"], ["blue"]]);
  assert.deepEqual(told("same  words", "same\nwords"), [[], []]);
  assert.deepEqual(told("", "new text"), [[], ["new", "text"]]);
  assert.deepEqual(told("b a b", "a"), [["b", "b"], []]);
});

test("texts too long to compare word by word are not marked, however alike they begin and end", () => {
  const many = (/** @type {string} */ word) => Array.from({ length: 2001 }, (_, index) => `${word}${index}`);
  assert.equal(differingWords(many("a"), many("b")), null);
  assert.deepEqual(differingWords(many("a"), many("a"))?.left.filter(Boolean), []);
  assert.deepEqual(markedWords([many("a"), many("b")]), [null, null]);
});

test("of several texts each is compared with the first, and the first marks what no other has", () => {
  assert.deepEqual(markedWords([split("one two three"), split("one two"), split("one four")]), [
    [false, false, true],
    [false, false],
    [false, true],
  ]);
});

const parameter = (/** @type {string} */ name, /** @type {boolean} */ isSlider) => ({ name, label: name, kind: "number", unit: "", unset: null, is_slider: isSlider, is_advanced: false, is_recommendable: false });
const rules = new SettingsRules([parameter("temperature", true), parameter("top_p", true), parameter("seed", false)]);
const presets = [{ name: "precise", title: "Precise", description: "", temperature: 0.2, top_p: null }];

test("a column changes only what is filled in, and a number on top of its preset", () => {
  const chat = { ...rules.empty, temperature: 0.9, system_prompt: "Be kind." };
  assert.deepEqual(settingsOf(chat, unchanged(), rules, presets), chat);
  const precise = settingsOf(chat, { ...unchanged(), preset: "precise", top_p: "0.5", seed: "7" }, rules, presets);
  assert.deepEqual([precise.temperature, precise.top_p, precise.seed, precise.preset], [0.2, 0.5, 7, null]);
  assert.equal(settingsOf(chat, { ...unchanged(), prompt: NO_PROMPT }, rules, presets).system_prompt, "");
  assert.equal(settingsOf(chat, { ...unchanged(), prompt: OWN_PROMPT, text: "Rhyme." }, rules, presets).system_prompt, "Rhyme.");
  const named = settingsOf(chat, { ...unchanged(), prompt: promptChoice("none") }, rules, presets); // a prompt of that name
  assert.deepEqual([named.system_prompt_name, named.system_prompt], ["none", ""]);
  assert.throws(() => settingsOf(chat, { ...unchanged(), seed: "1.5" }, rules, presets), /whole number/);
});

test("columns that can only write the same reply are told before they are written", () => {
  const random = { ...rules.empty };
  const seeded = { ...rules.empty, seed: 3 };
  const greedy = { ...rules.empty, temperature: 0 };
  assert.equal(sameReplies([random, random, seeded, greedy]), null);
  assert.deepEqual(sameReplies([random, seeded, { ...seeded, preset: "precise" }]), ["B", "C"]);
  assert.deepEqual(sameReplies([greedy, { ...greedy }]), ["A", "B"]);
});

/** @param {object} settings @returns {any} */
const version = (settings) => ({ settings: { ...rules.empty, ...settings }, message: { id: "x", model: "guide" } });

test("a heading says in what a reply differs from the others, and no more", () => {
  assert.deepEqual(headingsOf([version({ temperature: 0.2, top_p: 0.5 }), version({ temperature: null, top_p: 0.5 })]), ["temperature 0.2", "temperature default"]);
  assert.deepEqual(headingsOf([version({}), version({ seed: 5 })]), ["Same settings, another seed", "Same settings, another seed"]);
  assert.deepEqual(headingsOf([version({}), version({ system_prompt: `Be ${"very ".repeat(40)}kind` })])[0], "No system prompt");
});

test("beside its arrows, a version says in what it differs from the one before", () => {
  const message = { id: "b", role: /** @type {const} */ ("assistant"), content: "", siblings: ["a", "b"] };
  const differences = [{ name: "temperature", value: 1.2, other: null }];
  assert.equal(versionNote({ ...message, differences }), "temperature 1.2, not default as in version 1");
  assert.equal(versionNote({ ...message, id: "a", edited: true }), "Edited by you · Same settings as version 2");
  assert.equal(versionNote({ ...message, siblings: ["b"] }), "");
});
