"""The messages of a conversation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from gradio.events import Events

from app.ui.components.chat.messages import MESSAGES_SCHEMA, Message, validate_messages
from app.ui.components.component import FileComponent, quiet_event
from app.ui.components.values import check_names


class Chat(FileComponent):
    """The messages of a conversation, with a welcome screen for an empty one.

    The value is a list of messages as in ``gr.Chatbot``: ``{"role": "user" | "assistant", "content": "text"}``, with
    optional keys (``Message`` in ``app/ui/components/chat/messages.py``) for an id, a status, statistics, versions and
    feedback. Replies are rendered as Markdown, without raw HTML and pictures. A listener that yields a growing last
    reply streams it: the new text is appended, and the other messages are left alone.
    """

    STYLES: ClassVar = tuple(
        f"components/chat/{name}.css"
        for name in [
            *("markdown", "citations", "tool_cards", "attached", "welcome"),
            *("feedback", "lens", "comparison", "reply_timing"),
        ]
    )

    #: What a user can do with a message. "rate" offers feedback, "version" a switch between versions, "decide" whether
    #: a tool that the model wants to call may run, "source" a way to the documents that a reply cites, "mark" a button
    #: below each of them; each of the rest is a button that raises the event of its name, except for "copy".
    ACTIONS: ClassVar = (
        *("copy", "edit", "regenerate", "resume", "branch", "delete"),
        *("rate", "version", "decide", "source", "mark"),
        *("rewrite", "compare", "use_settings"),
    )

    EVENTS: ClassVar = [
        Events.change,
        quiet_event(
            "edit",
            "A user changed a message of theirs and sent it again. Data: `id`, `index`, `text` (the new text).",
        ),
        quiet_event("regenerate", "A user wants another reply in place of this one. Data: `id`, `index`."),
        quiet_event(
            "resume",
            "A user wants an incomplete reply to be continued. Data: `id`, `index`; `as_version` (true) if messages "
            "follow it, so that the longer reply has to be another version.",
        ),
        quiet_event(
            "rewrite",
            "A user edited a reply, which is to go on from there. Data: `id`, `index`, `text` (the new beginning).",
        ),
        quiet_event("compare", "A user wants to compare several replies in place of this one. Data: `id`, `index`."),
        quiet_event("keep", "A user keeps one of the compared replies. Data: `id`."),
        quiet_event("use_settings", "A user wants the settings of a version for the chat. Data: `id`, `index`."),
        quiet_event("branch", "A user wants a new conversation from this reply on. Data: `id`, `index`."),
        quiet_event("delete", "A user wants to delete a message and everything after it. Data: `id`, `index`."),
        quiet_event(
            "version",
            "A user wants to see another version of a message. Data: `id` (of that version), `step` (`previous` or "
            "`next`), `index` (of the version shown).",
        ),
        quiet_event(
            "rate",
            "A user gave feedback on a reply, or changed it. Data: `id`, `index`, `rating` (`up` or `down`), `reasons` "
            "(a list of names), `comment`.",
        ),
        quiet_event(
            "decide",
            "A user decided about the calls of tools that wait in a reply. Data: `id`, `index`, `allow`, "
            "`allow_for_chat` (those that need not be asked about again), `deny` (lists of the calls' ids).",
        ),
        quiet_event(
            "source",
            "A user wants to read a document that a reply cites. Data: `id`, `index`, `citation` (as in the message).",
        ),
        quiet_event(
            "mark",
            "A user says that a passage that a reply cites answers the question. Data: `id`, `index`, `citation` (as "
            "in the message).",
        ),
        quiet_event("unrate", "A user took feedback on a reply back. Data: `id`, `index`."),
        quiet_event("example_select", "A user chose an example of the welcome screen. Data: `text`."),
        quiet_event(
            "suggestion_select", "A user pressed the button beside the suggestion (see `suggestion`). No data."
        ),
        quiet_event("temporary", "A user switched the next chat to temporary or back. Data: `temporary` (a bool)."),
        quiet_event("earlier", "A user wants to see the messages above the first one (see `has_earlier`). No data."),
    ]

    def __init__(
        self,
        value: Sequence[Mapping[str, Any]] | Callable[[], Sequence[Mapping[str, Any]]] | None = None,
        *,
        actions: Sequence[str] = ("copy",),
        heading: str = "What would you like to talk about?",
        introduction: str = "",
        suggestion: Sequence[str] = (),
        examples: Sequence[str] = (),
        temporary_hint: str | None = None,
        has_earlier: bool = False,
        can_continue: bool = True,
        read_only: bool = False,
        keep_edits: bool = False,
        height: int | str | None = 480,
        elem_id: str | None = None,
        elem_classes: list[str] | str | None = None,
        visible: bool = True,
        render: bool = True,
    ) -> None:
        """Args:
            value: the messages, oldest first, or a function that returns them when the page loads.
            actions: which of ``Chat.ACTIONS`` to offer.
            heading: heading of the welcome screen, which an empty chat shows.
            introduction: text below the heading. It keeps its line breaks.
            suggestion: a sentence below the introduction, and the name of a button beside it, which may be missing.
            examples: texts that the welcome screen offers as buttons, to be sent as they stand (``example_select``).
            temporary_hint: what a temporary chat is. Given, the welcome screen offers to make the next chat one.
            has_earlier: offer to show messages above the first one.
            can_continue: incomplete replies can be resumed, if ``actions`` has "resume".
            read_only: offer only what changes nothing: "copy", "source" and "version".
            keep_edits: keep unsent edits in the browser's session storage, by message id.
            height: in pixels, or with a CSS unit. None: fills its parent, which has to be a flex column.

        Raises:
            ValueError: an action is unknown, or ``value`` is no list of messages.
        """
        check_names("actions", actions, self.ACTIONS)
        super().__init__(
            value,
            elem_id=elem_id,
            elem_classes=elem_classes,
            visible=visible,
            render=render,
            actions=list(actions),
            heading=heading,
            introduction=introduction,
            suggestion=list(suggestion),
            examples=list(examples),
            temporary_hint=temporary_hint,
            has_earlier=has_earlier,
            can_continue=can_continue,
            read_only=read_only,
            keep_edits=keep_edits,
            height=height,
        )

    def validate(self, value: object) -> list[Message]:
        return validate_messages(value)

    def api_info(self) -> dict[str, Any]:
        return MESSAGES_SCHEMA

    def example_payload(self) -> list[Message]:
        return [{"role": "user", "content": "Hi!"}, {"role": "assistant", "content": "Hello."}]
