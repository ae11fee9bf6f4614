"""What Gradio does for the page."""

from __future__ import annotations

import subprocess
import sys

import gradio as gr
import gradio.routes
import pytest
from jinja2 import DictLoader, Environment

from app.ui.html_head import ENTRIES, HTML_HEAD, _HtmlHeadLoader, find_modules, install_html_head
from app.ui.page import QUEUE_SECONDS, _page
from app.ui.static_files import STATIC_DIR


def test_gradio_s_queue_rests() -> None:
    for name in ("sleep_when_free", "progress_update_sleep_when_free"):
        assert hasattr(gr.Blocks(analytics_enabled=False)._queue, name), "Gradio calls it otherwise by now"
        assert getattr(_page()._queue, name) == QUEUE_SECONDS


def test_its_sources_are_not_read_for_type_stubs() -> None:
    """It takes a process of its own: here Gradio is imported already."""
    page = "import ast; del ast.get_source_segment; import app.ui.page"
    subprocess.run([sys.executable, "-c", page], check=True)
    itself = page.replace("app.ui.page", "gradio")
    assert subprocess.run([sys.executable, "-c", itself], stderr=subprocess.DEVNULL).returncode, "it needs no help now"


def test_gradios_html_ends_its_head_with_ours_once() -> None:
    for _ in range(2):  # as for a second application in this process
        install_html_head()
    environment = gradio.routes.templates.env
    assert environment.loader is not None
    source, _, _ = environment.loader.get_source(environment, "frontend/index.html")
    assert source.count(HTML_HEAD + "</head>") == 1
    assert source.count("gradio_clock.js") == 1


def test_a_gradio_whose_html_is_another_is_not_guessed_at() -> None:
    environment = Environment(loader=_HtmlHeadLoader(DictLoader({"frontend/index.html": "<body>", "other": "<p>"})))
    assert environment.get_template("other").render() == "<p>"
    with pytest.raises(RuntimeError, match="exactly one </head>"):
        environment.get_template("frontend/index.html")


def test_all_modules_of_the_page_are_known() -> None:
    folders = ("components", "shared", "pages/chat")
    there = {
        file.relative_to(STATIC_DIR).as_posix() for folder in folders for file in (STATIC_DIR / folder).rglob("*.js")
    }
    unreached = there - set(find_modules(*ENTRIES))
    assert unreached == {"shared/gradio_clock.js", "shared/vendor/uplot.esm.js"}, (
        "one is not reached, or not seen to be"
    )
