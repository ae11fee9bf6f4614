"""The loaded model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from gradio.events import EventListener, Events

from app.ui.components.component import FileComponent


class Model(FileComponent):
    """The loaded model and its state, with buttons that load another one or let it sleep.

    The value is the engine's state: a dict as ``GET /api/engine`` returns it (``EngineView`` in
    ``app/api/ops/engine.py``), or None before it is known. A listener of ``swap``, ``sleep`` and ``wake`` adds two
    keys: ``request``, the event's own, which ends the wait for it, and ``error``, why it failed, a sentence or None.
    """

    # None is called "load": Gradio runs the listeners of an event of that name when the page loads.
    EVENTS: ClassVar = [
        Events.change,
        EventListener("refresh", doc="The state is asked for: once a second while it is visible or a model loads."),
        EventListener("swap", doc="A user wants to load another model. Data: `model` (folder or hub id), `request`."),
        EventListener("sleep", doc="A user wants the model to be unloaded. Data: `request`."),
        EventListener("wake", doc="A user wants the model to be loaded again. Data: `request`."),
        EventListener("another_state", doc="The value shows another model, or another state of it. No data."),
    ]

    def __init__(
        self,
        value: dict[str, Any] | Callable[[], dict[str, Any]] | None = None,
        *,
        can_change: bool = False,
        elem_id: str | None = None,
        elem_classes: list[str] | str | None = None,
        visible: bool = True,
        render: bool = True,
    ) -> None:
        """Args:
            value: the engine's state, or a function that returns it when the page loads.
            can_change: offer to load another model, to sleep and to wake. The listeners must check the role again.

        Raises:
            ValueError: ``value`` is no dict.
        """
        super().__init__(
            value,
            elem_id=elem_id,
            elem_classes=elem_classes,
            visible=visible,
            render=render,
            can_change=can_change,
        )

    def validate(self, value: object) -> dict[str, Any] | None:
        if value is None or value == "":
            return None
        if not isinstance(value, dict):
            raise ValueError(f"The engine's state must be a dict (got {type(value).__name__}).")
        return value

    def api_info(self) -> dict[str, Any]:
        return {"type": "object"}

    def example_payload(self) -> dict[str, Any]:
        return {"state": "ready", "remote": True, "source": "models/guide", "model": {"name": "guide"}}
