"""What the page's HTML names."""

from __future__ import annotations

from app.ui.html_head import ENTRIES
from app.ui.joined_files import find_modules
from app.ui.static_files import STATIC_DIR


def test_all_modules_of_the_page_are_known() -> None:
    folders = ("components", "shared", "pages/chat")
    there = {
        file.relative_to(STATIC_DIR).as_posix() for folder in folders for file in (STATIC_DIR / folder).rglob("*.js")
    }
    unreached = there - set(find_modules(STATIC_DIR, ENTRIES))
    patches = {"shared/gradio_clock.js", "shared/gradio_requests.js"}
    in_head = {"shared/appearance_now.js"}
    elsewhere = {*patches, *in_head, "shared/vendor/uplot.esm.js"}
    later = {"components/chat/highlight_worker.js"}  # and what is loaded with the first formula or code
    later |= {name for name in unreached if name.startswith(("shared/vendor/katex/", "shared/vendor/highlight/"))}
    assert unreached == elsewhere | later, "one is not reached, or not seen to be"
