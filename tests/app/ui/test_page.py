"""What the page's HTML names."""

from __future__ import annotations

from app.ui.html_head import ENTRIES, find_modules
from app.ui.static_files import STATIC_DIR


def test_all_modules_of_the_page_are_known() -> None:
    folders = ("components", "shared", "pages/chat")
    there = {
        file.relative_to(STATIC_DIR).as_posix() for folder in folders for file in (STATIC_DIR / folder).rglob("*.js")
    }
    unreached = there - set(find_modules(*ENTRIES))
    patches = {"shared/gradio_clock.js", "shared/gradio_requests.js"}
    elsewhere = {*patches, "shared/vendor/uplot.esm.js"}
    assert unreached == elsewhere, "one is not reached, or not seen to be"
