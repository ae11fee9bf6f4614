"""Questions that sources left unanswered: which are kept, how they are grouped, who sees them; on both databases."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import func, select

from app.domain.feedback import Opinion, Rating
from app.domain.gaps import GapGroup, GapQuestion, GapReason, GapState, gap_of
from app.domain.ids import LOCAL_USER_ID as ME
from app.domain.ids import new_id
from app.errors import NotFound
from app.knowledge.gaps import MAX_SHOWN, group_questions
from app.services.container import Services
from app.store.db.knowledge_models import Gap
from app.store.knowledge.collections import Collections
from app.turns.service import TurnRef
from engine import EngineError, FinishReason
from testing.fake_engine import FakeEngine
from testing.knowledge import ScriptedSearch, passage
from tests.app.store.test_knowledge import person

NOW = datetime(2026, 11, 2, tzinfo=UTC)
RETURNS = passage("Goods can be returned within 30 days.")


def asked(question: str, minutes: int = 0) -> GapQuestion:
    return GapQuestion(
        message_id=new_id(),
        conversation_id=new_id(),
        question=question,
        user="ada",
        at=NOW + timedelta(minutes=minutes),
        reasons=(GapReason.NOTHING_FOUND,),
        collections=("c",),
        own=False,
        in_review=False,
    )


def shown(groups: tuple[GapGroup, ...]) -> list[tuple[str, int]]:
    return [(group.question, group.count) for group in groups]


def test_questions_that_ask_for_the_same_are_one_group() -> None:
    texts = [
        "How long is the warranty of the kettle?",
        "kettle warranty",
        "How do I return a parcel?",
        "What's the warranty on kettles, please?",
        "???",
        "Returning parcels",
        "!!",
        "退货需要多久",
        "退货要多久",
    ]
    groups = group_questions(asked(text, minute) for minute, text in enumerate(texts))
    assert shown(groups) == [
        ("What's the warranty on kettles, please?", 3),
        ("退货要多久", 2),
        ("Returning parcels", 2),
        ("!!", 1),
        ("???", 1),
    ]
    assert group_questions([]) == ()


def test_a_new_question_does_not_rearrange_the_groups() -> None:
    before = [asked("kettle warranty", 1), asked("parcel return", 2)]
    bridge = asked("kettle warranty parcel return", 3)
    groups = group_questions([*before, bridge])
    assert [group.count for group in groups] == [2, 1]
    assert set(groups[0].message_ids) == {before[0].message_id, bridge.message_id}
    many = group_questions(asked("kettle", number) for number in range(50))
    assert (many[0].count, len(many[0].message_ids), len(many[0].questions)) == (50, 50, MAX_SHOWN)
    assert many[0].last_at == many[0].questions[0].at == NOW + timedelta(minutes=49)


def test_a_reply_that_cites_a_source_leaves_no_gap() -> None:
    assert gap_of("So it is [1].", [RETURNS]) is None
    assert gap_of("The sources do not say.", [RETURNS]) is GapReason.NOT_CITED
    assert gap_of("`[1]` is code, and [2] names none.", [RETURNS]) is GapReason.NOT_CITED
    assert gap_of("Nothing.", []) is GapReason.NOTHING_FOUND


@pytest.fixture
def search(services: Services, engine: FakeEngine) -> ScriptedSearch:
    engine._info = replace(engine.info, num_parameters=3_000_000_000)
    services.sources.retriever = found = ScriptedSearch(members={"ours": {ME}})
    return found


async def ask(services: Services, text: str, user: str = ME, collections: tuple[str, ...] = ("ours",)) -> TurnRef:
    ref = await services.turns.start(user, text=text, collections=collections)
    async for _ in services.turns.events(user, ref.turn_id):
        pass
    return ref


async def listed(
    services: Services, reader: str = ME, state: GapState = GapState.OPEN
) -> list[tuple[str, tuple[GapReason, ...]]]:
    groups = (await services.knowledge.gaps.list(reader, state)).groups
    return [(one.question, one.reasons) for group in groups for one in group.questions]


async def test_replies_that_leave_their_question_open_are_kept(
    services: Services, engine: FakeEngine, search: ScriptedSearch
) -> None:
    await ask(services, "no sources chosen", collections=())
    await ask(services, "nothing about llamas")
    search.found = [RETURNS]
    engine.say("The sources do not say.")
    await ask(services, "anything about alpacas")
    engine.say("Within 30 days [1].")
    cited = await ask(services, "return policy")
    engine.say("broken", fail_at=1, error=EngineError("Out of memory."))
    await ask(services, "a failure is the review's")
    expected = [
        ("anything about alpacas", (GapReason.NOT_CITED,)),
        ("nothing about llamas", (GapReason.NOTHING_FOUND,)),
    ]
    assert await listed(services) == expected
    feedback = services.chats.feedback
    await feedback.put(ME, cited.message_id, Opinion(Rating.DOWN))
    await feedback.put(ME, cited.message_id, Opinion(Rating.DOWN, comment="No."))
    assert await listed(services) == [("return policy", (GapReason.DISLIKED,)), *expected]
    await feedback.put(ME, cited.message_id, Opinion(Rating.UP))
    assert await listed(services) == expected
    await feedback.put(ME, cited.message_id, Opinion(Rating.DOWN))
    await feedback.remove(ME, cited.message_id)
    assert await listed(services) == expected


async def test_a_reply_that_goes_on_to_cite_closes_its_gap(
    services: Services, engine: FakeEngine, search: ScriptedSearch
) -> None:
    search.found = [RETURNS]
    engine.say("It takes", finish_reason=FinishReason.LENGTH)
    ref = await ask(services, "how long")
    assert await listed(services) == [("how long", (GapReason.NOT_CITED,))]
    engine.say(" 30 days [1].")
    await services.turns.resume(ME, ref.message_id)
    async for _ in services.turns.events(ME, ref.turn_id):
        pass
    assert await listed(services) == []


async def test_a_group_that_is_done_returns_with_the_next_question(services: Services, search: ScriptedSearch) -> None:
    await ask(services, "kettle warranty")
    ref = await ask(services, "warranty of kettles")
    gaps = services.knowledge.gaps
    [group] = (await gaps.list(ME)).groups
    assert group.count == 2
    await gaps.mark(ME, group.message_ids, done=True)
    await gaps.mark(ME, group.message_ids, done=True)  # a double click
    assert await listed(services) == []
    assert len(await listed(services, state=GapState.DONE)) == 2
    await ask(services, "the kettle's warranty?")
    assert [group.count for group in (await gaps.list(ME)).groups] == [1]
    await services.chats.feedback.put(ME, ref.message_id, Opinion(Rating.DOWN))  # it comes again, disliked
    assert [group.count for group in (await gaps.list(ME)).groups] == [2]
    await gaps.mark(ME, group.message_ids, done=False)
    assert [group.count for group in (await gaps.list(ME)).groups] == [3]
    for nonsense in (["x"], [new_id()], ["\0"]):
        with pytest.raises(NotFound):
            await gaps.mark(ME, nonsense, done=True)


async def test_gaps_go_with_their_messages_conversations_and_users(
    services: Services, stranger: str, search: ScriptedSearch
) -> None:
    search.members["ours"].add(stranger)
    first, second = await ask(services, "first"), await ask(services, "second")
    await ask(services, "theirs", stranger)
    deletion = await services.deletions.delete(ME, first.user_message_id)
    assert [question for question, _ in await listed(services)] == ["theirs", "second"]
    await services.deletions.undo(ME, deletion.deletion_id)
    assert len(await listed(services)) == 3
    await services.turns.delete_conversation(ME, second.conversation_id)
    assert [question for question, _ in await listed(services)] == ["theirs", "first"]
    await services.desk.erasure._data.delete_conversations(stranger)
    assert [question for question, _ in await listed(services)] == ["first"]
    await services.deletions.delete(ME, first.user_message_id)
    await services.deletions.purge(datetime.now(UTC) + timedelta(days=1))
    count = select(func.count()).select_from(Gap)
    assert await services.database.read(lambda session: session.scalar(count)) == 0


async def test_a_reviewer_sees_gaps_of_collections_that_they_may_use(
    services: Services, search: ScriptedSearch
) -> None:
    collections = Collections(services.database)
    viewer, admin = await person(services.database, "viewer"), await person(services.database, "admin")
    shared = (await collections.create(admin, "Shared", everyone=True)).id
    secret = (await collections.create(admin, "Secret")).id
    gone = new_id()
    search.members |= {shared: {ME}, secret: {ME}, gone: {ME}}
    for text, chosen in (("open", (shared,)), ("both", (shared, secret)), ("secret", (secret,)), ("gone", (gone,))):
        await ask(services, text, collections=chosen)
    assert {question for question, _ in await listed(services, admin)} == {"open", "both", "secret", "gone"}
    assert [question for question, _ in await listed(services, viewer)] == ["open"]
    await collections.set_member(admin, secret, viewer, may_edit=False)
    assert {question for question, _ in await listed(services, viewer)} == {"open", "both", "secret"}
    await collections.delete(admin, shared)
    assert [question for question, _ in await listed(services, viewer)] == ["secret"]
    [group, *_] = (await services.knowledge.gaps.list(viewer)).groups
    assert not group.questions[0].own
    assert not group.questions[0].in_review
