"""What a reply format consists of: the tags around thinking, and how tool calls are written."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class Tags:
    """Texts at the beginning and at the end of a part of a reply."""

    open: str
    close: str


class Notation(StrEnum):
    """How one call writes the tool's name and its arguments."""

    JSON_OBJECT = "json_object"  #: {"name": "f", "arguments": {"a": 1}}, or a list of these


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSyntax:
    """How tool calls are written.

    Args:
        notation: what stands between the tags.
        tags: texts around each call.
        arguments_key: in a JSON object, the key of the arguments; the parser accepts ``arguments`` and ``parameters``.
    """

    notation: Notation
    tags: Tags
    arguments_key: str = "arguments"

    @property
    def markers(self) -> tuple[str, ...]:
        """The texts that tell the parts of a call apart."""
        return (self.tags.open, self.tags.close)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyFormat:
    """How a model writes a reply. Empty, a reply is its text.

    Args:
        reasoning: tags around thinking, which comes before the answer.
        calls: how tool calls are written; None if the model is not known to write any.
    """

    reasoning: Tags | None = None
    calls: CallSyntax | None = None

    @property
    def markers(self) -> tuple[str, ...]:
        """The texts that tell the parts of a reply apart."""
        reasoning = () if self.reasoning is None else (self.reasoning.open, self.reasoning.close)
        return reasoning if self.calls is None else (*reasoning, *self.calls.markers)
