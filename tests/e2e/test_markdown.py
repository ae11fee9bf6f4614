"""How a reply's markdown looks: as it was written, while it streams, once it has ended and after a reload."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.e2e.chat_page import ChatPage
from tests.e2e.seed import seed_conversation
from tests.e2e.server import Server

PYTHON = 'def greet(name):\n    return f"Hello, {name}!"\n'
#: Name: the markdown, and the code in its last block. What ends a block is tested in tests/web/markdown_blocks.test.js.
ENDING_IN_CODE = {
    "closed": (f"Here:\n\n```python\n{PYTHON}```\n", PYTHON),
    "never closed": (f"```python\n{PYTHON}", PYTHON),
}

#: Draws each text at once and in pieces: for each the code that is shown, and what its button copies.
DRAW = """async (texts) => {
  const { StreamingMarkdown, renderMarkdown } = await import("/ui/static/components/chat/markdown.js");
  let copied = null;
  const clipboard = { writeText: async (text) => { copied = text; } };
  Object.defineProperty(navigator, "clipboard", { configurable: true, value: clipboard });
  const look = (element) => {
    copied = null;
    [...element.querySelectorAll("[aria-label='Copy code']")].at(-1).click();
    return [[...element.querySelectorAll("pre code")].at(-1).textContent, copied];
  };
  const results = {};
  for (const [name, text] of Object.entries(texts)) {
    const whole = document.createElement("div");
    renderMarkdown(whole, text);
    const growing = document.createElement("div");
    const markdown = new StreamingMarkdown(growing);
    for (let at = 0; at < text.length; at += 3) {
      await new Promise((resolve) => markdown.append(text.slice(at, at + 3), resolve));
    }
    const streaming = look(growing);
    markdown.finish();
    results[name] = { whole: look(whole), streaming, ended: look(growing) };
  }
  return results;
}"""

STEPS = """1. Install it.

```sh
pip install deskmate
```

2. Write:

   ```python
   print("hello")
   ```

3. Run it.

***

41. Far below.

| item | price | note |
| :--- | ----: | :--: |
| tea | 3.50 | hot |
"""

RIGHT_TO_LEFT = """مرحبا! هذا نص مع `code(a, b)` فيه.

- نقطة
- English point

> اقتباس

| اسم | قيمة |
| --- | --- |
| شاي | 3 |

English again.

