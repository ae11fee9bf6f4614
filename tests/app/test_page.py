"""What Gradio does for the page."""

from __future__ import annotations

import gradio as gr

from app.ui.page import QUEUE_SECONDS, _page


def test_gradio_s_queue_rests() -> None:
    assert hasattr(gr.Blocks(analytics_enabled=False)._queue, "sleep_when_free"), "Gradio calls it otherwise by now"
    assert _page()._queue.sleep_when_free == QUEUE_SECONDS
