import assert from "node:assert/strict";
import { test } from "node:test";

import { NO_ADAPTER, NO_PROMPT, OWN_TEXT, SettingsRules } from "../../app/ui/components/settings/settings_rules.js";

const slider = { kind: "number", is_slider: true, is_advanced: false, unset: null };
const RULES = new SettingsRules([
  { ...slider, name: "temperature", label: "Temperature" },
  { ...slider, name: "typical_p", label: "Typical-p", is_advanced: true },
  { ...slider, name: "max_tokens", label: "Maximum length", is_slider: false },
  { ...slider, name: "stop", label: "Stop strings", kind: "strings", is_slider: false, unset: [] },
]);
const DEFAULTS = { temperature: 0.7, typical_p: 1 };
const PRESETS = [
  { name: "default", temperature: null, typical_p: null },
  { name: "precise", temperature: 0.2, typical_p: null },
];
const shown = (value, more = {}) => RULES.shown({ ...RULES.empty, ...value }, { defaults: DEFAULTS, ...more });

test("what is not chosen is shown as the model's default", () => {
  const { preset, temperature, typical_p, max_tokens, stop, system_prompt_name } = shown({});
  assert.deepEqual([preset, temperature, typical_p, max_tokens, stop], ["default", 0.7, 1, null, ""]);
  assert.equal(system_prompt_name, NO_PROMPT);
  assert.equal(shown({ temperature: 0 }).temperature, 0, "zero is chosen");
});

test("the preset is the saved one, the default if no slider was moved, one that fits, or custom", () => {
  assert.equal(shown({ preset: "precise", temperature: 0.2 }).preset, "precise");
  assert.equal(shown({ temperature: 0.3 }, { presets: PRESETS }).preset, "custom", "none fits");
  assert.equal(shown({ temperature: 0.2 }, { presets: PRESETS }).preset, "precise", "set by hand, and fits");
  assert.equal(shown({ max_tokens: 5 }).preset, "default");
  assert.equal(shown({ temperature: 0.3 }, { preset: "precise" }).preset, "precise", "chosen, without an answer yet");
});

test("a slider at the model's default is saved as null, and ends the preset; length and stop strings do not", () => {
  const precise = RULES.withPreset(RULES.empty, "precise", PRESETS);
  assert.deepEqual([precise.preset, precise.temperature], ["precise", 0.2]);
  const moved = RULES.withParameter(precise, "temperature", 0.7, DEFAULTS);
  assert.deepEqual([moved.preset, moved.temperature], [null, null]);
  const longer = RULES.withParameter(precise, "max_tokens", 20, DEFAULTS);
  assert.deepEqual([longer.preset, longer.max_tokens], ["precise", 20]);
  assert.equal(RULES.withParameter(longer, "max_tokens", undefined, DEFAULTS).max_tokens, null);
});

test("stop strings are a line each, without empty ones, and read back as they were", () => {
  const { stop } = RULES.withParameter(RULES.empty, "stop", "END\n\n STOP \n", DEFAULTS);
  assert.deepEqual(stop, ["END", " STOP "]);
  assert.equal(shown({ stop }).stop, "END\n STOP ");
  assert.deepEqual(RULES.withParameter(RULES.empty, "stop", null, DEFAULTS).stop, []);
});

test("the default preset, and one that is unknown, leave every slider to the model", () => {
  const moved = { ...RULES.empty, temperature: 1.5, typical_p: 0.5 };
  for (const [name, saved] of [["default", null], ["gone", "gone"]]) {
    const { preset, temperature, typical_p } = RULES.withPreset(moved, name, PRESETS);
    assert.deepEqual([preset, temperature, typical_p], [saved, null, null]);
  }
});

test("recommended sampling replaces the sliders, and is then known to be in use", () => {
  const prompt = { recommended: { temperature: 0.3, stop: ["END"] } };
  const before = { ...RULES.empty, preset: "precise", typical_p: 0.5, max_tokens: 9 };
  assert.equal(RULES.usesRecommended(before, prompt), false);
  const after = RULES.withRecommended(before, prompt.recommended);
  assert.deepEqual([after.preset, after.temperature, after.typical_p, after.max_tokens], [null, 0.3, null, 9]);
  assert.equal(RULES.usesRecommended(after, prompt), true);
  assert.equal(RULES.usesRecommended(after, undefined), true);
});

test("a named prompt and an own text exclude each other", () => {
  const own = RULES.withOwnText({ ...RULES.empty, system_prompt_name: "desk", system_prompt_variables: { a: "b" } }, "Be brief.");
  assert.deepEqual([own.system_prompt_name, own.system_prompt_variables, own.system_prompt], [null, {}, "Be brief."]);
  assert.equal(shown(own).system_prompt_name, OWN_TEXT);
  const named = RULES.withNamedPrompt(own, "desk");
  assert.deepEqual([named.system_prompt_name, named.system_prompt], ["desk", ""]);
  assert.equal(shown(named, { promptText: "The desk's text." }).system_prompt, "The desk's text.");
  assert.equal(shown(named, { prompt: "other" }).system_prompt_name, "other", "chosen, without an answer yet");
  assert.equal(RULES.choosesOwnText(named, ""), true);
  assert.equal(RULES.choosesOwnText(own, "Be briefer."), false);
  assert.equal(RULES.choosesOwnText(own, ""), true);
});

