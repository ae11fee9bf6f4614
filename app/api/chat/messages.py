"""Chat API: edits, regenerates, branches, deletes and rates messages. Messages form a tree; none is overwritten."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Path, Query
from pydantic import Field

from app.api.chat.comparisons import MAX_VARIANTS, Comparison, Variants
from app.api.chat.turns import Collections
from app.api.deps import ServicesDep, UserId
from app.api.request_model import RequestId, RequestModel
from app.domain.chat_settings import ChatSettings
from app.domain.feedback import FeedbackView, Opinion, Rating, Reason
from app.domain.views import VersionView
from app.store.chat.deletions import Deletion
from app.turns.lens import LensChoice, LensView
from app.turns.service import TurnRef
from app.turns.turn_requests import ToolDecision

router = APIRouter(prefix="/api/messages/{message_id}", tags=["messages"])
deletions_router = APIRouter(prefix="/api/deletions", tags=["messages"])


MAX_INDEX = 2**31 - 1
ToolUseId = Annotated[str, Field(max_length=200)]


class Continuation(RequestModel):
    """Options of a continued reply."""

    settings: ChatSettings | None = Field(None, description="Saved on the conversation; default: its current ones.")


class AnotherReply(Continuation):
    """Options of another reply."""

    collections: Collections = None
    request_id: RequestId = None


class EditedMessage(AnotherReply):
    """The edited message."""

    text: str = Field(description="The new text.")


class GivenFeedback(RequestModel):
    """The user's rating of a reply."""

    rating: Rating = Field(description="Thumb up or down.")
    reasons: tuple[Reason, ...] = Field((), max_length=len(Reason), description="Reasons that go with the rating.")
    comment: str = Field("", description="Free text.")


@dataclass(frozen=True, slots=True)
class Versions:
    """Versions of a reply."""

    versions: tuple[VersionView, ...]  #: oldest first


@dataclass(frozen=True, slots=True)
class ConversationRef:
    """The conversation to show."""

    conversation_id: str


@dataclass(frozen=True, slots=True)
class RestoredConversations(ConversationRef):
    """What a deletion had deleted, or deleted messages of."""

    conversation_ids: tuple[str, ...]  #: all of them; the first one is ``conversation_id``


@router.post("/edit", status_code=201)
async def edit_message(message_id: str, edited: EditedMessage, user_id: UserId, services: ServicesDep) -> TurnRef:
    """Edits a message: adds the new text as a sibling, and replies to it. The old message and its replies stay."""
    return await (await services.chats_with(message_id)).turns.edit(
        user_id,
        message_id,
        text=edited.text,
        settings=edited.settings,
        collections=edited.collections,
        request_id=edited.request_id,
    )


@router.post("/regenerate", status_code=201)
async def regenerate_reply(message_id: str, options: AnotherReply, user_id: UserId, services: ServicesDep) -> TurnRef:
    """Generates another reply next to this one, or to this message. Existing replies stay."""
    return await (await services.chats_with(message_id)).turns.regenerate(
        user_id,
        message_id,
        settings=options.settings,
        collections=options.collections,
        request_id=options.request_id,
    )


@router.get("/lens")
async def look_into_reply(message_id: str, user_id: UserId, services: ServicesDep) -> LensView:
    """Shows how each token of a reply was chosen: its probability before and after the settings, and the entropy.

    It is computed now, with the model that is loaded, and counts as tokens of the user's.
    """
    return await (await services.chats_with(message_id)).turns.lens.view(user_id, message_id)


@router.get("/lens/{index}")
async def look_into_choice(
    message_id: str,
    index: Annotated[int, Path(ge=0, le=MAX_INDEX, description="Of the token in the reply, from 0.")],
    user_id: UserId,
    services: ServicesDep,
) -> LensChoice:
    """Shows the choice of one token: the likeliest alternatives, what removed each, and the whole row of scores."""
    return await (await services.chats_with(message_id)).turns.lens.choice(user_id, message_id, index)


class BranchPoint(Continuation):
    """Where a reply branches, and with which token it goes on."""

    index: int = Field(ge=0, le=MAX_INDEX, description="Index of the token to replace, as in the reply's lens.")
    token_id: int = Field(ge=0, le=MAX_INDEX, description="Id of the token to put in its place.")
    request_id: RequestId = None


@router.post("/branch-at", status_code=201)
async def branch_reply(message_id: str, point: BranchPoint, user_id: UserId, services: ServicesDep) -> TurnRef:
    """Writes another version of a reply: the same tokens up to a place, then the chosen one, then on from there."""
    return await (await services.chats_with(message_id)).turns.branch_at(
        user_id,
        message_id,
        index=point.index,
        token_id=point.token_id,
        settings=point.settings,
        request_id=point.request_id,
    )


class ContinuedReply(Continuation):
    """How a reply goes on."""

    as_version: bool = Field(
        False,
        description="Write the longer reply as another version. The reply stays, and messages may follow it.",
    )
    request_id: str | None = Field(
        None, min_length=1, max_length=100, description="Idempotency key of another version, see POST /api/turns."
    )


