"""Takes the pictures in docs/ of the real page: the included model, a real Chromium, replies with fixed seeds.

    .venv/bin/python scripts/docs_pictures.py                 # writes docs/*.png
    .venv/bin/python scripts/docs_pictures.py --output /tmp   # elsewhere, to look at them first

It needs what `scripts/setup.sh test` installs, and Chromium. Texts and probabilities are the same in each run on one
machine; only the measured speed under a reply varies. Run it when the page looks different, and commit all of them.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Literal

from PIL import Image
from playwright.sync_api import Browser, FloatRect, Locator, Page, expect, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from tests.e2e.chat_page import ChatPage  # noqa: E402
from tests.e2e.conftest import find_chromium  # noqa: E402
from tests.e2e.server import Server  # noqa: E402

QUESTION = "How do I make answers less random?"
EARLIER = ("Hi! What can you do?", "How do I use another model?", "What does top-p do?")  #: the list is not empty
SEED = 7
SEED_OF_COLUMNS = 3  #: with which a temperature of 1.2 writes another reply than one of 0
SIZE = (1440, 900)  #: CSS pixels
SCALE = 1.5  #: sharp where a page shows them at two thirds of their width
COLORS = 256  #: a palette: a third of the bytes, and no difference that one sees in flat colours
MARGIN = 16  #: CSS pixels around a part of the page
MAX_BYTES = 150_000

Scheme = Literal["light", "dark"]


class Pictures:
    """Takes pictures at a server and writes them into a folder."""

    def __init__(self, browser: Browser, server: Server, folder: Path) -> None:
        self._browser = browser
        self._server = server
        self._folder = folder

    def take_all(self) -> None:
        for message in EARLIER:
            self._ask(message)
        conversation_id = self._ask(QUESTION)
        for scheme in ("light", "dark"):
            with self._chat(scheme, conversation_id) as chat:
                self._open_lens(chat)
                self._save("screenshot.png" if scheme == "light" else "screenshot-dark.png", chat.page)
        with self._chat("light", conversation_id) as chat:
            popover = self._open_context(chat)
            ends = [chat.page.get_by_role("button", name=name, exact=True) for name in ("Attach files", "Send")]
            self._save("context.png", chat.page, _around(popover, *ends))
        with self._chat("light", conversation_id) as chat:  # last, for it changes the conversation
            self._save("compare.png", chat.page, _around(self._compare(chat)))

    def _ask(self, message: str) -> str:
        """Writes a message to the guide in a new chat; returns the conversation's id once the reply is complete."""
        with self._chat("light") as chat:
            data = {"text": message, "settings": {"seed": SEED}}
            conversation_id = str(
                chat.page.request.post(f"{self._server.url}/api/turns", data=data).json()["conversation_id"]
            )
            chat.open(conversation_id).wait_for_end()
        return conversation_id

    @contextmanager
    def _chat(self, scheme: Scheme, conversation_id: str | None = None) -> Iterator[ChatPage]:
        context = self._browser.new_context(
            viewport={"width": SIZE[0], "height": SIZE[1]},
            device_scale_factor=SCALE,
            color_scheme=scheme,
            reduced_motion="reduce",
        )
        yield ChatPage(context.new_page(), self._server.url).open(conversation_id)
        context.close()

    def _open_lens(self, chat: ChatPage) -> None:
        """Shows the alternatives to the reply's first token."""
        expect(chat.page.locator(".dm-context-bar")).to_contain_text("Context:")
        chat.replies.last.get_by_role("button", name="Lens").click()
        chat.page.locator(".dm-lens-token").first.click()
        expect(chat.page.locator(".dm-lens-alternative").first).to_be_visible()

    def _compare(self, chat: ChatPage) -> Locator:
        chat.replies.last.get_by_role("button", name="Compare").click()
        dialog = chat.page.get_by_role("dialog", name="Compare replies")
        for letter, temperature in (("A", "0"), ("B", "1.2")):
            column = dialog.get_by_role("group", name=letter, exact=True)
            column.get_by_label("Temperature").fill(temperature)
            column.get_by_label("Seed").fill(str(SEED_OF_COLUMNS))
        dialog.get_by_role("button", name="Compare", exact=True).click()
        expect(chat.page.get_by_role("button", name="Keep this one").last).to_be_enabled()
        expect(chat.page.locator(".dm-differs").first).to_be_visible()
        chat.page.mouse.move(0, 0)
        return chat.page.locator(".dm-comparison")

    def _open_context(self, chat: ChatPage) -> Locator:
        bar = chat.page.locator(".dm-context-bar")
        expect(bar).to_contain_text("Context:")
        before = bar.inner_text()
        chat.box.fill("What does top-p do?")
        expect(bar).not_to_have_text(before)
        bar.click()
        return chat.page.get_by_role("dialog", name="The next prompt")

    def _save(self, name: str, page: Page, clip: FloatRect | None = None) -> None:
        page.evaluate("document.fonts.ready.then(() => null)")
        picture = Image.open(BytesIO(page.screenshot(clip=clip, caret="hide", animations="disabled"))).convert("RGB")
        palette = picture.quantize(COLORS, dither=Image.Dither.NONE)
        file = self._folder / name
        palette.save(file, optimize=True)
        print(f"{file}: {palette.width} x {palette.height}, {file.stat().st_size:,} bytes")
        if file.stat().st_size > MAX_BYTES:
            raise SystemExit(
                f"{name} is larger than {MAX_BYTES:,} bytes: take a smaller part of the page, or fewer colours."
            )


def _around(*parts: Locator) -> FloatRect:
    """The rectangle that contains these parts of the page, with a margin."""
    boxes = [box for part in parts if (box := part.bounding_box()) is not None]
    left, top = (max(0.0, min(box[side] for box in boxes) - MARGIN) for side in ("x", "y"))
    right = min(SIZE[0], max(box["x"] + box["width"] for box in boxes) + MARGIN)
    bottom = min(SIZE[1], max(box["y"] + box["height"] for box in boxes) + MARGIN)
    return {"x": left, "y": top, "width": right - left, "height": bottom - top}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=ROOT / "docs", help="the folder; default: docs/")
    folder = parser.parse_args().output
    with (
        tempfile.TemporaryDirectory() as data,
        Server(ROOT / "models" / "guide", Path(data) / "data", program=("-m", "app")) as server,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox"])
        Pictures(browser, server, folder).take_all()
        browser.close()


if __name__ == "__main__":
    main()
