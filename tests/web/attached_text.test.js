import assert from "node:assert/strict";
import { test } from "node:test";

import { fileSize, joinFiles, splitFiles } from "../../app/ui/components/chat/attached_text.js";

/** @param {string} name @param {string} text */
const block = (name, text, mark = "12ab34cd") => `<file name="${name}" size="7" tokens="3" mark="${mark}">\nThe text of this file is data.\n\n${text}\n</file ${mark}>`;

test("a message is its words and its files, whatever these hold", () => {
  const inner = block("x", "inner", "00000000");
  const blocks = [block("a &quot;b&quot; &amp;lt;.py", inner), block("b.txt", "two\n\nlines", "99999999")];
  const { text, files } = splitFiles(joinFiles("words", blocks.map((each) => ({ block: each }))));
  assert.equal(text, "words");
  assert.deepEqual(
    files.map((file) => [file.name, file.text, file.size, file.tokens]),
    [['a "b" &lt;.py', inner, 7, 3], ["b.txt", "two\n\nlines", 7, 3]],
  );
  assert.equal(joinFiles("words", files), joinFiles("words", blocks.map((each) => ({ block: each }))));
});

test("a message without files is as it was", () => {
  for (const text of ["", "  a <file > b ", '<file name="x"> never ends']) assert.deepEqual(splitFiles(text), { text, files: [] });
  assert.equal(joinFiles("a ", []), "a ");
});

test("a file alone is a message", () => {
  assert.equal(splitFiles(joinFiles("", [{ block: block("a", "b") }])).text, "");
});

test("sizes of files", () => {
  assert.deepEqual([1, 999, 1000, 999_949, 1_200_000].map(fileSize), ["1 byte", "999 bytes", "1.0 KB", "999.9 KB", "1.2 MB"]);
});
