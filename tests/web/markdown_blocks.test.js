import assert from "node:assert/strict";
import { test } from "node:test";

import { toHtml } from "../../app/ui/components/chat/markdown_blocks.js";
import { draw } from "./drawing_in_pieces.js";

const PYTHON = 'def greet(name):\n    return f"Hello, {name}!"\n';

/** Name: the Markdown, and the code in its last block. @type {Record<string, [string, string]>} */
const ENDING_IN_CODE = {
  backticks: [`Here:\n\n\`\`\`python\n${PYTHON}\`\`\``, PYTHON],
  "newlines after it": [`Here:\n\n\`\`\`python\n${PYTHON}\`\`\`\n\n\n`, PYTHON],
  tildes: ["~~~~\nthree ~~~ inside\n~~~~", "three ~~~ inside\n"],
  "a longer closing fence": ["```\ncode\n``````  ", "code\n"],
  "an indented closing fence": ["```\ncode\n   ```", "code\n"],
  "empty lines at the end": ["```\ncode\n\n\n```", "code\n\n\n"],
  "nothing in it": ["```\n```", ""],
  "fences in the code": ["````md\n```js\nx\n```\n````", "```js\nx\n```\n"],
  "never closed": [`\`\`\`python\n${PYTHON}`, PYTHON],
  "cut in the closing fence": ["```\ncode\n``", "code\n``"],
  "in a list": ["1. Write:\n\n   ```\n   code\n   ```", "code\n"],
  "with carriage returns": ["```\r\none\r\ntwo\r\n```", "one\ntwo\n"],
  "with markup in it": ["```html\n<b title=\"x\">&amp; 'y'</b>\n```", "<b title=\"x\">&amp; 'y'</b>\n"],
};

