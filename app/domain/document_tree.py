"""The message tree of a document: parents, depths, and the latest branch."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

from app.domain.broken_conversation import BrokenConversation
from app.domain.conversation_document import ConversationDocument, MessageDocument
from app.domain.views import Role

Key = TypeVar("Key", bound=Hashable)


def positions(conversation: ConversationDocument) -> dict[str, int]:
    """Depths of the messages by id, in ascending order of depth.

    Raises:
        BrokenConversation: the messages do not form a valid tree.
    """
    by_id: dict[str, MessageDocument] = {}
    for index, message in enumerate(conversation.messages):
        if message.id in by_id:
            raise BrokenConversation(f"messages[{index}].id", "another message has this id too")
        by_id[message.id] = message
    for index, message in enumerate(conversation.messages):
        _check_parent(f"messages[{index}]", message, by_id)
        if message.role is Role.USER and message.turn is not None:
            raise BrokenConversation(f"messages[{index}].turn", "only a reply has one")
    depths = dict(depths_of({message.id: message.parent_id for message in conversation.messages}))
    if len(depths) < len(by_id):
        index = next(i for i, message in enumerate(conversation.messages) if message.id not in depths)
        raise BrokenConversation(f"messages[{index}].parent_id", "the message follows itself")
    if conversation.tip is not None and conversation.tip not in by_id:
        raise BrokenConversation("tip", "there is no message with this id")
    return depths


def depths_of(parents: Mapping[Key, Key | None]) -> Iterable[tuple[Key, int]]:
    """Each key that is reachable from a root, with its depth, in breadth-first order."""
    following: dict[Key | None, list[Key]] = {}
    for key, parent in parents.items():
        following.setdefault(parent, []).append(key)
    level, depth = following.get(None, []), 0
    while level:
        for key in level:
            yield key, depth
        level = [child for key in level for child in following.get(key, ())]
        depth += 1


def latest_tip(messages: Sequence[MessageDocument]) -> str | None:
    """The last message of the branch that takes the latest version at every fork; None without messages."""
    latest: dict[str | None, str] = {}
    for message in messages:
        latest[message.parent_id] = max(latest.get(message.parent_id, ""), message.id)
    tip = None
    while tip in latest:
        tip = latest[tip]
    return tip


def _check_parent(where: str, message: MessageDocument, by_id: Mapping[str, MessageDocument]) -> None:
    if message.parent_id is None:
        if message.role is not Role.USER:
            raise BrokenConversation(f"{where}.parent_id", "a reply must follow a message")
        return
    parent = by_id.get(message.parent_id)
    if parent is None:
        raise BrokenConversation(f"{where}.parent_id", "there is no message with this id")
    # A user's message may follow another one: the reply between them was deleted.
    if message.role is Role.ASSISTANT and parent.role is Role.ASSISTANT:
        raise BrokenConversation(f"{where}.role", "a reply cannot follow another")
