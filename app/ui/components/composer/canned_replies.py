"""The canned replies that the composer offers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NotRequired

from pydantic import TypeAdapter
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from app.ui.components.values import validate_items


class Variable(TypedDict):
    """What the user fills in before a canned reply is inserted."""

    name: str
    description: NotRequired[str]  #: label of its field; default: the name
    default: NotRequired[str | None]  #: None: the user has to fill it in


class CannedReply(TypedDict):
    """A text that users insert rather than write."""

    name: str  #: identifies it; unique
    title: NotRequired[str]  #: default: the name
    description: NotRequired[str]
    variables: NotRequired[Sequence[Variable]]
    #: The text, with ``{{ name }}`` for variables. Without it, a listener of ``canned_fill`` inserts the text.
    body: NotRequired[str]


_CANNED: TypeAdapter[list[CannedReply]] = TypeAdapter(list[CannedReply])


def validate_canned(value: Any) -> list[CannedReply] | None:
    """Returns ``value`` as canned replies; None: there is no list to choose from.

    Raises:
        ValueError: ``value`` is no list of canned replies, or two have the same name.
    """
    if value is None:
        return None
    whole = "The list of canned replies"
    return validate_items(_CANNED, value, whole=whole, item="Canned reply {}", key="name")
