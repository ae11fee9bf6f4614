import assert from "node:assert/strict";
import { test } from "node:test";

import "./fakes.js";
import { splitCitations } from "../../app/ui/components/chat/citation_marks.js";
import { headingBelowTitle } from "../../app/ui/components/chat/citations.js";
import { withFootnotes } from "../../app/ui/components/chat/footnotes.js";
import { divide } from "../../app/ui/pages/chat/source_viewer.js";
import { signOf } from "../../app/ui/pages/chat/sources_sign.js";

test("a document's title is not repeated by its first heading", () => {
  const below = (title, heading) => headingBelowTitle({ number: 1, title, heading, text: "" });
  assert.equal(below("Deploy", "Deploy > Upgrades"), "Upgrades");
  assert.equal(below("Deploy", "Deploy"), "");
  assert.equal(below("Deploy", "Upgrades"), "Upgrades");
  assert.equal(below("Deploy", ""), "");
  assert.equal(below("Deploy", "Deployments > Upgrades"), "Deployments > Upgrades");
});

test("only numbers that are cited are citations", () => {
  const split = (text, ...cited) => splitCitations(text, (number) => cited.includes(number));
  assert.deepEqual(split("Red [1], blue [2][1].", 1, 2), ["Red ", 1, ", blue ", 2, 1, "."]);
  assert.deepEqual(split("Red [1] and [7].", 1), ["Red ", 1, " and [7]."]);
  assert.deepEqual(split("[1]", 1), [1]);
  assert.deepEqual(split("[01] [1a] [ 1 ] [1] [1000]", 1), ["[01] [1a] [ 1 ] ", 1, " [1000]"]);
  assert.deepEqual(split("nothing", 1), ["nothing"]);
});

const COLOURS = { number: 1, title: "Colours", heading: "Colours > Red", text: "Red is *warm*,\n and loud.", version: 2 };

test("a copied reply has its citations as footnotes, and code as it is", () => {
  assert.equal(withFootnotes("Warm [1].", []), "Warm [1].");
  assert.equal(
    withFootnotes("Warm [1], `a[1]`, [2].\n```\nb[1]\n```\nLoud [1]", [COLOURS]),
    "Warm [^1], `a[1]`, [2].\n```\nb[1]\n```\nLoud [^1]\n\n[^1]: Colours \\> Red, version 2: Red is \\*warm\\*, and loud.\n",
  );
  assert.match(withFootnotes("Warm [1].", [{ ...COLOURS, heading: "", text: "", withheld: "It isn't shown." }]), /: Colours, version 2: It isn't shown\.\n$/);
  assert.match(withFootnotes("Warm [1].", [{ ...COLOURS, heading: "", title: "[x](y) [1]" }]), /\[\^1\]: \[x\\\]\(y\) \[1\\\],/); // no link, and no mathematics
  assert.match(withFootnotes("`open [1]", [COLOURS]), /^`open \[\^1\]/); // a backtick without its like is text
});

test("offsets into a document are code points", () => {
  const passage = { start: 102, end: 106 };
  assert.deepEqual(divide({ text: "🙂🙂warm🙂", start: 100 }, passage), ["🙂🙂", "warm", "🙂"]);
  assert.deepEqual(divide({ text: "rm", start: 104 }, passage), ["", "rm", ""]); // the window begins within it
});

test("the sign below the message box names the sources, and what is gone", () => {
  const all = ["Orders", "Returns", "Repairs"].map((name) => ({ id: name.toLowerCase(), name, is_empty: false }));
  assert.equal(signOf([], []), null);
  assert.equal(signOf([], [{ ...all[0], is_empty: true }]), null);
  assert.equal(signOf([], all).text, "Sources: none");
  assert.equal(signOf(["returns", "orders"], all).text, "Sources: Orders, Returns");
  assert.equal(signOf(["orders", "returns", "repairs"], all).text, "Sources: Orders, Returns and 1 more");
  assert.equal(signOf(["orders", "other"], all).isGone, true);
});
