"""The reply formats that are known, by the names that the field gives them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from engine.text.reply_formats.reply_format import CallSyntax, Notation, Tags

REASONING: Mapping[str, Tags] = MappingProxyType({"think": Tags("<think>", "</think>")})
"""Tags around thinking, by name."""

CALLS: Mapping[str, CallSyntax] = MappingProxyType(
    {"hermes": CallSyntax(notation=Notation.JSON_OBJECT, tags=Tags("<tool_call>", "</tool_call>"))}
)
"""How tool calls are written, by name."""

FINGERPRINTS: Sequence[tuple[str, Sequence[str]]] = (("hermes", ("<tool_call>",)),)
"""Texts that a chat template contains if its model writes calls in this way. The first one that fits is taken."""
