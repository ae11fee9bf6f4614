"""The message box."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from gradio.events import Events

from app.ui.components.component import FileComponent, quiet_event
from app.ui.components.composer.canned_replies import CannedReply, validate_canned
from app.ui.components.values import validate_text


class Composer(FileComponent):
    """The box for a message, with the buttons that send it, stop a reply and insert a canned reply.

    The value is the text in the box, a string. A listener that returns ``Composer(value="")`` clears the box. While
    ``replying`` is true, the button to stop stands in place of the one to send, and Esc stops the reply; a listener
    that yields ``Composer(replying=True)`` at first and ``Composer(replying=False)`` at its end drives it.
    """

    EVENTS: ClassVar = [
        Events.change,
        quiet_event("input", "A user changed the text. Data: `text`."),
        quiet_event(
            "submit",
            "A user sends the message: presses Enter or the button. The value is set before. Data: `text`. Not raised "
            "while `replying`.",
        ),
        quiet_event("stop", "A user wants to stop the reply. Raised while `replying` only. No data."),
        quiet_event("draft", "A user wants a draft of a reply to the customer's message. Data: `text`, of the box."),
        quiet_event("compare", "A user wants to compare several replies to the message. Data: `text`, of the box."),
        quiet_event("canned_open", "A user opened the list of canned replies, which a listener may renew. No data."),
        quiet_event(
            "canned_fill",
            "A user chose a canned reply. Data: `name`, `values` (of its variables, by name). The component inserts "
            "its `body`, with the values filled in; a listener inserts the text of a reply without one.",
        ),
    ]

    def __init__(
        self,
        value: str | Callable[[], str] | None = "",
        *,
        placeholder: str = "Write a message",
        submit_label: str = "Send",
        stop_label: str = "Stop",
        hint: str = "Press Enter to send, Shift+Enter for a new line, Esc to stop a reply.",
        canned: Sequence[CannedReply] | None = None,
        drafts: bool = False,
        comparisons: bool = False,
        canned_empty: str = "There are no canned replies yet.",
        max_length: int | None = None,
        last_message: str | None = None,
        error: str = "",
        note: str = "",
        replying: bool = False,
        interactive: bool = True,
        elem_id: str | None = None,
        elem_classes: list[str] | str | None = None,
        visible: bool = True,
        render: bool = True,
    ) -> None:
        """Args:
            value: the text in the box, or a function that returns it when the page loads.
            placeholder: what the empty box says.
            submit_label: text of the button that sends.
            stop_label: text of the button that stops a reply.
            hint: text below the box.
            canned: canned replies to choose from, by a button or by "/" in the empty box. None: no button.
            drafts: offer to draft a reply to a customer, by a button and, with ``canned``, by "/draft".
            comparisons: offer to compare several replies to the message, by a button.
            canned_empty: what the list says if ``canned`` is empty.
            max_length: maximum length of the text, in UTF-16 code units. None: no limit.
            last_message: the text that the arrow key up brings back into the empty box.
            error: text of an alert above the box; it goes when the user types.
            note: text above the box that stays.
            replying: a reply is being written: offer to stop it, and send nothing.
            interactive: the user can write and send.

        Raises:
            ValueError: ``value`` is no string, ``canned`` no list of canned replies, or ``max_length`` below 1.
        """
        if max_length is not None and max_length < 1:
            raise ValueError(f"max_length must be at least 1, not {max_length}.")
        super().__init__(
            value,
            elem_id=elem_id,
            elem_classes=elem_classes,
            visible=visible,
            render=render,
            placeholder=placeholder,
            submit_label=submit_label,
            stop_label=stop_label,
            hint=hint,
            canned=validate_canned(canned),
            drafts=drafts,
            comparisons=comparisons,
            canned_empty=canned_empty,
            max_length=max_length,
            last_message=last_message,
            error=error,
            note=note,
            replying=replying,
            interactive=interactive,
        )

    def validate(self, value: object) -> str:
        return validate_text(value, "The text of the message box")

    def api_info(self) -> dict[str, Any]:
        return {"type": "string"}

    def example_payload(self) -> str:
        return "Hello!"
