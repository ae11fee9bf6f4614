import "./fakes.js";

import assert from "node:assert/strict";
import { test } from "node:test";

import { markdownTree, plainTree } from "../../app/ui/widget/message_text.js";
import { comingMoment } from "../../app/ui/widget/hours.js";
import { bestLanguage } from "../../app/ui/widget/texts.js";

const HOSTILE = [
  "<script>alert(1)</script>",
  '<img src=x onerror="alert(1)">',
  "[click](javascript:alert(1))",
  "[click](data:text/html,<script>alert(1)</script>)",
  "![picture](https://elsewhere.example/pixel.png)",
  "<a href='javascript:alert(1)'>x</a>",
  "a <b>b</b> c\n\n<iframe src='https://elsewhere.example'></iframe>",
  "| a | <svg/onload=alert(1)> |\n| --- | --- |\n| 1 | 2 |",
  "[x]: javascript:alert(1)\n\n[x]",
  "JAVASCRIPT:alert(1) java\nscript:alert(1) <javascript:alert(1)>",
];
const TAGS = new Set("p pre code blockquote ul ol li hr strong em del br a span".split(" "));

function walk(tree, visit) {
  for (const part of tree) {
    visit(part);
    if (typeof part !== "string") walk(part.children, visit);
  }
}

const leaves = (tree) => {
  let text = "";
  walk(tree, (part) => typeof part === "string" && (text += part));
  return text;
};

test("no text becomes an element that loads or runs something", () => {
  for (const text of HOSTILE) {
    for (const tree of [markdownTree(text), plainTree(text)]) {
      walk(tree, (part) => {
        if (typeof part === "string") return;
        assert.ok(TAGS.has(part.tag), `${part.tag} from ${text}`);
        for (const [name, value] of Object.entries(part.attributes ?? {})) {
          assert.ok(["href", "target", "rel", "dir", "class", "start", "tabindex"].includes(name), name);
          if (name === "href") assert.match(value, /^(?:https?:\/\/|mailto:)/i);
        }
      });
    }
  }
});

test("HTML is shown as it is written", () => {
  assert.equal(leaves(markdownTree("a <b>b</b> & <script>c</script>")), "a <b>b</b> & <script>c</script>");
  assert.equal(leaves(plainTree("a <b>b</b>\n  c")), "a <b>b</b>\n  c");
});

test("Markdown's plain parts are shown as such", () => {
  const [, list] = markdownTree("Do **this** and `that`:\n\n3. one\n4. two");
  assert.equal(list.tag, "ol");
  assert.deepEqual(list.attributes, { dir: "auto", start: "3" });
  assert.equal(list.children.length, 2);
});

test("an address in a person's text is a link, without the full stop behind it", () => {
  const [paragraph] = plainTree("See https://shop.example/a_(b)?c=1. And http://x.example!");
  const links = paragraph.children.filter((part) => part.tag === "a").map((part) => part.attributes.href);
  assert.deepEqual(links, ["https://shop.example/a_(b)?c=1", "http://x.example"]);
});

test("opening hours are told by the visitor's clock", () => {
  const now = new Date("2026-11-27T20:00:00Z");
  assert.match(comingMoment("2026-11-30T08:00:00Z", now, "Europe/Berlin"), /^Monday 9:00\sAM$/);
  assert.match(comingMoment("2026-11-30T08:00:00Z", now, "America/New_York"), /^Monday 3:00\sAM$/);
  assert.match(comingMoment("2027-01-04T08:00:00Z", now, "Europe/Berlin"), /^Monday, January 4/);
});

test("a language is found by its name, with or without a region", () => {
  assert.equal(bestLanguage("de-AT", ["de", "en"]), "de");
  assert.equal(bestLanguage("pt_BR", ["en", "pt-BR"]), "pt-BR");
  assert.equal(bestLanguage("xx", ["de", "en"]), "en");
});
