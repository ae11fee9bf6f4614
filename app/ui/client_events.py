"""Gradio's listeners as this page uses them: in the browser only, and in Python with the page's check before."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from gradio.components import Component

from app.ui.component_files import SCRIPT_ROOT, import_module

_OPTIONS: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}


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
        trigger_mode="multiple",
        **_OPTIONS,
    )


def on_server(
    listener: Callable[..., Any],
    fn: Callable[..., Any],
    *,
    inputs: Sequence[Component] | None = None,
    outputs: Sequence[Component] | None = None,
    trigger_mode: str = "always_last",
) -> Any:
    """Call the Python function ``fn`` on an event, if the page reaches the server. Returns Gradio's dependency.

    Otherwise the listeners of its ``failure`` run, and those in the browser stay alive (see ``beforeServerListeners``
    in ``shared/component.js``). ``fn`` gets the values as the browser sent them: it checks them itself, because Gradio
    knows no choices that the page has set, and its errors for them say nothing to a user.
    """
    return listener(
        fn=fn,
        inputs=list(inputs or ()),
        outputs=list(outputs or ()),
        js=f"async (...values) => {{ await (await {_scripts()}).reachServer(); return values; }}",
        preprocess=False,
        queue=False,
        trigger_mode=trigger_mode,
        **_OPTIONS,
    )


def call(name: str, method: str, *values: object) -> str:
    """Return a JavaScript function that calls a method of a script with ``values`` and what Gradio passes.

    Args:
        name: of the script, as in ``register`` or ``load`` of ``shared/component.js``. Where no script has it, the
            function does nothing.
    """
    given = "".join(f"{json.dumps(value)}, " for value in (name, method, *values))
    return f"async (...given) => (await {_scripts()}).call({given}...given)"


def _scripts() -> str:
    """Return a JavaScript expression: the promise of the module ``shared/component.js``."""
    return f"(() => {{ {SCRIPT_ROOT} return {import_module('shared/component.js')}; }})()"
