"""The bar above the chat: title, state, account menu, and buttons for the side panels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from gradio.events import EventListener, Events

from app.ui.components.component import FileComponent
from app.ui.components.values import check_names, validate_text


class Header(FileComponent):
    """The bar above the chat. The value is the title, a string."""

    #: The buttons that open and close a panel beside the chat: at the left end of the bar, and at the right.
    PANELS: ClassVar = ("conversations", "settings")

    EVENTS: ClassVar = [
        Events.change,
        EventListener("toggle", doc="A user pressed the button of a panel. Data: `panel` (one of `panels`)."),
        EventListener("models_open", doc="A user pressed the button beside the status (see `models`). No data."),
        EventListener("menu_select", doc="A user chose an entry of the menu. Data: `name`."),
    ]

    def __init__(
        self,
        value: str | Callable[[], str] | None = None,
        *,
        status: str = "",
        failed: bool = False,
        temporary: bool = False,
        panels: Sequence[str] = (),
        models: bool = False,
        menu: Sequence[str] = (),
        menu_label: str = "Menu",
        elem_id: str | None = None,
        elem_classes: list[str] | str | None = None,
        visible: bool = True,
        render: bool = True,
    ) -> None:
        """Args:
            value: the title, or a function that returns it when the page loads.
            status: what the model does, for example "Ready". Empty: shows none.
            failed: show the status as a problem.
            temporary: mark the chat as temporary.
            panels: which of ``Header.PANELS`` have a button.
            models: offer a button beside the status, to choose a model.
            menu: names of the entries of the menu. Empty: there is no menu.
            menu_label: what the menu is, for screen readers and as its tooltip.

        Raises:
            ValueError: a panel is unknown, or ``value`` is no string.
        """
        check_names("panels", panels, self.PANELS)
        super().__init__(
            value,
            elem_id=elem_id,
            elem_classes=elem_classes,
            visible=visible,
            render=render,
            status=status,
            failed=failed,
            temporary=temporary,
            panels=list(panels),
            models=models,
            menu=list(menu),
            menu_label=menu_label,
        )

    def validate(self, value: object) -> str:
        return validate_text(value, "The title")

    def api_info(self) -> dict[str, Any]:
        return {"type": "string"}

    def example_payload(self) -> str:
        return "New chat"
