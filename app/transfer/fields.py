"""Reads fields of foreign JSON: ignores unknown fields, is strict about required ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.domain.broken_conversation import BrokenConversation


def an_object(value: Any, field: str) -> dict[str, Any]:
    """Returns ``value`` if it is a JSON object.

    Raises:
        BrokenConversation: it is not.
    """
    if not isinstance(value, dict):
        raise BrokenConversation(field, "this should be an object")
    return value


def a_list(value: Any, field: str) -> list[Any]:
    """Returns ``value`` if it is a JSON list.

    Raises:
        BrokenConversation: it is not.
    """
    if not isinstance(value, list):
        raise BrokenConversation(field, "this should be a list")
    return value


def a_text(value: Any, field: str) -> str:
    """Returns ``value`` if it is a string.

    Raises:
        BrokenConversation: it is not.
    """
    if not isinstance(value, str):
        raise BrokenConversation(field, "this should be text")
    return value


def text_or_none(values: Mapping[str, Any], *names: str) -> str | None:
    """The first of these fields that is a non-blank string."""
    return next((value for name in names if isinstance(value := values.get(name), str) and value.strip()), None)


def parts_text(parts: Any) -> str:
    """The text of a message that is a list of texts, images and the like; other parts become their ``[kind]``."""
    if isinstance(parts, str):
        return parts
    texts: list[str] = []
    for part in parts if isinstance(parts, list) else ():
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, dict):
            kind = str(part.get("content_type") or part.get("type") or "attachment")
            text = part.get("text")
            texts.append(text if isinstance(text, str) else f"[{_KINDS.get(kind, kind)}]")
    return "\n".join(text for text in texts if text)


_KINDS = {
    "image_asset_pointer": "image",
    "image_url": "image",
    "audio_asset_pointer": "audio",
    "real_time_user_audio_video_asset_pointer": "audio",
    "video_container_asset_pointer": "video",
}
