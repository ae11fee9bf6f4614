"""Chat API: conversations and their tags."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from app.api.deps import ServicesDep, UserId
from app.api.request_model import RequestModel
from app.domain.chat_settings import ChatSettings
from app.domain.text import clean_text, title_from
from app.domain.views import ConversationSummary, ConversationView, Page
from app.store.chat.conversations import clean_tags

router = APIRouter(prefix="/api/conversations", tags=["conversations"])
tags_router = APIRouter(prefix="/api/tags", tags=["conversations"])


class NewConversation(RequestModel):
    """A conversation that begins without a message, such as with a draft of a reply."""

    text: str = Field("", description="What it is about: its title is made from this.")
    settings: ChatSettings | None = Field(None, description="Its settings; default: the server's.")
    temporary: bool = Field(False, description="Keep it in memory only, until the server ends at the latest.")


@dataclass(frozen=True, slots=True)
class CreatedConversation:
    """A conversation that was created."""

    conversation_id: str
    title: str


class ConversationChange(RequestModel):
    """Changes to a conversation; omitted fields stay."""

    title: str | None = Field(None, description="The new title.")
    settings: ChatSettings | None = Field(None, description="The new settings; replaces all of them.")
    pinned: bool | None = Field(None, description="Listed first.")
    archived: bool | None = Field(None, description="Hidden from the list, but found by search.")
    unread: bool | None = Field(None, description="A reply has finished that the user has not seen.")
    tags: list[str] | None = Field(None, description="The new tags; replaces all of them.")


@router.get("")
async def list_conversations(
    user_id: UserId,
    services: ServicesDep,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    cursor: str | None = None,
    query: Annotated[str | None, Query(max_length=200)] = None,
    tag: Annotated[str | None, Query(max_length=50)] = None,
    archived: bool = False,
) -> Page[ConversationSummary]:
    """Lists conversations, pinned ones first, then newest first; ``cursor`` is the last page's ``next_cursor``.

    ``query`` finds words in titles and messages by their prefix, archived or not; ``message_id`` is the latest hit.
    """
    return await services.conversations.list(
        user_id, limit=limit, cursor=cursor, query=query, tag=tag, archived=archived
    )


@router.post("", status_code=201)
async def create_conversation(new: NewConversation, user_id: UserId, services: ServicesDep) -> CreatedConversation:
    """Creates a conversation without messages. ``POST /api/turns`` creates one with its first message."""
    settings = new.settings or ChatSettings()
    settings.sampling_params()  # raises for values out of range before anything is created
    if settings.collections:
        await services.knowledge.collections.require_usable(user_id, list(settings.collections))
    chats = await services.temporary.begin(user_id) if new.temporary else services.chats
    title = title_from(clean_text(new.text))
    return CreatedConversation(await chats.conversations.create(user_id, title, settings), title)


@router.get("/{conversation_id}")
async def get_conversation(
    conversation_id: str,
    user_id: UserId,
    services: ServicesDep,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
    before: str | None = None,
    at: str | None = None,
) -> ConversationView:
    """Returns the last ``limit`` messages, those above message ``before``, or all from around message ``at`` on."""
    chats = await services.chats_with(conversation_id)
    view = await chats.conversations.get(user_id, conversation_id, limit=limit, before=before, at=at)
    return replace(view, temporary=chats is not services.chats)


@router.patch("/{conversation_id}", status_code=204)
async def change_conversation(
    conversation_id: str, change: ConversationChange, user_id: UserId, services: ServicesDep
) -> None:
    """Renames, pins, archives or tags a conversation, marks it as read or unread, or saves its settings."""
    if change.tags is not None:
        clean_tags(change.tags)
    if change.settings is not None:
        change.settings.sampling_params()  # raises for values out of range before anything is changed
        if change.settings.collections:
            await services.knowledge.collections.require_usable(user_id, list(change.settings.collections))
    conversations = (await services.chats_with(conversation_id)).conversations
    if change.title is not None:
        await conversations.rename(user_id, conversation_id, change.title)
    if change.settings is not None:
        await conversations.save_settings(user_id, conversation_id, change.settings)
    if change.tags is not None:
        await conversations.set_tags(user_id, conversation_id, change.tags)
    await conversations.mark(
        user_id, conversation_id, pinned=change.pinned, archived=change.archived, unread=change.unread
    )


@router.delete("/{conversation_id}", status_code=204)
async def delete_conversation(conversation_id: str, user_id: UserId, services: ServicesDep) -> None:
    """Deletes a conversation permanently. A reply in flight is stopped first."""
    await (await services.chats_with(conversation_id)).turns.delete_conversation(user_id, conversation_id)


@tags_router.get("")
async def list_tags(user_id: UserId, services: ServicesDep) -> dict[str, int]:
    """Lists the tags in alphabetical order, each with its number of conversations."""
    return await services.conversations.tags(user_id)