```python
x = 1  # تعليق
```
"""

#: Side of each block's text, and of the first character of the code.
SIDES = """() => {
  const side = (element) => {
    const range = document.createRange();
    const lines = [];
    const texts = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
      range.selectNodeContents(texts.currentNode);
      lines.push(...[...range.getClientRects()].filter((line) => line.width > 0));
    }
    const frame = element.closest(".dm-text").getBoundingClientRect();
    const left = Math.min(...lines.map((line) => line.left)) - frame.left;
    const right = frame.right - Math.max(...lines.map((line) => line.right));
    return left < right ? "left" : "right";
  };
  const reply = document.querySelector(".dm-reply .dm-text");
  return Object.fromEntries(
    [
      ["paragraph", "p"], ["point", "li"], ["English point", "li:nth-child(2)"], ["quote", "blockquote p"],
      ["cell", "td"], ["English", ".dm-table + p"], ["code", "pre code"],
    ].map(([name, selector]) => [name, side(reply.querySelector(selector))]),
  );
}"""

#: HTML that a renderer might be brought to write, and what is left of it.
HOSTILE_HTML = {
    '<ol start="javascript:alert(1)"><li>x</li></ol>': "<ol><li>x</li></ol>",
    '<ol start="4" align="right" style="color:red"><li>x</li></ol>': '<ol start="4"><li>x</li></ol>',
    '<ol start="1e9"><li>x</li></ol>': "<ol><li>x</li></ol>",
    '<ol start="9999999999"><li>x</li></ol>': "<ol><li>x</li></ol>",
    '<p start="4" align="right">x</p>': "<p>x</p>",
    '<table><tbody><tr><td align="right" style="x">x</td></tr></tbody></table>': (
        '<table><tbody><tr><td align="right">x</td></tr></tbody></table>'
    ),
    '<table><tbody><tr><td align="right;background:url(//x)">x</td></tr></tbody></table>': (
        "<table><tbody><tr><td>x</td></tr></tbody></table>"
    ),
    '<table align="javascript:x"><tbody><tr><th align="JAVASCRIPT:x">x</th></tr></tbody></table>': (
        "<table><tbody><tr><th>x</th></tr></tbody></table>"
    ),
    '<a href="javascript:x" align="data:text/html,x" start="1">x</a>': "<a>x</a>",
    '<a href="data:text/html,x">x</a><a href=" java&#9;script:x">x</a>': "<a>x</a><a>x</a>",
    '<code class="language-py" data-x="1" aria-label="x" style="x">x</code>': '<code class="language-py">x</code>',
    '<p class="dm-action" id="dm-box" onclick="x" name="x" role="alert">x</p>': "<p>x</p>",
    '<p class="footnote">x<sup class="footnote-of">1</sup><sup class="dm-action">2</sup></p>': (
        '<p class="footnote">x<sup class="footnote-of">1</sup><sup>2</sup></p>'
    ),
    '<code class="math-inline dm-action">x</code><li class="dm-row">x</li>': "<code>x</code><li>x</li>",
    '<img src="x" align="left"><svg start="1"></svg><p>x</p>': "<p>x</p>",
}
SANITISE = """async (sources) => {
  const { sanitizeHtml } = await import("/ui/static/components/chat/markdown.js");
  return sources.map((source) => {
    const place = document.createElement("div");
    place.append(sanitizeHtml(source));
    return place.innerHTML;
  });
}"""


def test_code_is_shown_and_copied_as_it_was_written(reader: ChatPage) -> None:
    reader.go(None)
    texts = {name: text for name, (text, _) in ENDING_IN_CODE.items()}
    drawn = reader.page.evaluate(DRAW, texts)
    shown = {
        name: [
            view for view, codes in views.items() if set(map(str.rstrip, codes)) != {ENDING_IN_CODE[name][1].rstrip()}
        ]
        for name, views in drawn.items()
    }
    assert shown == {name: [] for name in ENDING_IN_CODE}


def test_lists_go_on_and_columns_stay_aligned(server: Server, reader: ChatPage) -> None:
    reader.go(seed_conversation(server.data_dir, "steps", ["How?", STEPS]))
    lists = reader.replies.last.locator("ol")
    expect(lists).to_have_count(3)
    assert lists.evaluate_all("(lists) => lists.map((list) => list.start)") == [1, 2, 41]
    aligned = "(cells) => cells.map((cell) => getComputedStyle(cell).textAlign)"
    for row in ("th", "td"):
        assert reader.replies.last.locator(row).evaluate_all(aligned) == ["left", "right", "center"]


def test_a_block_stands_on_the_side_of_its_language(server: Server, reader: ChatPage) -> None:
    reader.go(seed_conversation(server.data_dir, "عنوان", ["كيف؟", RIGHT_TO_LEFT]))
    expect(reader.replies.last.locator("pre")).to_be_visible()
    assert reader.page.evaluate(SIDES) == {
        "paragraph": "right",
        "point": "right",
        "English point": "right",
        "quote": "right",
        "cell": "right",
        "English": "left",
        "code": "left",
    }
    directions = "(elements) => elements.map((element) => getComputedStyle(element).direction)"
    assert reader.page.locator(".dm-user .dm-text, .dm-title").evaluate_all(directions) == ["rtl", "rtl"]


def test_what_is_let_through_holds_no_address_and_no_style(reader: ChatPage) -> None:
    left = reader.go(None).page.evaluate(SANITISE, list(HOSTILE_HTML))
    assert dict(zip(HOSTILE_HTML, left, strict=True)) == HOSTILE_HTML


FORMULAS = r"""The area is \(a^2\), and $x^2\,dx$ costs $5 and $10.

$$
\frac{1}{2}
$$

