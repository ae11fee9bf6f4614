import assert from "node:assert/strict";
import { test } from "node:test";

import { EMPTY, fieldsOf, nameFor, previewValues, templateOf } from "../../app/ui/pages/desk/template_fields.js";
import { sourceText, versionName } from "../../app/ui/pages/desk/template_text.js";

const PARAMETERS = ["temperature", "top_p"];
const variable = (name, value) => ({ name, description: `About ${name}`, default: value });
const template = (more = {}) => ({ ...EMPTY, title: "T", description: "D", body: "Hello", ...more });
/** The template after it was shown in the form and saved without a change. */
const saved = (kind, before) => templateOf(fieldsOf(before, PARAMETERS), kind, before.recommended);
const defaults = (kind, before) => saved(kind, before).variables.map((each) => each.default);

test("a template that nobody changes is saved as it was", () => {
  const prompt = template({ variables: [variable("a", "x"), variable("b", "")], recommended: { temperature: 0, top_p: 0.9, seed: 7, preset: null } });
  assert.deepEqual(saved("prompt", prompt), { ...prompt, recommended: { seed: 7, preset: null, temperature: 0, top_p: 0.9 } });
  const canned = template({ variables: [variable("a", null), variable("b", ""), variable("c", "x")] });
  assert.deepEqual(saved("canned", canned), canned);
});

test("a template without the fields that may be left out has empty ones", () => {
  const fields = fieldsOf({ title: "T", description: "D", body: "" }, PARAMETERS);
  assert.deepEqual(fields.variables, []);
  assert.deepEqual(fields.recommended, { temperature: "", top_p: "" });
  assert.deepEqual(fieldsOf(template({ variables: [{ name: "a", description: "A" }] }), []).variables[0].saved, null);
});

test("an empty default is a text in a prompt; in a canned reply it must be filled in, unless it was empty before", () => {
  assert.deepEqual(defaults("prompt", template({ variables: [variable("a", null), variable("b", ""), variable("c", "x")] })), ["", "", "x"]);
  const cleared = fieldsOf(template({ variables: [variable("a", "x"), variable("b", "")] }), []);
  for (const each of cleared.variables) each.default = "";
  assert.deepEqual(templateOf(cleared, "canned").variables.map((each) => each.default), [null, ""]);
});

test("an emptied setting is left to the model, zero is a setting, and those without a field stay", () => {
  const before = { temperature: 0.5, top_p: 0.9, seed: 7 };
  const fields = fieldsOf(template({ recommended: before }), PARAMETERS);
  assert.deepEqual(fields.recommended, { temperature: "0.5", top_p: "0.9" });
  fields.recommended = { temperature: "0", top_p: "" };
  assert.deepEqual(templateOf(fields, "prompt", before).recommended, { seed: 7, temperature: 0 });
  assert.deepEqual(templateOf(fields, "canned", before).recommended, {}, "a canned reply recommends nothing");
});

test("spaces around titles and names are not saved, those of the text and of a default are", () => {
  const fields = fieldsOf(template({ title: " T ", description: " D\t", body: " text \n", variables: [{ name: " a ", description: " b ", default: " c " }] }), []);
  assert.deepEqual(templateOf(fields, "prompt"), {
    title: "T",
    description: "D",
    variables: [{ name: "a", description: "b", default: " c " }],
    recommended: {},
    tools: [],
    min_parameters: null,
    body: " text \n",
  });
});

test("a prompt keeps its tool servers, and a canned reply has none", () => {
  const fields = fieldsOf(template({ tools: ["orders", "search"] }), []);
  assert.deepEqual(templateOf(fields, "prompt").tools, ["orders", "search"]);
  assert.deepEqual(templateOf(fields, "canned").tools, []);
});

test("a preview has a value for each variable that must be filled in, and for no other", () => {
  assert.deepEqual(previewValues(template({ variables: [variable("a", null), variable("b", ""), variable("c", "x"), { name: "d", description: "D" }] })), { a: "[a]", d: "[d]" });
  assert.deepEqual(previewValues(EMPTY), {});
});

test("a new template's name is its title in the letters that a name may have", () => {
  const names = {
    "Support desk": "support-desk",
    "  Ask, again!  ": "ask-again",
    "Résumé Ångström": "resume-angstrom",
    "ﬁle №1": "file-no1",
    "ℌello": "hello",
    "İstanbul": "istanbul",
    "--": "prompt-1",
  };
  for (const [title, name] of Object.entries(names)) assert.equal(nameFor(title, "prompt", []), name, title);
});

test("titles without such a letter get names of their own", () => {
  for (const title of ["Приветствие", "挨拶", "🙂", ""]) assert.equal(nameFor(title, "canned", []), "canned-1", title);
  assert.equal(nameFor("挨拶", "canned", ["canned-1", "canned-2", "canned-4"]), "canned-3");
  assert.equal(nameFor("Support", "canned", ["support"]), "support", "who takes a title twice is told so");
});

test("every name is one that the server takes, however long or odd its title", () => {
  const titles = ["½".repeat(60), "a".repeat(63) + " b", "-".repeat(60), "ß-é_x", "\u{d800}x", "㎏ ".repeat(30), `${"a ".repeat(40)}`];
  for (const title of titles) {
    const name = nameFor(title, "prompt", []);
    assert.match(name, /^[a-z0-9]+(-[a-z0-9]+)*$/, title);
    assert.ok(name.length <= 64);
  }
});

test("a version says who wrote it; the one from the file has no author", () => {
  const view = { name: "n", removed: false, template: template(), author: "ada", created_at: "2026-03-29T12:00:00Z", version: 2 };
  assert.equal(versionName(view), "Version 2");
  assert.match(sourceText(view), /^by ada, .*2026/);
  assert.match(sourceText({ ...view, author: null }), /^by a deleted user, /);
  const file = { ...view, version: 0, author: null, created_at: null };
  assert.deepEqual([versionName(file), sourceText(file)], ["Original", "included with Deskmate"]);
});