test("only advanced parameters are counted as changed", () => {
  assert.equal(RULES.countChangedAdvanced({ ...RULES.empty, temperature: 1 }), 0);
  assert.equal(RULES.countChangedAdvanced({ ...RULES.empty, typical_p: 0 }), 1);
});

test("a value outside its range is told by its label; an empty field has none", () => {
  const range = { min: 0, max: 2 };
  assert.equal(RULES.rangeError("temperature", 7, range), "Temperature must be between 0 and 2.");
  assert.equal(RULES.rangeError("max_tokens", 0, { min: 1, max: null }), "Maximum length must be at least 1.");
  for (const value of [0, 2, null, undefined, ""]) assert.equal(RULES.rangeError("temperature", value, range), null);
});

test("the adapter that is saved can be chosen again, also while it isn't loaded", () => {
  const chosen = RULES.withParameter({ ...RULES.empty, preset: "precise" }, "adapter", "sql", DEFAULTS);
  assert.deepEqual([chosen.adapter, chosen.preset, shown(chosen).adapter], ["sql", "precise", "sql"]);
  assert.equal(RULES.withParameter(chosen, "adapter", NO_ADAPTER, DEFAULTS).adapter, null);
  assert.equal(shown({}).adapter, NO_ADAPTER);
  assert.deepEqual(RULES.adapterChoices(RULES.empty, []), []);
  assert.deepEqual(RULES.adapterChoices(RULES.empty, ["a"]), [["None", NO_ADAPTER], ["a", "a"]]);
  assert.deepEqual(RULES.adapterChoices(chosen, ["sql"]), [["None", NO_ADAPTER], ["sql", "sql"]]);
  assert.deepEqual(RULES.adapterChoices(chosen, []), [["None", NO_ADAPTER], ["sql (not loaded)", "sql"]]);
});

test("sources are the collections' ids; a collection that is gone can still be unticked", () => {
  assert.deepEqual(shown({}).collections, []);
  const chosen = RULES.withParameter(RULES.empty, "collections", ["a", "gone"], DEFAULTS);
  assert.deepEqual(shown(chosen).collections, ["a", "gone"]);
  assert.equal(chosen.preset, null);
  const moved = RULES.withParameter(chosen, "temperature", 0.3, DEFAULTS);
  assert.deepEqual(moved.collections, ["a", "gone"], "another setting leaves them");
  const usable = [{ id: "a", name: "Manuals", is_empty: true }, { id: "b", name: "Orders", is_empty: false }, { id: "c", name: "None", is_empty: true }];
  const choices = RULES.collectionChoices(chosen, usable);
  assert.deepEqual(choices, [["Manuals", "a"], ["Orders", "b"], ["A collection that is gone", "gone"]], "a chosen one may be empty");
  assert.deepEqual(RULES.collectionChoices(RULES.empty, usable), [["Orders", "b"]]);
  assert.deepEqual(RULES.collectionChoices(RULES.empty, []), []);
  assert.deepEqual(RULES.withParameter(chosen, "collections", null, DEFAULTS).collections, []);
});

test("what is not at its default is known, and goes back to it alone", () => {
  const value = { ...RULES.empty, preset: "precise", temperature: 0, stop: ["END"], json_schema: "", use_tools: false };
  const changed = ["temperature", "typical_p", "stop", "json_schema", "use_tools"].filter((name) => RULES.isChanged(value, name));
  assert.deepEqual(changed, ["temperature", "stop", "use_tools"]);
  const withoutStop = RULES.withDefault(value, "stop");
  assert.deepEqual([withoutStop.stop, withoutStop.temperature, withoutStop.preset], [[], 0, "precise"]);
  const cooler = RULES.withDefault(value, "temperature");
  assert.deepEqual([cooler.temperature, cooler.preset, cooler.stop], [null, null, ["END"]]);
});

test("a preset of one's own sets every slider, and is found again by its values", () => {
  const all = RULES.allPresets(PRESETS, [{ id: "7", name: "Wild", values: { temperature: 1.3 } }]);
  assert.deepEqual(all.at(-1), { name: "own:7", title: "Wild", description: "", temperature: 1.3, typical_p: null });
  const wild = RULES.withPreset({ ...RULES.empty, typical_p: 0.5 }, "own:7", all);
  assert.deepEqual([wild.preset, wild.temperature, wild.typical_p], [null, 1.3, null]);
  assert.equal(shown(wild, { presets: all }).preset, "own:7");
  assert.equal(shown(wild, { presets: PRESETS }).preset, "custom", "deleted meanwhile");
});
