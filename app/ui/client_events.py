"""Gradio events that run in the browser only. The page uses the JSON API and never Gradio's queue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gradio.components import Component


def on_client(
    listener: Callable[..., Any],
    js: str,
    *,
    inputs: Sequence[Component] | None = None,
    outputs: Sequence[Component] | None = None,
) -> None:
    """Call the JavaScript function ``js`` on an event, with the values of ``inputs``; its result sets ``outputs``."""
    listener(
        fn=None,
        inputs=list(inputs or ()),
        outputs=list(outputs or ()),
        js=js,
        queue=False,
        show_progress="hidden",
        api_visibility="private",
        trigger_mode="multiple",
    )