Hostile: $\href{https://elsewhere.example/}{x}$, $\rule{900em}{900em}$, $\kern{-90em}x$, $\frac{1$.

```python
def area(side: float) -> float:
    return side ** 2
```

A claim[^1].

[^1]: The note.
"""
#: Widest and highest of the formulas on the page, in pixels.
LARGEST = """(formulas) => {
  const boxes = formulas.map((formula) => formula.getBoundingClientRect());
  return Math.max(...boxes.flatMap(({ width, height }) => [width, height]));
}"""
#: What is in the clipboard after everything of a reply was selected and copied.
COPIED = """(text) => {
  getSelection().selectAllChildren(text);
  const event = new ClipboardEvent("copy", { clipboardData: new DataTransfer(), bubbles: true, cancelable: true });
  text.dispatchEvent(event);
  return event.clipboardData.getData("text/plain");
}"""


def test_formulas_code_and_footnotes(server: Server, reader: ChatPage) -> None:
    reader.go(seed_conversation(server.data_dir, "formulas", ["Show", FORMULAS]))
    text = reader.replies.last.locator(".dm-text")
    expect(text.locator(".dm-math-typeset")).to_have_count(6)
    expect(text.locator(".dm-math-display math")).to_have_count(1)
    expect(text).to_contain_text("costs $5 and $10.")
    expect(text).to_contain_text(r"$\frac{1$")
    assert text.locator("a, img").count() == 0
    assert text.locator(".dm-math").evaluate_all(LARGEST) < 1000
    copied = text.evaluate(COPIED)
    assert all(source in copied for source in (r"\(a^2\)", r"$x^2\,dx$", r"\frac{1}{2}"))
    expect(text.locator("pre .dm-code-keyword").first).to_have_text("def")
    assert text.locator("pre code").text_content() == "def area(side: float) -> float:\n    return side ** 2\n"
    text.get_by_role("button", name="Footnote 1", exact=True).click()
    expect(text.get_by_role("button", name="Back to the text of footnote 1")).to_be_focused()


GROW = """async (section) => {
  const { StreamingMarkdown } = await import("/ui/static/components/chat/markdown.js");
  const place = document.createElement("div");
  place.className = "dm-text dm-markdown";
  document.body.append(place);
  const frames = () => new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)));
  const growing = new StreamingMarkdown(place);
  const finished = () => [...place.querySelectorAll("*")].filter(
    (each) => each.parentElement.matches(".dm-text, .dm-part") && !each.matches(".dm-part, .dm-tail"));
  let known = [];
  const touched = [];
  const look = (records) => {
    for (const { target } of records) if (known.some((block) => block.contains(target))) touched.push(target.nodeName);
  };
  const watch = new MutationObserver(look);
  watch.observe(place, { subtree: true, childList: true, characterData: true, attributes: true });
  for (let number = 0; number < 60; number++) {
    for (const piece of section.replaceAll("N", number).match(/[^]{1,40}/g)) {
      growing.append(piece);
      growing.pause = 0; // draws each time, however slow the machine is
      await frames();
    }
    known = finished();
  }
  growing.finish();
  look(watch.takeRecords());
  const kept = known.every((block) => block.isConnected);
  const widest = Math.max(...[...place.querySelectorAll("*"), place].map(({ childElementCount }) => childElementCount));
  const result = { blocks: known.length, touched, kept, widest, text: place.innerText };
  place.remove();
  return result;
}"""


#: Grows a text: whether the parts of its first half stay, and whether it looks as if it had been drawn at once.
GROW_ONE_BLOCK = """async ([text, selector]) => {
  const { StreamingMarkdown, renderMarkdown } = await import("/ui/static/components/chat/markdown.js");
  const frames = () => new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)));
  const place = document.createElement("div");
  place.className = "dm-text dm-markdown";
  document.body.append(place);
  const growing = new StreamingMarkdown(place);
  let known = [];
  for (let at = 0; at < text.length; at += 150) {
    growing.append(text.slice(at, at + 150));
    growing.pause = 0;
    await frames();
    if (known.length === 0 && at >= text.length / 2) known = [...place.querySelectorAll(selector)].slice(0, -1);
  }
  growing.finish();
  const whole = document.createElement("div");
  renderMarkdown(whole, text);
  const plain = (element) => {
    const copy = element.cloneNode(true);
    for (const part of copy.querySelectorAll(".dm-part, .dm-tail")) part.replaceWith(...part.childNodes);
    for (const code of copy.querySelectorAll("pre code")) code.replaceChildren(code.textContent);
    for (const rest of copy.querySelectorAll(".dm-rest")) {
      rest.previousElementSibling.append(...rest.childNodes);
      rest.remove();
    }
    return copy.innerHTML.replace(/>\\s+</g, "><").trim();
  };
  const kept = known.every((each) => each.isConnected);
  const lists = [...place.querySelectorAll("ul, ol")];
  const widest = Math.max(0, ...lists.map(({ childElementCount }) => childElementCount));
  const result = { known: known.length, kept, widest, grown: plain(place), whole: plain(whole) };
  place.remove();
  return result;
}"""


@pytest.mark.full
@pytest.mark.parametrize(
    ("text", "selector"),
    [
        ("Before.\n\n" + "- an item with **bold** words\n" * 200 + "\nAfter.\n", "li"),
        ("3. an item\n\n   and more of it\n\n" * 100 + "After.\n", "ol > li"),
        ("| a | b |\n| - | -: |\n" + "| some `code` | 1.50 |\n" * 200 + "\nAfter.\n", "tbody > tr"),
        ("```python\n" + "def f(x):\n    return `x`\n" * 300 + "```\n\nAfter.\n", "pre"),
    ],
    ids=["list", "list of paragraphs", "table", "code"],
)
def test_one_block_that_grows_keeps_its_parts(reader: ChatPage, text: str, selector: str) -> None:
    grown = reader.page.evaluate(GROW_ONE_BLOCK, [text, selector])
    assert grown["known"] > 40 or selector == "pre"
    assert grown["kept"]
    # 100 items in each part, and as many as a slow frame draws at once.
    assert grown["widest"] < 170, "a browser goes through all items of a list for each new one"
    assert grown["grown"] == grown["whole"]


@pytest.mark.full
def test_what_is_finished_is_not_drawn_again_while_a_text_grows(reader: ChatPage) -> None:
    section = "## Part N\n\nSome **bold** text, N.\n\n- one\n- two\n\n| A | B |\n| - | - |\n| N | 2 |\n\n> quote\n\n"
    grown = reader.page.evaluate(GROW, section)
    assert grown["blocks"] > 250
    assert grown["touched"] == []
    assert grown["kept"], "the end of a text replaces nothing"
    # One more child restyles all children of an element, once a page has a formula.
    assert grown["widest"] <= 40
    texts = [line for line in grown["text"].splitlines() if line.startswith("Part ")]
    assert texts == [f"Part {number}" for number in range(60)]
