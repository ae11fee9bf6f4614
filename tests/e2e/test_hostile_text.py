"""Text from a model, a title, a message: whatever it says, it is shown and never run, and loads nothing."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from playwright.sync_api import expect

from testing.injections import INJECTIONS
from tests.e2e.chat_page import ChatPage
from tests.e2e.seed import seed_conversation
from tests.e2e.server import Server

HOSTILE = [
    "<script>window.hacked = 1</script>",
    "<img src=x onerror='window.hacked = 1'>",
    "<svg onload='window.hacked = 1'><circle/></svg>",
    "<iframe srcdoc='<script>parent.hacked = 1</script>'></iframe>",
    "<details open ontoggle='window.hacked = 1'>x</details>",
    "<style>* { display: none !important }</style>",
    "<link rel=stylesheet href=https://evil.example/x.css>",
    "<base href=https://evil.example/>",
    "<meta http-equiv=refresh content='0;url=https://evil.example/'>",
    "<form action=https://evil.example/><input name=q><button>go</button></form>",
    "<a href='javascript:window.hacked = 1'>raw link</a>",
    "[link](javascript:window.hacked=1)",
    "[link](JaVaScRiPt:window.hacked=1)",
    "[link](data:text/html,<script>window.hacked=1</script>)",
    "[link](vbscript:msgbox)",
    "[link](<javascript:window.hacked=1>)",
    '[link](https://example.com/ "\\" onmouseover=window.hacked=1 \\"")',
    "![pixel](https://evil.example/pixel.png)",
    '![pixel](https://evil.example/pixel.png "title")',
    "![](javascript:window.hacked=1)",
    '![x" onerror="window.hacked=1](https://evil.example/x.png)',
    "[![nested](https://evil.example/n.png)](https://evil.example/)",
    "```<img src=x onerror=window.hacked=1>\ncode\n```",
    "```html\n<script>window.hacked = 1</script>\n```",
    '```x" onload="window.hacked=1\ncode\n```',
    "`<script>window.hacked=1</script>`",
    "<math><mtext><table><mglyph><style><img src=x onerror=window.hacked=1>",
    "<div id=dm-composer class=dm-box><div class=dm-alert>clobbered</div></div>",
    "<a name=deskmate id=deskmate>clobber</a>",
    "| a | b |\n|---|---|\n| <img src=x onerror=window.hacked=1> | <script>window.hacked=1</script> |",
    "[ref]\n\n[ref]: javascript:window.hacked=1",
    "<https://example.com/><javascript:window.hacked=1>",
    "\u202e\u0000\ufeff<scr\u0000ipt>window.hacked=1</script>".replace("\u0000", ""),
]


def _assert_harmless(chat: ChatPage) -> None:
    """No code ran, and nothing on the page could run or load."""
    assert chat.page.evaluate("window.hacked") is None
    found = chat.page.evaluate(
        """() => {
          const within = document.querySelector(".dm-messages");
          const forbidden = "script,img,svg,iframe,style,link,base,meta,form,input,object,embed";
          const bad = [...within.querySelectorAll(forbidden)];
          for (const element of within.querySelectorAll("*")) {
            if (element.closest(".dm-foot")) continue;  // the page's own buttons, which have ids
            for (const { name, value } of element.attributes) {
              if (name.startsWith("on") || name === "style" || name === "name") bad.push(element);
              if (name === "id" || (name === "href" && !/^(https?|mailto):/i.test(value))) bad.push(element);
            }
          }
          for (const link of within.querySelectorAll("a[href]")) {
            if (!link.rel.includes("noopener") || link.target !== "_blank") bad.push(link);
          }
          return bad.map(element => element.outerHTML);
        }"""
    )
    assert found == []


@pytest.mark.parametrize("hostile", [HOSTILE, INJECTIONS], ids=["markup", "injections"])
def test_hostile_replies_are_shown_and_never_run(server: Server, reader: ChatPage, hostile: Sequence[str]) -> None:
    chat = reader.go(seed_conversation(server.data_dir, "hostile texts", [text for text in hostile for _ in range(2)]))
    expect(chat.replies.last).to_be_visible()
    for link in chat.page.locator(".dm-messages a").all()[:1]:
        link.hover()
    _assert_harmless(chat)
    assert chat.users.all_inner_texts()[0] == hostile[0]
    assert chat.text(0) == hostile[0], "raw HTML is shown as it was written"


@pytest.mark.parametrize("step", [1, pytest.param(7, marks=pytest.mark.full)])
def test_hostile_text_in_pieces(reader: ChatPage, step: int) -> None:
    """Half a tag must not become a tag when its other half arrives."""
    script = """async ([text, step]) => {
      const { StreamingMarkdown } = await import("/ui/static/components/chat/markdown.js");
      const element = document.createElement("div");
      document.querySelector(".dm-messages").append(element);
      const markdown = new StreamingMarkdown(element);
      for (let at = 0; at < text.length; at += step) {
        await new Promise(resolve => markdown.append(text.slice(at, at + step), resolve));
      }
      markdown.finish();
    }"""
    text = "\n\n".join((*HOSTILE, *INJECTIONS) if step > 1 else (HOSTILE[1], HOSTILE[11], HOSTILE[17]))
    reader.go(None).page.evaluate(script, [text, step])
    _assert_harmless(reader)


def test_hostile_titles(server: Server, reader: ChatPage) -> None:
    title = "<img src=x onerror='window.hacked = 1'><b>title</b>"
    chat = reader.go(seed_conversation(server.data_dir, title, ["q", "a"]))
    expect(chat.page.locator(".dm-title")).to_have_text(title)
    expect(chat.row(title)).to_be_visible()
    chat.press_in_row(title, "Delete")
    expect(chat.page.get_by_role("dialog")).to_contain_text(title)
    chat.page.keyboard.press("Escape")
    expect(chat.page.get_by_role("dialog")).to_be_hidden()
    chat.page.get_by_label("Search conversations").fill("onerror")
    expect(chat.page.locator(".dm-list .dm-group")).to_have_count(0)  # what a search finds stands under no day
    expect(chat.row(title)).to_be_visible()
    _assert_harmless(chat)
    expect(chat.page.locator(".dm-list img")).to_have_count(0)
