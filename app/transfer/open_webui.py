"""Reads Open WebUI's export: a list of chats. Newer ones have a tree, ``history``, older ones a list, ``messages``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.domain.broken_conversation import BrokenConversation
from app.domain.views import Role
from app.transfer.fields import a_list, an_object, parts_text, text_or_none
from app.transfer.foreign import ForeignConversation, ForeignMessage, moment

PROGRAM = "open-webui"
_ROLES = {"user": Role.USER, "assistant": Role.ASSISTANT}


def can_read(conversation: Mapping[str, Any]) -> bool:
    return any(isinstance(conversation.get(name), kind) for name, kind in _SHAPES.items())


_SHAPES: Mapping[str, type] = {"chat": dict, "history": dict, "messages": list}


def read(conversation: Mapping[str, Any]) -> ForeignConversation:
    """Reads one chat.

    Raises:
        BrokenConversation: the messages are neither a tree nor a list.
    """
    # The oldest exports have the bare chat, without its metadata around it.
    within = "chat." if "chat" in conversation else ""
    chat = an_object(conversation["chat"], "chat") if within else conversation
    history = chat.get("history")
    tip = None
    if isinstance(history, dict) and history.get("messages"):
        messages, field = _tree(history["messages"], f"{within}history.messages"), f"{within}history.messages"
        tip = history.get("currentId")
    else:
        messages, field = _row(chat.get("messages"), f"{within}messages"), f"{within}messages"
    meta = conversation.get("meta")
    tags = meta.get("tags") if isinstance(meta, dict) else chat.get("tags")
    params = chat.get("params")
    system = next(
        (
            text
            for role, text in ((m.get("role"), m.get("content")) for m in messages.values())
            if role == "system" and isinstance(text, str)
        ),
        "",
    )
    return ForeignConversation(
        program=PROGRAM,
        id=text_or_none(conversation, "id") or text_or_none(chat, "id"),
        messages=[_message(key, message, f"{field}.{key}") for key, message in messages.items()],
        tip=tip if isinstance(tip, str) else None,
        title=text_or_none(conversation, "title") or text_or_none(chat, "title"),
        created_at=moment(conversation.get("created_at")) or moment(chat.get("timestamp")),
        updated_at=moment(conversation.get("updated_at")),
        pinned=conversation.get("pinned") is True,
        archived=conversation.get("archived") is True,
        tags=[_tag_name(tag) for tag in tags] if isinstance(tags, list) else (),
        system_prompt=(text_or_none(params, "system") if isinstance(params, dict) else None) or system,
    )


def _tree(value: Any, field: str) -> dict[str, dict[str, Any]]:
    messages = {key: an_object(message, f"{field}.{key}") for key, message in an_object(value, field).items()}
    order: dict[str, int] = {}
    for key, message in messages.items():
        parent = message.get("parentId")
        if parent is not None and (not isinstance(parent, str) or parent not in messages):
            raise BrokenConversation(f"{field}.{key}.parentId", "there is no message with this id")
        for child in a_list(message.get("childrenIds") or [], f"{field}.{key}.childrenIds"):
            if isinstance(child, str):
                order[child] = len(order)
    return dict(sorted(messages.items(), key=lambda item: order.get(item[0], len(order))))


def _row(value: Any, field: str) -> dict[str, dict[str, Any]]:
    """The messages of a list, each the parent of the next."""
    messages: dict[str, dict[str, Any]] = {}
    before = None
    for index, message in enumerate(a_list(value, field)):
        messages[str(index)] = {**an_object(message, f"{field}[{index}]"), "parentId": before}
        before = str(index)
    return messages


def _message(key: str, message: Mapping[str, Any], field: str) -> ForeignMessage:
    role = message.get("role")
    if not isinstance(role, str):
        raise BrokenConversation(f"{field}.role", "this should be text")
    content = message.get("content")
    if content is not None and not isinstance(content, str | list):
        raise BrokenConversation(f"{field}.content", "this should be text")
    error = message.get("error")
    return ForeignMessage(
        key=key,
        parent=message.get("parentId"),
        role=_ROLES.get(role),
        text=parts_text(content),
        at=moment(message.get("timestamp")),
        model=text_or_none(message, "model", "modelName"),
        error=_error(error) if error else None,
        complete=message.get("done") is not False,
    )


def _error(error: Any) -> str:
    text = text_or_none(error, "content", "message") if isinstance(error, dict) else error
    return text if isinstance(text, str) and text.strip() else "The reply failed there."


def _tag_name(tag: Any) -> str:
    name = tag.get("name") if isinstance(tag, dict) else tag
    return name if isinstance(name, str) else ""
