"""The value of the conversation list: a list of summaries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NotRequired

from pydantic import TypeAdapter, with_config
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from app.ui.components.values import validate_items


class SnippetPart(TypedDict):
    """A piece of a found text."""

    text: str
    hit: bool  #: the piece matches the search


@with_config({"extra": "allow"})  # an application may keep keys of its own with a conversation
class Summary(TypedDict):
    """A row of the conversation list."""

    id: str  #: identifies the conversation in events; unique
    title: str
    #: ISO 8601 date and time of the last message, for the headings by day. Without it, a row has no heading.
    updated_at: NotRequired[str | None]
    pinned: NotRequired[bool]  #: listed under "Pinned"
    archived: NotRequired[bool]  #: listed only while the user looks at the archive
    unread: NotRequired[bool]
    streaming: NotRequired[bool]  #: a reply is being written
    tags: NotRequired[Sequence[str]]
    snippet: NotRequired[Sequence[SnippetPart]]  #: where a search found it
    message_id: NotRequired[str | None]  #: the message that a search found; part of the data of `select`
    url: NotRequired[str | None]  #: makes the row a link, which can be opened in a new tab


SUMMARIES_SCHEMA: dict[str, Any] = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {"id": {"type": "string"}, "title": {"type": "string"}},
        "required": ["id", "title"],
    },
}

_SUMMARIES: TypeAdapter[list[Summary]] = TypeAdapter(list[Summary])


def validate_summaries(value: object) -> list[Summary]:
    """Returns ``value`` as summaries; None is an empty list.

    Raises:
        ValueError: ``value`` is no list of summaries, or two have the same id; says which and which key is wrong.
    """
    if value is None or value == "":  # Gradio's front end sends "" for a component without a value
        return []
    whole = "The value of a conversation list"
    return validate_items(_SUMMARIES, value, whole=whole, item="Conversation {}", key="id")
