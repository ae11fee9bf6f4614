import assert from "node:assert/strict";
import { test } from "node:test";

globalThis.Element = class {
  constructor(matching = "") {
    this.matching = matching;
  }
  closest(selector) {
    return this.matching && selector.includes(this.matching) ? this : null;
  }
};
globalThis.document = { querySelector: () => null };
const { printed, shortcutFor } = await import("../../app/ui/shared/shortcuts.js");
const { shortcuts: shortcutsOfCases } = await import("../../app/ui/pages/cases/keyboard.js");
const { matches } = await import("../../app/ui/pages/chat/palette.js");

const table = ["n", "?", "mod+k", "escape"].map((key) => ({ key, name: key, run() {} }));
const pressed = (key, more = {}, on = true) =>
  shortcutFor(table, { key, code: /^[a-z]$/i.test(key) ? `Key${key.toUpperCase()}` : "", keyCode: 1, target: new Element(), ...more }, { on })?.key;

test("a key does what the table says, whatever the layout, and nothing with other modifiers", () => {
  assert.equal(pressed("n"), "n");
  assert.equal(pressed("?", { shiftKey: true }), "?");
  assert.equal(pressed("т", { code: "KeyN" }), "n");
  assert.equal(pressed("k", { ctrlKey: true }), "mod+k");
  assert.equal(pressed("K", { ctrlKey: true }), "mod+k");
  for (const more of [{ altKey: true }, { metaKey: true }, { ctrlKey: true }, { shiftKey: true }, { repeat: true }, { defaultPrevented: true }]) {
    assert.equal(pressed("n", more), undefined, JSON.stringify(more));
  }
  assert.equal(pressed("K", { ctrlKey: true, shiftKey: true }), undefined, "it is the browser's");
});

test("while a text is typed or composed, or a dialog is open, single keys are text", () => {
  for (const field of ["textarea", "contenteditable", "select"]) assert.equal(pressed("n", { target: new Element(field) }), undefined);
  assert.equal(pressed("k", { ctrlKey: true, target: new Element("textarea") }), "mod+k");
  assert.equal(pressed("n", { isComposing: true }), undefined);
  assert.equal(pressed("n", { keyCode: 229 }), undefined);
  assert.equal(pressed("k", { ctrlKey: true, target: new Element("dialog") }), undefined);
});

test("single keys can be turned off; those with a modifier, and Escape, stay", () => {
  assert.deepEqual([pressed("n", {}, false), pressed("?", {}, false)], [undefined, undefined]);
  assert.deepEqual([pressed("k", { ctrlKey: true }, false), pressed("Escape", {}, false)], ["mod+k", "escape"]);
  assert.deepEqual(["n", "mod+k", "escape", "mod+enter"].map(printed), ["N", "Ctrl+K", "Esc", "Ctrl+Enter"]);
});

test("Escape closes what is open before it does anything else", () => {
  globalThis.document = { querySelector: (selector) => (selector === ":popover-open" ? {} : null) };
  assert.deepEqual([pressed("Escape"), pressed("n")], [undefined, "n"]);
  globalThis.document = { querySelector: () => null };
});

test("the page of cases has keys of its own in the same table", () => {
  const ran = [];
  const cases = shortcutsOfCases((command) => ran.push(command) > 0);
  const press = (key, more = {}, on = true) => shortcutFor(cases, { key, code: "", keyCode: 1, target: new Element(), ...more }, { on });
  for (const key of ["j", "k", "r", "n", "a", "e", "s", "/", "?", "Enter", "Escape"]) press(key)?.run();
  assert.deepEqual(ran, ["next", "previous", "reply", "note", "assign", "resolve", "snooze", "search", "keys", "enter", "leave"]);
  assert.equal(press("Enter", { target: new Element("button") }), undefined, "it presses what has the focus");
  assert.equal(press("Escape", { target: new Element("textarea") })?.key, "escape", "also out of a field");
  assert.equal(press("j", { repeat: true })?.key, "j");
  assert.equal(press("e", { repeat: true }), undefined, "a held key resolves no second case");
  assert.equal(press("e", {}, false), undefined);
});

test("an entry is found by all of the words, wherever they are", () => {
  const entry = { key: "", title: "Appearance", words: "theme dark", run() {} };
  assert.ok(matches(entry, "DARK appear") && matches(entry, ""));
  assert.ok(!matches(entry, "dark models"));
});
