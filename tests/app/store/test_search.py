"""Searching: every script, every user by himself, and nothing found that is not there any more."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sqlalchemy import Select, Subquery, Text, column, func, literal, select, table, update
from sqlalchemy.orm import Session

from app.domain.ids import LOCAL_USER_ID as ME
from app.domain.roles import UserRole
from app.domain.words import SNIPPET_AFTER, SNIPPET_BEFORE, fold, fold_words, literal_snippet, phrases, snippet, words
from app.errors import InvalidInput, TooManyRequests
from app.services.container import Services
from app.store.accounts.accounts import AccountRecords
from app.store.accounts.invitations import Invitations
from app.store.chat import conversations, search_index, search_queue
from app.store.chat.search import ENTRY_WORDS, Query, entries
from app.store.db.database import sqlite_engine
from app.store.db.models import Conversation, Message, SearchEntry
from app.store.db.statement_timeout import TooSlowError, time_limit
from app.store.maintenance.migrate import migrate
from engine.text import word_matching
from testing.fake_engine import FakeEngine
from tests.app.conftest import add_user
from tests.app.store.test_conversations import chat, fill
from tests.app.two_processes import until


async def found(services: Services, query: str, user_id: str = ME) -> list[str]:
    """Titles of the conversations that a query finds."""
    return [item.title for item in (await services.conversations.list(user_id, query=query)).items]


SCRIPTS: list[tuple[str, list[str], list[str]]] = [
    ("The quick brown fox", ["quick", "QUI", "fox quick", '"brown fox"', "bro fo"], ["uick", '"fox brown"', "dog"]),
    ("Ein Résumé über Äpfel", ["resume", "RÉSUMÉ", "apfel", "äpf"], ["ume", "epfel"]),
    ("Привет, мир! Ёлка", ["привет", "МИР", "елка", "ёлк"], ["ривет"]),
    ("我喜欢北京烤鸭", ["北京", "烤鸭", "喜欢北京", "鸭"], ["京北", "上海"]),
    ("東京タワーへ行きました", ["タワー", "東京", "行きました"], ["京東"]),
    ("안녕하세요 세계", ["안녕", "세계"], ["하세요"]),
    ("ภาษาไทยไม่มีช่องว่าง", ["ไทย", "ช่องว่าง"], ["ยไท"]),
    ("हिन्दी में लिखा हुआ", ["हिन्दी", "हिन्"], ["न्दी"]),
    ("مرحبا بالعالم", ["مرحبا", "بالع"], ["رحبا"]),
    ("שלום עולם", ["שלום"], ["לום"]),
    ("see https://example.org/a_b?c=1", ["example.org", "https://example.org/a_b", "a_b"], ["a_c"]),
    ("Ｆｕｌｌ ｗｉｄｔｈ and ﬁgures", ["full", "width", "figures"], ["ull"]),
    ("Straße", ["strasse", "STRASSE", "straße"], ["trasse"]),
]


async def test_words_are_found_in_every_script(services: Services) -> None:
    ids = {}
    for text, _hits, _misses in SCRIPTS:
        ids[text] = await chat(services, text)
        await services.conversations.rename(ME, ids[text], "X")
    for text, hits, misses in SCRIPTS:
        for query in hits:
            [item] = (await services.conversations.list(ME, query=query)).items
            assert item.id == ids[text], query
            assert item.message_id is not None
            assert any(part.hit for part in item.snippet), query
            assert "".join(part.text for part in item.snippet) == text
        for query in misses:
            assert await found(services, query) == [], query


async def test_all_words_must_be_in_one_message_and_the_latest_hit_leads_there(services: Services) -> None:
    conversation = await chat(services, "apples")
    assert await found(services, "apples pears") == []
    await chat(services, "pears and apples", conversation)
    await chat(services, "nothing of that kind", conversation)
    [item] = (await services.conversations.list(ME, query="apples")).items
    messages = (await services.conversations.get(ME, conversation)).messages
    assert item.message_id == messages[2].id


async def test_what_is_found_follows_what_is_there(services: Services, engine: FakeEngine) -> None:
    conversation = await chat(services, "walrus")
    await services.conversations.rename(ME, conversation, "Penguins")
    assert await found(services, "walrus") == await found(services, "penguin") == ["Penguins"]
    await services.conversations.rename(ME, conversation, "Seals")
    assert await found(services, "penguin") == []

    reply = (await services.conversations.get(ME, conversation)).messages[-1]
    deletion = await services.deletions.delete(ME, reply.id)
    assert await found(services, "hello world") == []
    await services.deletions.undo(ME, deletion.deletion_id)
    assert await found(services, "hello world") == ["Seals"]

    branched = await services.conversations.branch(ME, reply.id)
    assert len((await services.conversations.list(ME, query="walrus")).items) == 2
    await services.turns.delete_conversation(ME, branched)
    await services.turns.delete_conversation(ME, conversation)
    assert await found(services, "walrus") == []
    assert await services.database.read(lambda session: session.scalars(select(SearchEntry)).all()) == []


async def test_a_reply_is_found_when_it_has_ended_and_again_when_it_was_continued(
    services: Services, engine: FakeEngine
) -> None:
    hold = asyncio.Event()
    engine.say("narwhals", " swim", gates={1: hold})
    ref = await services.turns.start(ME, text="hello")
    assert await found(services, "narwhals") == []
    await services.turns.stop(ME, ref.turn_id)
    assert await found(services, "narwhals") == ["hello"]
    engine.say(" and dive")
    again = await services.turns.resume(ME, ref.message_id)
    async for _ in services.turns.events(ME, again.turn_id):
        pass
    assert await found(services, "narwhals dive") == ["hello"]


async def test_long_texts_are_found_from_beginning_to_end(services: Services) -> None:
    text = " ".join(f"w{number}" for number in range(3 * ENTRY_WORDS + 7))
    await chat(services, text)
    for place in (0, ENTRY_WORDS - 1, ENTRY_WORDS, 2 * ENTRY_WORDS, 3 * ENTRY_WORDS + 6):
        assert len(await found(services, f"w{place}")) == 1
    assert len(await found(services, f'"w{ENTRY_WORDS - 2} w{ENTRY_WORDS - 1} w{ENTRY_WORDS} w{ENTRY_WORDS + 1}"')) == 1
    assert await found(services, '"w1 w3"') == []


@pytest.mark.full
async def test_what_was_there_before_is_indexed_behind_everybodys_back(services: Services) -> None:
    await fill(services, messages=700, title="Old")  # more than one batch; nobody searches meanwhile
    rows = select(func.count(SearchEntry.message_id.distinct()))
    for _ in range(1200):
        if await services.database.read(lambda session: session.scalar(rows)) == 700:
            break
        await asyncio.sleep(0.05)
    else:
        pytest.fail("it was never indexed")
    assert await found(services, "message 699") == ["Old"]


async def test_archived_ones_are_found_and_other_users_never(services: Services) -> None:
    mine = await chat(services, "a lighthouse")
    await services.conversations.mark(ME, mine, archived=True)
    stranger = await add_user(services.database)
    ref = await services.turns.start(stranger, text="another lighthouse")
    async for _ in services.turns.events(stranger, ref.turn_id):
        pass
    assert await found(services, "lighthouse") == ["a lighthouse"]
    assert await found(services, "lighthouse", stranger) == ["another lighthouse"]
    assert await found(services, "lighth", stranger) == ["another lighthouse"]


async def test_what_was_indexed_before_there_were_accounts_is_found_by_its_new_owner(services: Services) -> None:
    await chat(services, "zebras before")
    assert await found(services, "zebras") == ["zebras before"]
    admin = await AccountRecords(services.database).create("admin", "Admin", UserRole.ADMIN, "hash")
    await Invitations(services.database).take_over(admin.id)
    assert await found(services, "zebras", admin.id) == ["zebras before"]
    assert await found(services, "zebras") == []


async def test_no_query_is_a_syntax_error(services: Services) -> None:
    await chat(services, "harmless")
    for query in (
        '"',
        '""',
        "'",
        "\\",
        "a' | 'b",
        "NEAR(a b)",
        "words: x",
        "-",
        "*",
        "a*",
        "& |",
        "(",
        "x:*",
        "<->",
        "💥",
    ):
        await services.conversations.list(ME, query=query)


async def test_an_emoji_is_found_as_it_is(services: Services) -> None:
    await chat(services, "so 🎉 happy")
    assert await found(services, "🎉") == ["so 🎉 happy"]
    assert await found(services, "💥") == []


@given(st.text(), st.text(min_size=1, max_size=10))
def test_snippets_are_short_and_say_what_the_text_says(text: str, query: str) -> None:
    for parts in (snippet(text, phrases(query)), literal_snippet(text, query)):
        shown = "".join(part.text for part in parts)
        longest = max((word.end - word.start for word in words(text)), default=0) * max(1, len(words_of(query)))
        assert len(shown) <= SNIPPET_BEFORE + SNIPPET_AFTER + max(longest, len(query)) * 3 + 2
        ignored = r"[\s…*~`#>]"  # Markdown's marks are left out
        assert re.sub(ignored, "", shown) in re.sub(ignored, "", text)


@pytest.mark.parametrize(
    ("text", "query", "shown"),
    [
        ("A **walrus** swims", "walrus", "A walrus swims"),
        ("## Head\n\n> The **big walrus** and `code` ~~not~~", "walrus", "Head The big walrus and code not"),
        ("f(**walrus) and 2 ** 3, __init__ *x", "walrus", "f(**walrus) and 2 ** 3, __init__ *x"),
        ("```python\nwalrus = 1\n```", "walrus", "python walrus = 1 "),
        ("**" + "a " * 60 + "walrus" + " b" * 60 + "**", "walrus", "…" + "a " * 20 + "walrus" + " b" * 50 + "…"),
        ("**50 % walrus**", "**", "**50 % walrus"),
    ],
)
def test_excerpts_show_no_marks_of_markdown(text: str, query: str, shown: str) -> None:
    found = phrases(query)
    parts = snippet(text, found) if found else literal_snippet(text, query)
    assert "".join(part.text for part in parts) == shown
    assert any(part.hit for part in parts)


def words_of(text: str) -> list[str]:
    return [word.folded for word in words(text)]


@given(st.text())
@example("a_b  c'd é 漢字 \u0300 Ⅻ ß")
def test_what_is_stored_of_a_text_are_the_words_that_are_looked_for(text: str) -> None:
    assert fold_words(text) == words_of(text)


@given(st.text())
@example("\u0e33")  # Thai's am: one character that folds to two, each a word when it is typed by itself
def test_every_word_of_a_text_finds_it(text: str) -> None:
    for word in words(text):
        asked = [text[word.start : word.end]]
        if len(words_of(word.folded)) == 1:
            asked.append(word.folded)
        for query in asked:
            found = phrases(query)
            assert found, word
            assert any(part.hit for part in snippet(text, found)), word


@pytest.mark.parametrize("waiting", [search_index._TITLES, search_index._MESSAGES])
def test_looking_for_what_is_not_indexed_yet_reads_no_more_than_that(tmp_path: Path, waiting: Select[Any]) -> None:
    """The smallest of indexes serves, however long the history is. PostgreSQL plans by statistics."""
    url = f"sqlite:///{tmp_path / 'deskmate.db'}"
    migrate(url)
    engine = sqlite_engine(url, connections=1)
    statement = waiting.compile(engine, compile_kwargs={"literal_binds": True})
    with engine.connect() as connection:
        plan = str(connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}").all())
    engine.dispose()
    assert "_unindexed" in plan


@dataclass
class GatedIndex:
    """An index pass that has locked its rows and computes their words until it is let go."""

    services: Services
    go: threading.Event
    passing: asyncio.Task[bool]

    async def wait_for_lock(self) -> None:
        """Returns once another transaction waits for a row lock."""
        waiting = select(func.count()).select_from(table("pg_locks")).where(~column("granted"))
        await until(lambda: self.services.database.read(lambda session: session.scalar(waiting)))


@asynccontextmanager
async def gated_index(services: Services, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[GatedIndex]:
    begun, go = threading.Event(), threading.Event()

    def slowly(*arguments: Any) -> Iterator[str]:
        begun.set()
        go.wait(timeout=30)
        return entries(*arguments)

    monkeypatch.setattr(search_index, "entries", slowly)
    passing = asyncio.create_task(services.conversations.index.catch_up())
    assert await asyncio.to_thread(begun.wait, 30)
    yield GatedIndex(services, go, passing)
    go.set()
    await passing


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
async def test_a_conversation_whose_messages_are_being_indexed_can_be_written_to_and_is_deleted_afterwards(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversation_id = await chat(services, "something to find")
    await services.conversations.index.catch_up()
    await chat(services, "something more", conversation_id)
    async with gated_index(services, monkeypatch) as index:
        await chat(services, "and once more", conversation_id)  # fails where it waits for the lock
        deleting = asyncio.create_task(services.turns.delete_conversation(ME, conversation_id))
        await index.wait_for_lock()
        index.go.set()
        await deleting
    assert await found(services, "more") == []


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
async def test_a_reply_that_goes_on_while_it_is_indexed_is_found_by_its_end(
    services: Services, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.say("the beginning", finish_reason="length")
    ref = await services.turns.start(ME, text="go")
    async for _ in services.turns.events(ME, ref.turn_id):
        pass
    async with gated_index(services, monkeypatch) as index:
        monkeypatch.setattr(search_index, "entries", entries)
        engine.say(" and the finale")
        going_on = asyncio.create_task(services.turns.resume(ME, ref.message_id))
        await index.wait_for_lock()
        index.go.set()
        await going_on
    async for _ in services.turns.events(ME, ref.turn_id):
        pass
    assert await found(services, "finale") != []


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
async def test_messages_of_a_conversation_that_is_locked_do_not_keep_newer_ones_from_being_found(
    services: Services, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_index, "BATCH_TEXTS", 2)
    locked = await chat(services, "an old walrus")
    for text in ("an older seal", "an oldest seal"):
        await chat(services, text, locked)
    await services.conversations.rename(ME, locked, "Old")
    with closing(psycopg.connect(database_url.replace("+psycopg", ""))) as deletion:
        deletion.execute("SELECT id FROM conversation WHERE id = %s FOR UPDATE", [locked])
        waiting = update(Message).where(Message.conversation_id == locked).values(indexed=False)
        await services.database.write(lambda session: session.execute(waiting))
        new = await chat(services, "a new penguin")
        await services.conversations.rename(ME, new, "New")
        assert await found(services, "penguin") == ["New"]
    while await services.conversations.index.catch_up():
        pass
    unindexed = select(func.count()).select_from(Message).where(~Message.indexed)
    assert await services.database.read(lambda session: session.scalar(unindexed)) == 0
    assert await found(services, "walrus") == ["Old"]


@pytest.mark.slow
async def test_a_search_that_takes_long_is_stopped_with_a_sentence(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On both databases, while a statement is under way; the connection works on."""

    def endless(self: Query, session: Session) -> Subquery:
        rounds = select(literal(1).label("n")).cte("rounds", recursive=True)
        rounds = rounds.union_all(select(rounds.c.n + 1).where(rounds.c.n < 10**9))
        none = select(func.max(rounds.c.n)).scalar_subquery()
        return (
            select(Conversation.id.label("conversation_id"), literal(None, Text()).label("message_id"))
            .where(none < 0)
            .subquery()
        )

    await fill(services, messages=1, title="Talk words")
    with monkeypatch.context() as patched:
        patched.setattr(Query, "hits", endless)
        patched.setattr(conversations, "MAX_SEARCH_SECONDS", 0.2)
        for _ in range(6):  # more than there are connections that read
            with pytest.raises(InvalidInput, match=r"took longer than 0\.2 seconds and was stopped"):
                await services.conversations.list(ME, query="words")
    assert await found(services, "words") == ["Talk words"]


