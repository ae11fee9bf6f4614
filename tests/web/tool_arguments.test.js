import assert from "node:assert/strict";
import { test } from "node:test";

import { readableArguments } from "../../app/ui/components/chat/tool_arguments.js";

test("arguments are JSON with line breaks, in the form of JSON.stringify", () => {
  for (const value of [{}, [], { a: [] }, { a: { b: [1, "x,{}[]:\"\n\\", null] }, c: true }, 7, "text", { "größe": "ä" }]) {
    for (const text of [JSON.stringify(value), JSON.stringify(value, null, 7)]) {
      assert.equal(readableArguments(text), JSON.stringify(value, null, 2));
    }
  }
});

test("numbers are shown as they are sent, and both members of a name", () => {
  assert.equal(readableArguments('{"account":12345678901234567890,"rate":1.10}'), '{\n  "account": 12345678901234567890,\n  "rate": 1.10\n}');
  assert.equal(readableArguments("1e999"), "1e999");
  assert.equal(readableArguments('{"to":1,"to":2}'), '{\n  "to": 1,\n  "to": 2\n}');
});

test("text that is not JSON is shown as it is", () => {
  for (const text of ["", '{"number"', "delete all", '{"a": 1} {"b": 2}']) assert.equal(readableArguments(text), text);
});

test("what would reorder or hide text is shown as an escape", () => {
  assert.equal(readableArguments('"\u202egnp.exe"'), '"\\u202egnp.exe"');
  assert.equal(readableArguments('"a\\u202eb"'), '"a\\u202eb"');
  assert.equal(readableArguments("a\u200bb\u{e0041}"), "a\\u200bb\\udb40\\udc41");
  assert.equal(readableArguments('"👩‍👩‍👧 \u05d0"'), '"👩‍👩‍👧 \u05d0"'); // a family, and Hebrew
});
