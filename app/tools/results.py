"""Converts a tool's answer to a text of bounded length, which is data for the model and never an instruction."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mcp_types import CallToolResult

MAX_RESULT_CHARS = 32_000
"""Characters of a result that the model gets; the rest is cut, and the result says so."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The answer to a call."""

    text: str
    is_error: bool = False


def to_result(answer: CallToolResult) -> ToolResult:
    """Returns the answer's text; other content is named with its type and size, structured content is JSON."""
    parts = [_part_text(part) for part in answer.content]
    if not any(parts) and answer.structured_content is not None:
        parts = [json.dumps(answer.structured_content, ensure_ascii=False)]
    text = "\n".join(part for part in parts if part)
    return ToolResult(shortened(text) or "(The tool returned nothing.)", is_error=answer.is_error)


def shortened(text: str, max_chars: int = MAX_RESULT_CHARS) -> str:
    """Returns the text, cut to ``max_chars``."""
    if len(text) <= max_chars:
        return text
    return f"{text[:max_chars]}\n(Cut here: the result has {len(text):,} characters.)"


def _part_text(part: Any) -> str:
    if part.type == "text":
        return str(part.text)
    if part.type == "resource":
        resource = part.resource
        text = getattr(resource, "text", None)
        return str(text) if text is not None else _left_out(resource.mime_type, len(resource.blob), resource.uri)
    if part.type == "resource_link":
        return f"({part.name}: {part.uri})"
    return _left_out(part.mime_type, len(part.data))


def _left_out(mime_type: str | None, base64_chars: int, name: object = "") -> str:
    kilobytes = base64_chars * 3 // 4 // 1024
    return f"({' '.join(filter(None, (str(name), mime_type or 'binary data')))}, {kilobytes:,} KiB, left out)"
