"""What a reply format consists of: the tags around thinking, and how tool calls are written."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class Tags:
    """Texts at the beginning and at the end of a part of a reply. Empty, the part has no such text."""

    open: str = ""
    close: str = ""


class Notation(StrEnum):
    """How one call writes the tool's name and its arguments."""

    JSON_OBJECT = "json_object"  #: {"name": "f", "arguments": {"a": 1}}, or a list of these
    NAMED_JSON = "named_json"  #: the name, then the arguments as a JSON object; or as above
    PARAMETERS = "parameters"  #: the name, then a key and a value in tags for each argument
    PYTHONIC = "pythonic"  #: [f(a=1), g(b="x")]
    BRACES = "braces"  #: call:f{a:1,b:<escape>x<escape>}


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSyntax:
    """How tool calls are written. White space between the parts is skipped.

    Args:
        notation: what stands between the tags.
        tags: texts around each call.
        section: texts around all calls.
        starts_with: characters with which a reply begins that is a call without an opening tag; empty if none is.
        arguments_key: in a JSON object, the key of the arguments; the parser accepts ``arguments`` and ``parameters``.
        name: texts around the name.
        arguments_close: text after the arguments.
        key: texts around the key of an argument.
        value: texts around its value.
        string: text on both sides of a string, in braces.
        space: white space that models write between the parts, which a grammar holds them to.
    """

    notation: Notation
    tags: Tags
    section: Tags = Tags()
    starts_with: str = ""
    arguments_key: str = "arguments"
    name: Tags = Tags()
    arguments_close: str = ""
    key: Tags = Tags()
    value: Tags = Tags()
    string: str = ""
    space: str = ""

    @property
    def markers(self) -> tuple[str, ...]:
        """The texts that tell the parts of a call apart."""
        pairs = (self.tags, self.section, self.name, self.key, self.value)
        return (*(text for pair in pairs for text in (pair.open, pair.close)), self.string)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyFormat:
    """How a model writes a reply. Empty, a reply is its text.

    Args:
        reasoning: tags around thinking, which comes before the answer.
        calls: how tool calls are written; None if the model is not known to write any.
        has_channels: the reply is a series of messages to channels, as gpt-oss writes it (Harmony).
    """

    reasoning: Tags | None = None
    calls: CallSyntax | None = None
    has_channels: bool = False

    @property
    def thinking_end(self) -> str:
        """The text that ends thinking and begins the answer; empty if the format knows no thinking."""
        if self.has_channels:
            return "<|end|><|start|>assistant<|channel|>final<|message|>"
        return "" if self.reasoning is None else f"\n{self.reasoning.close}\n\n"

    @property
    def markers(self) -> tuple[str, ...]:
        """The texts that tell the parts of a reply apart."""
        reasoning = () if self.reasoning is None else (self.reasoning.open, self.reasoning.close)
        return (*reasoning, *(self.calls.markers if self.calls else ()), *(HARMONY if self.has_channels else ()))


HARMONY = ("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>", "<|return|>")
"""The special tokens of Harmony."""
