import assert from "node:assert/strict";
import { test } from "node:test";

import { GrowingBlocks, toHtml } from "../../app/ui/components/chat/markdown_blocks.js";
import { isDisplayed, texOf } from "../../app/ui/components/chat/math_syntax.js";
import { markdownTree } from "../../app/ui/widget/message_text.js";
import { draw } from "./drawing_in_pieces.js";

/** The formulas in HTML: [kind, source]. */
const formulas = (html) => [...html.matchAll(/<code class="math-(\w+)">([^<]*)<\/code>/g)].map(([, kind, source]) => [kind, source.replaceAll("&amp;", "&").replaceAll("&#39;", "'")]);

test("a formula is handed on as it was written", () => {
  assert.deepEqual(formulas(toHtml("Area \\(a^2\\), and $x^2\\,dx$: $$y_1*z_1*2$$.")), [
    ["inline", "\\(a^2\\)"],
    ["inline", "$x^2\\,dx$"],
    ["display", "$$y_1*z_1*2$$"],
  ]);
  const block = "$$\n\\begin{pmatrix} a & b \\\\ c & d \\end{pmatrix}\n$$";
  for (const text of [block, `Text:\n${block}\nmore`, `${block}\n\nmore`]) assert.deepEqual(formulas(toHtml(text)), [["display", block]]);
  assert.deepEqual(formulas(toHtml("1. one\n\n   \\[ x^2 \\]\n\n2. $f'$")), [["display", "\\[ x^2 \\]"], ["inline", "$f'$"]]);
});

test("the formula without its delimiters", () => {
  assert.deepEqual(["$a$", "$$\na\n$$", "\\[a\\]", "\\( a \\)"].map(texOf), ["a", "a", "a", "a"]);
  assert.deepEqual(["$a$", "$$a$$", "\\[a\\]", "\\(a\\)"].map(isDisplayed), [false, true, true, false]);
});

for (const text of [
  "It costs $5 and $10.",
  "US$5 to US$7, 5$ or 10$",
  "from $5 to 10$, or $1.50/$2.75",
  "$HOME and $PATH, `$a` and `$b`",
  "set $HOME before the$ end",
  "\\$5 and \\$6",
  "$ x $ and $$ is money",
  "code `\\(a\\)` and `$a$`",
  "a[^abc] class", // of characters
]) {
  test(`no formula and no footnote: ${text}`, () => {
    assert.deepEqual(formulas(toHtml(text)), []);
    assert.doesNotMatch(toHtml(text), /<sup/);
  });
}

test("what is still open stays as it is written, no further than its paragraph", () => {
  assert.deepEqual(formulas(toHtml("\\[ a_1*b*c")), [["open", "\\[ a_1*b*c"]]);
  assert.deepEqual(formulas(toHtml("so \\(x_1*a*b")), [["open", "\\(x_1*a*b"]]);
  assert.match(toHtml("$$ x_1\n\n**bold** $$"), /<strong>bold<\/strong>/);
  assert.match(toHtml("a \\( is a **parenthesis**"), /\( is a <strong>/);
});

const MIXED = String.raw`Given \(a^2\) and $b_1$ for $5:
\[
x_1 * y_1 = \frac{1}{2}
\]
so that

$$
\int f
$$

- item $z$ and
  \[ q \]
- next[^1] and $$w$$ end

text
\[ never_closed * x

[^1]: A note with $n^2$.
[^second]: Another
  that goes on.
Then **text**.
`;

test("every piece may be the last: a cut at any character shows the same in pieces and at once", () => {
  for (let end = 1; end <= MIXED.length; end++) {
    const text = MIXED.slice(0, end);
    for (const step of [1, 7]) {
      assert.equal(draw(text, step).html.trimEnd(), toHtml(text).trimEnd(), JSON.stringify(text.slice(-40)));
    }
  }
});

test("nothing in a formula or a footnote leaves it", () => {
  const html = toHtml('$x<img src=y onerror="alert(1)">^2$ and \\[</code><script>alert(1)</script>\\]\n\n[^1]: <script>alert(1)</script>');
  assert.doesNotMatch(html, /<(?:img|script)/);
});

test("a footnote stands where it is written, and is no definition of a link", () => {
  const html = toHtml("Said[^1] and[^note].\n\n[^1]: A *note*.\n[^note]: Word");
  assert.deepEqual([...html.matchAll(/<sup class="footnote-(\w+)">(\w+)/g)].map(([, kind, label]) => [kind, label]), [
    ["mark", "1"],
    ["mark", "note"],
    ["of", "1"],
    ["of", "note"],
  ]);
  const blocks = new GrowingBlocks();
  blocks.append("Said[^1].\n\n[^1]: A note");
  blocks.draw();
  assert.equal(blocks.redrawn, null, "the text is not drawn anew at its end");
});

test("visitors read formulas as they were written", () => {
  assert.match(JSON.stringify(markdownTree("Area $a^2$ is\n\n$$\nb\n$$")), /"\$a\^2\$"[^]*\$\$\\nb\\n\$\$/);
});

test("the parser is not slow with what looks like the beginning of formulas", () => {
  for (const text of ["$a ".repeat(40_000), "\\(x_1 ".repeat(20_000), "\n\\[ x_1".repeat(20_000), "[^1] ".repeat(20_000), "$$".repeat(50_000), `${"\n\\[ x_1".repeat(5_000)}\n\nend`]) {
    assert.ok(toHtml(text).length > 0); // unbounded, it takes minutes
  }
});
