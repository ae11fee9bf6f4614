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
const { printed, shortcutFor } = await import("../../app/ui/pages/chat/shortcuts.js");
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
  assert.deepEqual(["n", "mod+k", "escape"].map(printed), ["N", "Ctrl+K", "Esc"]);
});

test("an entry is found by all of the words, wherever they are", () => {
  const entry = { key: "", title: "Appearance", words: "theme dark", run() {} };
  assert.ok(matches(entry, "DARK appear") && matches(entry, ""));
  assert.ok(!matches(entry, "dark models"));
});
