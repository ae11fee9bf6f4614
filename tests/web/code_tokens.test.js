import assert from "node:assert/strict";
import { readdirSync } from "node:fs";
import { test } from "node:test";

import hljs from "../../app/ui/shared/vendor/highlight/core.min.js";
import { divide, grammarOf, readPieces } from "../../app/ui/components/chat/code_tokens.js";
import { Highlighting } from "../../app/ui/components/chat/highlighting.js";

const GRAMMARS = new URL("../../app/ui/shared/vendor/highlight/languages/", import.meta.url);
const textOf = (pieces) => pieces.map(([, text]) => text).join("");
const CODE = `<a b='c'> & "d" \\ // x\n/* two\nlines */ f(x_1, 1.5) \`\${y}\` # é 😀\n`.repeat(40);

test("each grammar has its file, and each file its grammar; the text stays as it was", async () => {
  const files = readdirSync(GRAMMARS).map((name) => name.replace(".min.js", ""));
  for (const file of files) {
    assert.equal(grammarOf(file), file);
    hljs.registerLanguage(file, (await import(new URL(`${file}.min.js`, GRAMMARS))).default);
    const pieces = readPieces(hljs.highlight(CODE, { language: file, ignoreIllegals: true }).value);
    assert.equal(textOf(pieces), CODE, file);
  }
  assert.deepEqual(["py", "TSX", "c++", "html", "toml", "sh"].map(grammarOf), ["python", "typescript", "cpp", "xml", "ini", "bash"]);
  for (const name of ["", "nonsense", "__proto__", "../core", "constructor"]) assert.equal(grammarOf(name), undefined);
});

test("the kinds of pieces: the innermost that has one; what stands in a string is code again", () => {
  const html = '<span class="hljs-keyword">def</span> <span class="hljs-title function_">f</span> <span class="hljs-string">&quot;<span class="hljs-subst">{x}</span>&lt;&quot;</span>';
  assert.deepEqual(readPieces(html), [["keyword", "def"], ["", " "], ["title", "f"], ["", " "], ["string", '"'], ["", "{x}"], ["string", '<"']]);
});

test("a text that grows keeps its first parts, and every part ends with a line", () => {
  const pieces = (length) => readPieces(hljs.highlight(CODE.slice(0, length), { language: "python", ignoreIllegals: true }).value);
  const whole = divide(pieces(CODE.length), 100).map(textOf);
  assert.equal(whole.join(""), CODE);
  for (const part of whole.slice(0, -1)) assert.match(part, /\n$/);
  for (let length = 1; length < CODE.length; length += 37) {
    const parts = divide(pieces(length), 100).map(textOf);
    assert.deepEqual(parts.slice(0, -1), whole.slice(0, parts.length - 1));
    assert.ok(whole[parts.length - 1].startsWith(parts.at(-1)));
  }
  assert.deepEqual(divide([["", "x".repeat(500)]], 100), [[["", "x".repeat(500)]]], "a line is not divided");
  assert.deepEqual(divide([], 100), []);
});

/** A worker whose work is the test. */
class FakeWorker {
  static made = [];
  asked = [];
  terminated = false;
  constructor() {
    FakeWorker.made.push(this);
  }
  postMessage(task) {
    this.asked.push(task);
  }
  answer(parts, id = this.asked.at(-1).id) {
    this.onmessage({ data: { id, parts } });
  }
  terminate() {
    this.terminated = true;
  }
}

test("one text is asked at a time, an answer is remembered, and one that comes late is not taken for another's", async () => {
  FakeWorker.made = [];
  const highlighting = new Highlighting(() => new FakeWorker());
  const [first, second] = [highlighting.ask("a", "python"), highlighting.ask("b", "python")];
  const [worker] = FakeWorker.made;
  assert.deepEqual(worker.asked.map(({ text }) => text), ["a"]);
  worker.answer(["a"]);
  assert.deepEqual(await first, ["a"]);
  worker.answer(["stale"], worker.asked[0].id);
  worker.answer(["b"]);
  assert.deepEqual(await second, ["b"]);
  assert.deepEqual(await highlighting.ask("b", "python"), ["b"]);
  assert.equal(worker.asked.length, 2);
  assert.equal(highlighting.known("bcd", "python")?.text, "b");
  assert.equal(highlighting.known("bcd", "ruby"), undefined);
});

test("a worker that takes too long is ended, and its text stays without colours; the next has a new one", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  FakeWorker.made = [];
  const highlighting = new Highlighting(() => new FakeWorker());
  const [endless, next] = [highlighting.ask("endless", "python"), highlighting.ask("x", "python")];
  t.mock.timers.tick(5000);
  assert.equal(await endless, null);
  assert.equal(FakeWorker.made[0].terminated, true);
  FakeWorker.made[1].answer(["x"]);
  assert.deepEqual(await next, ["x"]);
});

test("without workers, code has no colours, and nothing fails", async () => {
  const highlighting = new Highlighting(() => {
    throw new DOMException("no workers here", "SecurityError");
  });
  assert.equal(await highlighting.ask("x", "python"), null);
  assert.equal(await highlighting.ask("y", "python"), null);
});
