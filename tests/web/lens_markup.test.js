import assert from "node:assert/strict";
import { test } from "node:test";

import { MARK, markupClasses, markupOf } from "../../app/ui/components/chat/lens_markup.js";

/** The text with a dot for each mark. @param {string} text */
const unmarked = (text) => [...markupOf(text)].map((bits, index) => (bits & MARK ? "·" : text[index])).join("");

test("the marks of Markdown are told from the text, wherever they stand", () => {
  for (const [text, shown] of [
    ["A **bold *and em* x** `code`", "A ··bold ·and em· x·· ·code·"],
    ["# Head **x**\n\ntext", "··Head ··x··\n\ntext"],
    ["> quote\n> more *em*", "··quote\n··more ·em·"],
    ["- one\n- **two**\n  - three\n", "··one·····two·······three·"],
    ["```python\nx = 1\n**no**\n```\nafter", "··········x = 1\n**no**·····after"],
    ["    indented\n", "····indented\n"],
    ["see [link](http://x.y) and \\*esc", "see ·link············· and ·*esc"],
    ["$x^2$ costs $5 and 6", "·x^2· costs $5 and 6"],
    ["note[^1]", "note··1·"],
    ["a ** b and 5 * 6", "a ** b and 5 * 6"],
  ]) assert.equal(unmarked(text), shown);
});

test("characters have the styles of all that they stand in", () => {
  const bits = markupOf("**a *b*** `c`");
  assert.deepEqual([2, 5, 11].map((at) => markupClasses(bits[at])), ["dm-lens-strong", "dm-lens-strong dm-lens-em", "dm-lens-code"]);
  assert.equal(markupClasses(bits[0]), "dm-lens-mark dm-lens-strong");
  assert.equal(markupClasses(markupOf("plain")[0]), "");
});

test("what the parser changes stays plain, and no text is too odd", () => {
  for (const text of ["x\r\n**y**", "    two\n    lines\n"]) assert.equal(unmarked(text), text);
  for (const text of ["", "\n", "| a |\n|---|\n| x \\| y |\n", "> ".repeat(40) + "deep", "*".repeat(3000), "1. a\n\n   b\n> c"]) assert.equal(markupOf(text).length, text.length);
});
