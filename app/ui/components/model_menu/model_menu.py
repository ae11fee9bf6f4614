"""The menu of models: what is loaded, what can be loaded, what can be downloaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from app.ui.components.component import FileComponent, quiet_event


class ModelMenu(FileComponent):
    """A popover with the loaded model, the progress of a download, and the models that can be loaded or downloaded.

    It is shown by its script's ``open(button)``, so it belongs into a page with scripts of its own. The value is a dict
    with two keys, each of which may be missing or None: ``engine``, as ``GET /api/engine`` returns it, and ``models``,
    as ``GET /api/models`` does.
    """

    EVENTS: ClassVar = [
        quiet_event("open", "The menu was opened. No data."),
        quiet_event("close", "The menu was closed. No data."),
        quiet_event("load", "A user wants to load a model that is here. Data: `model` (its id)."),
        quiet_event(
            "download",
            "A user wants to download a model and load it. Data: `model` (a recommended name or a hub id).",
        ),
        quiet_event("cancel", "A user wants to cancel the download. No data."),
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
            value: what to show, or a function that returns it when the page loads.
            can_change: offer to load and to download models. The listeners must check the role again.

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
            raise ValueError(f"The menu's value must be a dict (got {type(value).__name__}).")
        return value

    def api_info(self) -> dict[str, Any]:
        return {"type": "object"}

    def example_payload(self) -> dict[str, Any]:
        return {"engine": None, "models": None}
