"""Reads ChatGPT's export: ``conversations.json``, a list of conversations whose messages are a tree, ``mapping``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.domain.broken_conversation import BrokenConversation
from app.domain.views import Role
from app.transfer.chatgpt_marks import replace_marks
from app.transfer.fields import a_list, an_object, parts_text, text_or_none
from app.transfer.foreign import ForeignConversation, ForeignMessage, moment

PROGRAM = "chatgpt"


def can_read(conversation: Mapping[str, Any]) -> bool:
    return "mapping" in conversation


def read(conversation: Mapping[str, Any]) -> ForeignConversation:
    """Reads one conversation.

    Raises:
        BrokenConversation: the mapping is not a tree of messages.
    """
    mapping = an_object(conversation["mapping"], "mapping")
    nodes = {key: an_object(node, f"mapping.{key}") for key, node in mapping.items()}
    order: dict[str, int] = {}
    for key, node in nodes.items():
        for child in a_list(node.get("children") or [], f"mapping.{key}.children"):
            if not isinstance(child, str) or child not in nodes:
                raise BrokenConversation(f"mapping.{key}.children", "there is no message with this id")
            order[child] = len(order)
    messages = [_message(key, node, nodes) for key, node in nodes.items()]
    messages.sort(key=lambda one: order.get(one.key, len(order)))
    tip = conversation.get("current_node")
    return ForeignConversation(
        program=PROGRAM,
        id=text_or_none(conversation, "conversation_id", "id"),
        messages=messages,
        tip=tip if isinstance(tip, str) else None,
        title=text_or_none(conversation, "title"),
        created_at=moment(conversation.get("create_time")),
        updated_at=moment(conversation.get("update_time")),
        pinned=conversation.get("is_starred") is True,
        archived=conversation.get("is_archived") is True,
    )


def _message(key: str, node: Mapping[str, Any], nodes: Mapping[str, Any]) -> ForeignMessage:
    parent = node.get("parent")
    if parent is not None and (not isinstance(parent, str) or parent not in nodes):
        raise BrokenConversation(f"mapping.{key}.parent", "there is no message with this id")
    if node.get("message") is None:
        return ForeignMessage(key=key, parent=parent, role=None, text="")
    message = an_object(node["message"], f"mapping.{key}.message")
    author = an_object(message.get("author"), f"mapping.{key}.message.author")
    metadata = message.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    hidden = metadata.get("is_visually_hidden_from_conversation") is True or metadata.get("is_user_system_message")
    is_for_user = message.get("recipient") in (None, "all")
    role = {"user": Role.USER, "assistant": Role.ASSISTANT}.get(str(author.get("role")))
    text = _text(message.get("content"), f"mapping.{key}.message.content")
    return ForeignMessage(
        key=key,
        parent=parent,
        role=role if is_for_user and not hidden else None,
        text=replace_marks(text, metadata) if role is Role.ASSISTANT else text,
        at=moment(message.get("create_time")),
        model=text_or_none(metadata, "model_slug"),
        complete=message.get("status") in (None, "finished_successfully"),
    )


def _text(content: Any, field: str) -> str:
    """The visible text of a message. Thoughts, and messages from the program to its model, are not visible."""
    if content is None:
        return ""
    content = an_object(content, field)
    kind = content.get("content_type")
    if kind in ("text", "multimodal_text"):
        parts = content.get("parts")
        return parts_text(a_list(parts, f"{field}.parts")) if parts is not None else text_or_none(content, "text") or ""
    if kind == "code" and (code := text_or_none(content, "text")):
        language = content.get("language")
        return f"```{language if isinstance(language, str) and language != 'unknown' else ''}\n{code}\n```"
    return ""