const ENTITIES = { "&amp;": "&", "&lt;": "<", "&gt;": ">", "&quot;": '"', "&#39;": "'" };
const unescape = (html) => html.replace(/&(?:amp|lt|gt|quot|#39);/g, (entity) => ENTITIES[entity]);

/** The texts of the code blocks in HTML. */
const codesOf = (html) => [...html.matchAll(/<pre><code[^>]*>([^<]*)<\/code><\/pre>/g)].map(([, code]) => unescape(code));

for (const [name, [text, code]] of Object.entries(ENDING_IN_CODE)) {
  test(`code is as it was written, at once and in pieces: ${name}`, () => {
    assert.equal(codesOf(toHtml(text)).at(-1)?.trimEnd(), code.trimEnd());
    for (const step of [1, 3, 7, text.length]) assert.equal(codesOf(draw(text, step).html).at(-1)?.trimEnd(), code.trimEnd(), `${step} at a time`);
  });
}

test("what is written into an open code block is appended, and parsed only where it may end the block", () => {
  const { kinds, html } = draw("```\nab\ncd\n``\n```\nafter", 1);
  //           ` ` ` \n: no code block before its first line; then "ab\ncd\n" verbatim
  assert.deepEqual(kinds.slice(4, 10), Array.from({ length: 6 }, () => "appended"));
  assert.ok(!kinds.slice(13).includes("appended"), "a fence may have closed it");
  assert.deepEqual(codesOf(html), ["ab\ncd\n``\n"]);
  assert.match(html, /<p>after<\/p>/);
});

test("a line of code with a fence's characters in it is appended, too", () => {
  const { kinds, html } = draw("```js\nf(`a`);\n`b`\n~~x\n```\n", 1);
  assert.deepEqual(kinds.slice(6, 13), Array.from({ length: 7 }, () => "appended"));
  assert.deepEqual(codesOf(html), ["f(`a`);\n`b`\n~~x\n"]);
});

test("empty lines at the end of open code are kept: the next line follows them", () => {
  assert.deepEqual(codesOf(draw("```\none\n\n\n", 1).html), ["one\n\n\n"]);
  assert.deepEqual(codesOf(draw("```\none\n\n\ntwo", 1).html), ["one\n\n\ntwo"]);
});

/** A text of many blocks, each kind of block next to each other kind. */
function mixed(length) {
  let text = "";
  for (let i = 0; text.length < length; i++) {
    text += `A paragraph with **bold** words, \`code\` and [a link](https://example.com/), number ${i}.\n\n`;
    text += i % 3 ? `- item ${i}\n- another\n\n` : `\`\`\`python\nprint(${i})\n\`\`\`\n\n`;
    if (i % 4 === 0) text += `1. one\n\n2. two\n\n   of two\n\n\n10. ten\n\n2026 was next.\n\n`;
    if (i % 5 === 0) text += `> quoted ${i}\n\n| a | b |\n|---|--:|\n| ${i} | x |\n\n## Part ${i}\n\n***\n\n`;
  }
  return text.slice(0, length);
}

const SHAPES = {
  mixed: mixed(60_000),
  "one code block": `\`\`\`\n${"let x = f(y);\n".repeat(4_300)}`,
  "one paragraph": "words without any end ".repeat(2_700),
  "one list": Array.from({ length: 500 }, (_each, i) => `- item number ${i} of a long list\n`).join(""),
  "one list of paragraphs": Array.from({ length: 300 }, (_each, i) => `${i + 3}. item\n\n   more of ${i}\n\n`).join(""),
  "one list of boxes": Array.from({ length: 300 }, (_each, i) => `- [${i % 2 ? "x" : " "}] item ${i}\n${i === 40 ? "\n" : ""}`).join(""),
  "one list of lists": Array.from({ length: 300 }, (_each, i) => `- item ${i}\n  - one\n    1. two\n  - three\n`).join(""),
  "one table": `| a | b |\n|---|--:|\n${"| some `cell` | 12.50 |\n".repeat(600)}`,
};
for (const [shape, text] of Object.entries(SHAPES)) {
  test(`a text drawn as it grows is the text drawn at once: ${shape}`, () => {
    assert.equal(draw(text, 397).html.trimEnd(), toHtml(text).trimEnd());
  });
}

test("of a long list or table only the end is drawn again", () => {
  for (const shape of ["one list", "one list of paragraphs", "one list of boxes", "one list of lists", "one table"]) {
    const text = SHAPES[shape];
    assert.ok(draw(text, 97).drawn < 8 * toHtml(text).length, shape);
  }
});

test("an item or a row that was taken for final may yet become something else", () => {
  const texts = [
    "- a\n-\n-- b",
    "- a\n- - -\n- b",
    "- a\n- b\n-c\n- d\n\n- e\n- f",
    "1. a\n2. b\n3.5 of c\n4. d\n\n5 e",
    "1. a\n2. b\n**Bold** of b\n3. c",
    "- a\n- b\n-5 of b\n+1 of b\n- c",
    "- a\n- b\n\n\n\ntext\n- c",
    "- [ ] a\n- [x] b\n\n- [ ]\n- [x] c\n",
    "* a\n* b\n**bold**\n* c\n\n$$\nx^2\n$$\n",
    "| a | b |\n|---|---|\n| 1 | 2 |\n# x\n| 3 | 4 |",
    "| a | b |\n|---|---|\n| 1 | 2 |\n| 3 \n- x\n| 4 | 5 |\n\n| 6 |",
    "| a |\n|---|\n| 1 |\n| 2 |\n\n$$\nx^2\n$$\n\n| a |\n|---|\n| 1 |\n",
  ];
  for (const text of texts) {
    for (let end = 1; end <= text.length; end++) {
      for (const step of [1, 2, 3]) assert.equal(draw(text.slice(0, end), step).html.trimEnd(), toHtml(text.slice(0, end)).trimEnd(), JSON.stringify(text.slice(0, end)));
    }
  }
});

test("every piece may be the last: a cut at any character shows the same in pieces and at once", () => {
  const text = mixed(1200);
  for (let end = 1; end <= text.length; end++) {
    const normal = (html) => html.replaceAll(/\n+<\/code>/g, "</code>").trimEnd();
    assert.equal(normal(draw(text.slice(0, end), 5).html), normal(toHtml(text.slice(0, end))), JSON.stringify(text.slice(end - 30, end)));
  }
});

test("a list goes on after an empty line, and a paragraph below it does not", () => {
  const text = "1. one\n\n2. two\n\n   of two\n\n\n10. three\n\n2026 was next.";
  for (const step of [1, 2, 5]) assert.equal(draw(text, step).html, toHtml(text));
  assert.equal(toHtml(text).match(/<ol>/g)?.length, 1);
  assert.match(toHtml(text), /<p>2026 was next.<\/p>\n$/);
});

test("a definition below the text that uses it makes a link of it, once the text has ended", () => {
  const text = "See [the guide][1] first.\n\nThen go on.\n\n[1]: https://example.com/guide\n";
  const { html, ended } = draw(text, 5);
  assert.doesNotMatch(html, /href/);
  assert.match(ended, /<a href="https:\/\/example.com\/guide">the guide<\/a>/);
  assert.equal(ended, toHtml(text));
  assert.equal(draw("No definition: [1] and a:\nb", 5).ended, draw("No definition: [1] and a:\nb", 5).html);
});

test("raw HTML is text", () => {
  for (const html of ["<script>alert(1)</script>", "<img src=x onerror='alert(1)'>", "<b>bold</b> & <i>more</i>", "<!-- hidden -->", "<div>\n\nx\n\n</div>"]) {
    const tags = [...toHtml(html).matchAll(/<\/?([a-z!-]+)/gi)].map(([, tag]) => tag);
    assert.deepEqual(tags.filter((tag) => tag !== "p" && tag !== "br"), [], html);
    assert.ok(unescape(toHtml(html)).includes(html.split("\n")[0]), `${html} is shown as it was written`);
  }
});

test("half a tag does not become one when its other half arrives", () => {
  const text = "before <img src=x onerror='alert(1)'> after\n\n<script>alert(1)</script>\n\nend";
  for (const step of [1, 2, 3, 5]) assert.doesNotMatch(draw(text, step).html, /<(?:img|script)/);
});

test("an image is a link with its text, or else its address; nothing in it leaves its attribute", () => {
  assert.equal(toHtml("![a cat](https://example.com/cat.png)"), '<p><a href="https://example.com/cat.png">a cat</a></p>\n');
  assert.equal(toHtml("![](https://example.com/cat.png)"), '<p><a href="https://example.com/cat.png">https://example.com/cat.png</a></p>\n');
  assert.equal(toHtml('![x" onerror="y](https://example.com/a"b.png)'), '<p><a href="https://example.com/a&quot;b.png">x&quot; onerror=&quot;y</a></p>\n');
});

test("a line break is one, headings are below those of the page, and boxes are characters", () => {
  assert.equal(toHtml("one\ntwo"), "<p>one<br>two</p>\n");
  const levels = [1, 2, 3, 4, 5, 6].map((depth) => toHtml(`${"#".repeat(depth)} x`).slice(1, 3));
  assert.deepEqual(levels, ["h3", "h4", "h5", "h6", "h6", "h6"]);
  assert.match(toHtml("- [x] done\n- [ ] open"), /☑ .*done[^]*☐ .*open/);
  assert.doesNotMatch(toHtml("- [x] done"), /<input/);
});

// Unbounded, the parser takes minutes for these, so a test that hangs has failed.
test("what a looping model writes is text without markup beyond the limits", () => {
  const quotes = toHtml(`${"> ".repeat(2_000)}deep`);
  assert.doesNotMatch(quotes, /<blockquote>/);
  assert.match(toHtml(`${"> ".repeat(20)}deep`), /<blockquote>/, "what people write is not cut");
  assert.doesNotMatch(toHtml(`${"- ".repeat(2_000)}deep`), /<li>/);
  assert.doesNotMatch(toHtml("_a".repeat(50_000)), /<em>/);
  assert.match(toHtml("*a* "), /<em>a<\/em>/);
  const long = `${"[a](".repeat(4_000)}\n**b**`;
  assert.equal(unescape(toHtml(long)).replace(/<\/?(?:p|br)>/g, (tag) => (tag === "<br>" ? "\n" : "")).trimEnd(), long);
});
