"""What Gradio does for the page."""

from __future__ import annotations

import subprocess
import sys

import gradio as gr

from app.ui.page import QUEUE_SECONDS, _page


def test_gradio_s_queue_rests() -> None:
    assert hasattr(gr.Blocks(analytics_enabled=False)._queue, "sleep_when_free"), "Gradio calls it otherwise by now"
    assert _page()._queue.sleep_when_free == QUEUE_SECONDS


def test_its_sources_are_not_read_for_type_stubs() -> None:
    """It takes a process of its own: here Gradio is imported already."""
    page = "import ast; del ast.get_source_segment; import app.ui.page"
    subprocess.run([sys.executable, "-c", page], check=True)
    itself = page.replace("app.ui.page", "gradio")
    assert subprocess.run([sys.executable, "-c", itself], stderr=subprocess.DEVNULL).returncode, "it needs no help now"