@router.post("/continue", status_code=201)
async def continue_reply(message_id: str, how: ContinuedReply, user_id: UserId, services: ServicesDep) -> TurnRef:
    """Continues a reply that was stopped, was interrupted, or reached its maximum length."""
    turns = (await services.chats_with(message_id)).turns
    if how.as_version:
        return await turns.resume_as_version(user_id, message_id, settings=how.settings, request_id=how.request_id)
    return await turns.resume(user_id, message_id, settings=how.settings)


class EditedReply(Continuation):
    """A reply as the user wants it to begin."""

    text: str = Field(description="The text, from the reply's beginning on.")
    request_id: RequestId = None


@router.post("/rewrite", status_code=201)
async def rewrite_reply(message_id: str, edited: EditedReply, user_id: UserId, services: ServicesDep) -> TurnRef:
    """Writes another version of a reply, which begins with the given text and is marked as edited."""
    return await (await services.chats_with(message_id)).turns.rewrite(
        user_id, message_id, text=edited.text, settings=edited.settings, request_id=edited.request_id
    )


class MoreReplies(Continuation):
    """Replies to compare."""

    variants: Variants
    request_id: RequestId = None


@router.post("/compare", status_code=201)
async def compare_replies(message_id: str, wanted: MoreReplies, user_id: UserId, services: ServicesDep) -> Comparison:
    """Generates several replies to this message, or to the one that this is a reply to, each with its own settings."""
    turns = (await services.chats_with(message_id)).turns
    refs = await turns.compare_again(
        user_id, message_id, wanted.variants, settings=wanted.settings, request_id=wanted.request_id
    )
    return Comparison(refs)


@router.get("/versions")
async def list_versions(
    message_id: str,
    user_id: UserId,
    services: ServicesDep,
    id: Annotated[
        list[Annotated[str, Field(max_length=100)]] | None,
        Query(
            description="Ids of versions of this reply, up to four; default: only this one.", max_length=MAX_VARIANTS
        ),
    ] = None,
) -> Versions:
    """Returns versions of a reply, each with its seed, its model and the settings that it was written with."""
    conversations = (await services.chats_with(message_id)).conversations
    return Versions(await conversations.versions(user_id, message_id, id or ()))


class GivenDecision(Continuation):
    """The user's decision about the calls of tools that wait for it: each of them is allowed or denied."""

    allow: frozenset[ToolUseId] = Field(frozenset(), max_length=100, description="Ids of the calls that may run.")
    allow_for_chat: frozenset[ToolUseId] = Field(
        frozenset(),
        max_length=100,
        description="Ids of more calls that may run, and whose tools are not asked about again in this conversation.",
    )
    deny: frozenset[ToolUseId] = Field(frozenset(), max_length=100, description="Ids of the calls that may not.")


@router.post("/tools", status_code=201)
async def decide_tools(message_id: str, given: GivenDecision, user_id: UserId, services: ServicesDep) -> TurnRef:
    """Goes on with a reply that waits for a decision about its calls of tools; runs those that are allowed."""
    decision = ToolDecision(given.allow | given.allow_for_chat, given.deny, given.allow_for_chat)
    return await (await services.chats_with(message_id)).turns.decide(
        user_id, message_id, decision, settings=given.settings
    )


@router.post("/show", status_code=204)
async def show_message(message_id: str, user_id: UserId, services: ServicesDep) -> None:
    """Shows the branch of this message."""
    await (await services.chats_with(message_id)).conversations.show(user_id, message_id)


@router.post("/branch", status_code=201)
async def branch_conversation(message_id: str, user_id: UserId, services: ServicesDep) -> ConversationRef:
    """Copies the conversation up to this message into a new one."""
    return ConversationRef(await (await services.chats_with(message_id)).conversations.branch(user_id, message_id))


@router.delete("")
async def delete_message(message_id: str, user_id: UserId, services: ServicesDep) -> Deletion:
    """Deletes a message with all that follows it. Can be undone for an hour."""
    return await (await services.chats_with(message_id)).deletions.delete(user_id, message_id)


@router.put("/feedback")
async def rate_reply(message_id: str, given: GivenFeedback, user_id: UserId, services: ServicesDep) -> FeedbackView:
    """Rates a reply; replaces an earlier rating."""
    opinion = Opinion(given.rating, given.reasons, given.comment)
    return await (await services.chats_with(message_id)).feedback.put(user_id, message_id, opinion)


@router.delete("/feedback", status_code=204)
async def unrate_reply(message_id: str, user_id: UserId, services: ServicesDep) -> None:
    """Removes the rating of a reply. Does nothing if there is none."""
    await (await services.chats_with(message_id)).feedback.remove(user_id, message_id)


@deletions_router.post("/{deletion_id}/undo")
async def undo_deletion(deletion_id: str, user_id: UserId, services: ServicesDep) -> RestoredConversations:
    """Undoes a deletion of messages or of whole conversations."""
    restored = await (await services.chats_with(deletion_id)).deletions.undo(user_id, deletion_id)
    return RestoredConversations(restored[0], restored)