async def test_a_limit_that_is_over_before_a_statement_begins_stops_it_still(services: Services) -> None:
    rounds = select(literal(1).label("n")).cte("rounds", recursive=True)
    rounds = rounds.union_all(select(rounds.c.n + 1).where(rounds.c.n < 10**9))

    def work(session: Session) -> None:
        with time_limit(session, 0.01):
            time.sleep(0.1)
            session.execute(select(func.max(rounds.c.n)))

    with pytest.raises(TooSlowError):
        await services.database.read(work)


async def test_searches_wait_for_one_another_and_leave_threads_for_the_others(
    services: Services, monkeypatch: pytest.MonkeyPatch, stranger: str
) -> None:
    begun, over = threading.Semaphore(0), threading.Event()
    hits = Query.hits
    running = most = 0

    def slow(self: Query, session: Session) -> Subquery:
        nonlocal running, most
        running += 1
        most = max(most, running)
        begun.release()
        over.wait(30)
        running -= 1
        return hits(self, session)

    await fill(services, messages=1, title="Talk words")
    others = [stranger, await add_user(services.database), await add_user(services.database)]
    monkeypatch.setattr(Query, "hits", slow)
    monkeypatch.setattr(search_queue, "MAX_WAITING_PER_USER", 3)
    under_way = [asyncio.create_task(found(services, "words", who)) for who in [ME, ME, ME, ME, *others]]
    try:
        for _ in range(search_queue.MAX_AT_ONCE):
            assert await asyncio.to_thread(begun.acquire, timeout=30)
        with pytest.raises(TooManyRequests, match="running already"):
            await found(services, "words")
        assert len((await services.conversations.list(ME)).items) == 1  # which is no search
    finally:
        over.set()
    assert await asyncio.gather(*under_way) == [["Talk words"]] * 4 + [[]] * 3
    assert most == search_queue.MAX_AT_ONCE
    assert not services.conversations._searches._locks


def test_looking_for_the_place_of_a_hit_ends() -> None:
    text = "a b " * 200_000 + "a a"
    wanted = phrases(" ".join(["a-a"] * 40))
    late = snippet(text, wanted, time.monotonic() - 1)
    assert late[0].text.startswith("a b a b")
    assert not any(part.hit for part in late)
    assert not any(part.hit for part in literal_snippet(text, "a", time.monotonic() - 1))
    assert any(part.hit for part in snippet("a b " * 50 + "a a", wanted))


def test_a_search_folds_otherwise_than_the_word_filter() -> None:
    """Each as it must: whoever makes them one has to index every database anew, or to weaken the filter."""
    assert fold("café") == "cafe"
    assert word_matching.fold("café") == word_matching.fold("cafe\u0301") != "cafe"
    assert fold_words("in\u200bvisible") == ["in", "visible"]
    assert word_matching.fold("in\u200bvisible") == "invisible"
    assert fold_words("中文 ㄅㄆ") == ["中", "文", "ㄅㄆ"]
    for inside in ("中文", "ㄅㄆ"):
        matcher = word_matching.WordMatcher([inside[1]])
        assert matcher.step(matcher.start, inside) == word_matching.HIT
