"""What people say about replies: once per person and reply, changed, taken back, kept with the reply."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import func, select

from app.domain.feedback import MAX_COMMENT_CHARS, Opinion, Rating, Reason
from app.domain.ids import LOCAL_USER_ID as ME
from app.errors import Conflict, InvalidInput, NotFound
from app.services.container import Services
from app.store.db.desk_models import Feedback
from testing.fake_engine import FakeEngine
from tests.app.store.test_conversations import chat

UP, DOWN = Opinion(Rating.UP), Opinion(Rating.DOWN, (Reason.TONE, Reason.WRONG, Reason.TONE), " Not\0 so. ")


async def asked(services: Services) -> tuple[str, str, str]:
    """A conversation, its question and its reply."""
    conversation_id = await chat(services, "question")
    question, reply = (await services.conversations.get(ME, conversation_id)).messages
    return conversation_id, question.id, reply.id


async def count(services: Services) -> int:
    query = select(func.count()).select_from(Feedback)
    return await services.database.read(lambda session: session.scalar(query)) or 0


async def test_an_opinion_is_kept_changed_and_taken_back(services: Services) -> None:
    conversation_id, _, reply = await asked(services)
    feedback = services.chats.feedback
    await feedback.put(ME, reply, UP)
    given = await feedback.put(ME, reply, DOWN)
    assert (given.rating, given.reasons, given.comment) == (Rating.DOWN, (Reason.WRONG, Reason.TONE), "Not so.")
    assert await count(services) == 1
    view = await services.conversations.get(ME, conversation_id)
    assert [message.feedback for message in view.messages] == [None, given]
    assert (await services.conversations.get_message(ME, reply)).feedback == given
    await feedback.remove(ME, reply)
    await feedback.remove(ME, reply)
    assert await count(services) == 0
    assert (await services.conversations.get_message(ME, reply)).feedback is None


async def test_only_replies_of_ones_own_are_rated(services: Services, engine: FakeEngine, stranger: str) -> None:
    _, question, reply = await asked(services)
    feedback = services.chats.feedback
    with pytest.raises(InvalidInput, match="Only replies"):
        await feedback.put(ME, question, UP)
    with pytest.raises(NotFound):
        await feedback.put(stranger, reply, UP)
    with pytest.raises(NotFound):
        await feedback.remove(stranger, reply)
    with pytest.raises(NotFound):
        await feedback.put(ME, "nonsense", UP)
    gate = asyncio.Event()
    engine.say("slowly", gates={0: gate})
    ref = await services.turns.start(ME, text="and this?")
    with pytest.raises(Conflict, match="still being written"):
        await feedback.put(ME, ref.message_id, UP)
    gate.set()
    assert await count(services) == 0


@pytest.mark.parametrize(
    ("opinion", "says"),
    [
        (Opinion(Rating.UP, (Reason.WRONG,)), "does not go with a thumb up"),
        (Opinion(Rating.DOWN, (Reason.HELPFUL,)), "does not go with a thumb down"),
        (Opinion(Rating.DOWN, (), "x" * (MAX_COMMENT_CHARS + 1)), "2,001 characters"),
    ],
)
def test_what_makes_no_sense_is_refused(opinion: Opinion, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        opinion.checked()


async def test_it_goes_with_its_conversation(services: Services) -> None:
    conversation_id, _, reply = await asked(services)
    await services.chats.feedback.put(ME, reply, DOWN)
    await services.turns.delete_conversation(ME, conversation_id)
    assert await count(services) == 0


async def test_replies_of_temporary_chats_are_rated_in_memory(services: Services) -> None:
    temporary = await services.temporary.begin(ME)
    ref = await temporary.turns.start(ME, text="quietly")
    async for _ in temporary.turns.events(ME, ref.turn_id):
        pass
    await (await services.chats_with(ref.message_id)).feedback.put(ME, ref.message_id, DOWN)
    assert (await temporary.conversations.get_message(ME, ref.message_id)).feedback is not None
    assert await count(services) == 0
