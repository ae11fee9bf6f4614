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
from app.errors import NotFound
from app.services.container import Services
from app.store.chat.bulk_changes import BulkChange
from app.store.chat.conversations import clean_tags
from app.store.chat.deletions import ConversationDeletion
from app.turns.sources import GONE

router = APIRouter(prefix="/api/conversations", tags=["conversations"])
tags_router = APIRouter(prefix="/api/tags", tags=["conversations"])


MAX_CHOSEN = 500
ConversationId = Annotated[str, Field(max_length=100)]


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
    folder_id: str | None = Field(None, max_length=100, description="The folder to move it into; null: out of any.")


class ChosenConversations(RequestModel):
    """Some of the caller's conversations."""

    ids: list[ConversationId] = Field(min_length=1, max_length=MAX_CHOSEN, description="Their ids.")


class ManyChange(ChosenConversations):
    """Changes to many conversations; omitted fields stay."""

    archived: bool | None = Field(None, description="Hidden from the list, but found by search.")
    add_tags: list[str] = Field([], description="Tags to add to those that each has.")
    folder_id: str | None = Field(None, max_length=100, description="The folder to move them into; null: out of any.")


@dataclass(frozen=True, slots=True)
class ChangedConversations:
    """How many conversations were changed."""

    changed: int


@router.get("")
async def list_conversations(
    user_id: UserId,
    services: ServicesDep,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    cursor: str | None = None,
    query: Annotated[str | None, Query(max_length=200)] = None,
    tag: Annotated[str | None, Query(max_length=50)] = None,
    archived: bool = False,
    folder: Annotated[str | None, Query(max_length=100)] = None,
) -> Page[ConversationSummary]:
    """Lists conversations, pinned ones first, then newest first; ``cursor`` is the last page's ``next_cursor``.

    ``query`` finds words in titles and messages by their prefix, archived or not; ``message_id`` is the latest hit.
    ``folder`` is a folder's id, or ``none`` for the conversations that are in no folder.
    """
    return await services.conversations.list(
        user_id, limit=limit, cursor=cursor, query=query, tag=tag, archived=archived, folder=folder
    )


@router.post("", status_code=201)
async def create_conversation(new: NewConversation, user_id: UserId, services: ServicesDep) -> CreatedConversation:
    """Creates a conversation without messages. ``POST /api/turns`` creates one with its first message."""
    settings = new.settings or ChatSettings()
    settings.sampling_params()  # raises for values out of range before anything is created
    await _require_sources(services, user_id, settings)
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
    """Renames, pins, archives, tags or moves a conversation, marks it as read or unread, or saves its settings."""
    if change.tags is not None:
        clean_tags(change.tags)
    if change.settings is not None:
        change.settings.sampling_params()  # raises for values out of range before anything is changed
        await _require_sources(services, user_id, change.settings)
    conversations = (await services.chats_with(conversation_id)).conversations
    if change.title is not None:
        await conversations.rename(user_id, conversation_id, change.title)
    if change.settings is not None:
        await conversations.save_settings(user_id, conversation_id, change.settings)
    if change.tags is not None:
        await conversations.set_tags(user_id, conversation_id, change.tags)
    if "folder_id" in change.model_fields_set:
        await conversations.move(user_id, conversation_id, change.folder_id)
    await conversations.mark(
        user_id, conversation_id, pinned=change.pinned, archived=change.archived, unread=change.unread
    )


@router.delete("/{conversation_id}", status_code=204)
async def delete_conversation(conversation_id: str, user_id: UserId, services: ServicesDep) -> None:
    """Deletes a conversation permanently. A reply in flight is stopped first."""
    await (await services.chats_with(conversation_id)).turns.delete_conversation(user_id, conversation_id)


@router.post("/delete")
async def delete_conversations(
    chosen: ChosenConversations, user_id: UserId, services: ServicesDep
) -> ConversationDeletion:
    """Deletes conversations; replies in flight are stopped. Can be undone for an hour.

    Those that are missing are left out. A temporary chat is not found here: it can only be deleted permanently.
    """
    return await services.chats.delete_conversations(user_id, chosen.ids)


@router.post("/change")
async def change_conversations(change: ManyChange, user_id: UserId, services: ServicesDep) -> ChangedConversations:
    """Archives conversations, tags them or moves them into a folder. Those that are missing are left out."""
    wanted = BulkChange(
        add_tags=change.add_tags,
        archived=change.archived,
        moves="folder_id" in change.model_fields_set,
        folder_id=change.folder_id,
    )
    return ChangedConversations(await services.bulk_changes.change(user_id, change.ids, wanted))


async def _require_sources(services: Services, user_id: str, settings: ChatSettings) -> None:
    """Checks that the user may use the collections of these settings, as a turn does.

    Raises:
        NotFound: one of them is missing, or the user may not use it.
    """
    if not settings.collections:
        return
    try:
        await services.knowledge.collections.require_usable(user_id, list(settings.collections))
    except NotFound as error:
        raise NotFound(GONE) from error


@tags_router.get("")
async def list_tags(user_id: UserId, services: ServicesDep) -> dict[str, int]:
    """Lists the tags in alphabetical order, each with its number of conversations."""
    return await services.conversations.tags(user_id)
