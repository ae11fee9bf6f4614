"""Documents from upload to search, and who may see them, on both databases."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from app.domain.ids import LOCAL_USER_ID, new_id
from app.domain.knowledge import AddedDocument, DocumentState, NewChunk, ReadingJob
from app.errors import Conflict, LimitReached, NotAllowed, NotFound
from app.services.container import Services
from app.store.cases.inboxes import Inboxes
from app.store.db.database import Database
from app.store.db.knowledge_models import (
    KNOWLEDGE_COLLECTION_ID,
    Chunk,
    ChunkEntry,
    CollectionMember,
    DocumentVersion,
)
from app.store.db.models import Account, AuditEvent, Conversation
from app.store.knowledge.collections import Collections
from app.store.knowledge.documents import Documents
from app.store.knowledge.indexing import ChunkIndex
from app.store.knowledge.limits import KnowledgeLimits
from app.store.knowledge.reading import MAX_ATTEMPTS, ReadingQueue
from app.store.knowledge.search import ChunkSearch
from app.store.knowledge.source_rights import SourceRights
from app.store.maintenance.integrity import broken_rules
from testing.documents import save_chunks

TEXT = "Refunds are paid within ten days. Shipping to Norway costs twelve euros."
CHUNKS = (
    NewChunk(heading="Refunds", start=0, end=33, tokens=8),
    NewChunk(heading="Shipping > Abroad", start=34, end=len(TEXT), tokens=9),
)


@pytest.fixture
async def database(services: Services) -> Database:
    await services.knowledge.ingest.close()  # it would claim the tests' documents
    return services.database


async def person(database: Database, role: str) -> str:
    id = new_id()
    row = Account(id=id, name=id, role=role, created_at=datetime.now(UTC))
    await database.write(lambda session: session.add(row))
    return id


async def read_all(database: Database, text: str = TEXT, owner: str = "one") -> list[ReadingJob]:
    queue, done = ReadingQueue(database, owner), []
    while (job := await queue.claim_next()) is not None:
        assert await save_chunks(queue, job, "Terms", text, CHUNKS)
        done.append(job)
    return done


async def test_a_document_is_found_once_it_has_been_read(database: Database) -> None:
    documents, search = Documents(database), ChunkSearch(database)
    added = await documents.add(LOCAL_USER_ID, None, "terms.md", b"x", kind="markdown")
    assert (added.version, added.state, added.changed) == (1, DocumentState.WAITING, True)
    assert await search.search(LOCAL_USER_ID, "refund") == []
    (job,) = await read_all(database)
    assert job.data == b"x"
    (found,) = await search.search(LOCAL_USER_ID, "when is my refund paid?")
    assert (found.text, found.heading, found.title) == (TEXT[:33], "Refunds", "Terms")
    assert (await search.search(LOCAL_USER_ID, "norw"))[0].heading == "Shipping > Abroad"
    assert (await search.search(LOCAL_USER_ID, "abroad"))[0].heading == "Shipping > Abroad"
    view = await documents.get(LOCAL_USER_ID, added.id)
    assert (view.state, view.version, view.chunks, view.title) == (DocumentState.READY, 1, 2, "Terms")
    page = await documents.chunks(LOCAL_USER_ID, added.id, limit=1)
    assert (page.items[0].text, page.next_cursor) == (TEXT[:33], "1")
    raw = sa.select(DocumentVersion.raw)
    assert await database.read(lambda session: session.scalar(raw)) is None


async def test_the_old_version_is_searched_until_the_new_one_is_read(database: Database) -> None:
    documents, search = Documents(database), ChunkSearch(database)
    first = await documents.add(LOCAL_USER_ID, None, "terms.md", b"x", kind="markdown")
    await read_all(database)
    assert not (await documents.add(LOCAL_USER_ID, None, "terms.md", b"x", kind="markdown")).changed
    second = await documents.add(LOCAL_USER_ID, None, "terms.md", b"y", kind="markdown")
    assert (second.id, second.version, second.changed) == (first.id, 2, True)
    assert [one.version for one in await search.search(LOCAL_USER_ID, "refund")] == [1]
    await read_all(database, TEXT.replace("ten", "six"))
    (found,) = await search.search(LOCAL_USER_ID, "refund")
    assert (found.version, "six" in found.text) == (2, True)
    old = await documents.text(LOCAL_USER_ID, first.id, version=1, start=0, end=33)
    assert old.text == TEXT[:33]  # what cited it still shows it


async def test_a_lost_claim_saves_nothing(database: Database) -> None:
    documents, queue = Documents(database), ReadingQueue(database, "one")
    added = await documents.add(LOCAL_USER_ID, None, "terms.md", b"x", kind="markdown")
    job = await queue.claim_next()
    assert job is not None
    assert await queue.claim_next() is None
    assert await ReadingQueue(database, "two").claim_next() is None
    await documents.add(LOCAL_USER_ID, None, "terms.md", b"y", kind="markdown")  # meanwhile a newer version
    assert not await queue.progress(job, 0.5)
    assert not await save_chunks(queue, job, "Terms", TEXT, CHUNKS)
    assert not await queue.fail(job, "no")
    newer = await queue.claim_next()
    assert newer is not None
    assert (newer.version, newer.data) == (2, b"y")
    await documents.remove(LOCAL_USER_ID, added.id)
    assert not await save_chunks(queue, newer, "Terms", TEXT, CHUNKS)


async def test_an_expired_claim_passes_to_another_reader_and_not_for_ever(database: Database) -> None:
    documents = Documents(database)
    added = await documents.add(LOCAL_USER_ID, None, "terms.md", b"x", kind="markdown")
    for attempt in range(MAX_ATTEMPTS):
        job = await ReadingQueue(database, f"dead{attempt}", lease_seconds=-1).claim_next()
        assert job is not None
    assert await ReadingQueue(database, "last").claim_next() is None
    view = await documents.get(LOCAL_USER_ID, added.id)
    assert (view.state, bool(view.error)) == (DocumentState.FAILED, True)
    again = await documents.add(LOCAL_USER_ID, None, "terms.md", b"x", kind="markdown")  # same content, after a failure
    assert (again.version, again.changed) == (2, True)
    assert len(await read_all(database)) == 1


async def test_rights_hold_in_every_query(database: Database) -> None:
    admin, agent, viewer = [await person(database, role) for role in ("admin", "agent", "viewer")]
    collections, documents, search = Collections(database), Documents(database), ChunkSearch(database)
    secret = await collections.create(admin, "Salaries", everyone=False)
    added = await documents.add(admin, secret.id, "terms.md", b"x", kind="markdown")
    await read_all(database)
    for user in (agent, viewer, new_id()):
        assert await search.search(user, "refund") == []
        missing = str(await _error(search.search(user, "refund", collections=[new_id()])))
        assert str(await _error(search.search(user, "refund", collections=[secret.id]))) == missing
        for refused in (
            documents.get(user, added.id),
            documents.remove(user, added.id),
            documents.chunks(user, added.id),
            documents.text(user, added.id),
            documents.page(user, secret.id),
            documents.add(user, secret.id, "more.md", b"x", kind="markdown"),
            collections.change(user, secret.id, name="Mine"),
            collections.delete(user, secret.id),
            collections.members(user, secret.id),
            collections.set_member(user, secret.id, user, may_edit=True),
        ):
            await _error(refused)
        assert (await documents.page(user)).items == ()
    with pytest.raises(NotAllowed):
        await collections.create(agent, "Mine")
    for user in (agent, viewer):
        await collections.set_member(admin, secret.id, user, may_edit=False)
        assert len(await search.search(user, "refund", collections=[secret.id])) == 1
        with pytest.raises(NotAllowed):
            await documents.remove(user, added.id)
        await collections.set_member(admin, secret.id, user, may_edit=True)
    with pytest.raises(NotAllowed):  # a viewer changes nothing, whatever the membership says
        await documents.remove(viewer, added.id)
    with pytest.raises(NotAllowed):
        await documents.add(agent, None, "more.md", b"x", kind="markdown")
    await documents.remove(agent, added.id)
    assert await search.search(admin, "refund") == []
    await collections.remove_member(admin, secret.id, agent)
    await _error(documents.page(agent, secret.id))


async def _error(refused: object) -> NotFound:
    with pytest.raises(NotFound) as raised:
        await refused  # type: ignore[misc]
    return raised.value


async def test_deleting_a_collection_or_a_document_leaves_no_words(database: Database) -> None:
    collections, documents = Collections(database), Documents(database)
    made = await collections.create(LOCAL_USER_ID, "Other", everyone=True)
    await documents.add(LOCAL_USER_ID, made.id, "terms.md", b"x", kind="markdown")
    kept = await documents.add(LOCAL_USER_ID, None, "terms.md", b"x", kind="markdown")
    await read_all(database)
    await collections.delete(LOCAL_USER_ID, made.id)
    assert len(await ChunkSearch(database).search(LOCAL_USER_ID, "refund")) == 1
    await documents.remove(LOCAL_USER_ID, kept.id)
    for model in (Chunk, ChunkEntry, DocumentVersion):
        count = sa.select(sa.func.count()).select_from(model)
        assert await database.read(lambda session, count=count: session.scalar(count)) == 0  # type: ignore[misc]
    with pytest.raises(Conflict):
        await collections.delete(LOCAL_USER_ID, KNOWLEDGE_COLLECTION_ID)


async def test_chunks_without_words_are_indexed_again(database: Database) -> None:
    await Documents(database).add(LOCAL_USER_ID, None, "terms.md", b"x", kind="markdown")
    await read_all(database)
    words = sa.select(ChunkEntry.title, ChunkEntry.heading, ChunkEntry.words).order_by(ChunkEntry.id)
    before = await database.read(lambda session: session.execute(words).all())

    def lose(session: Session) -> None:  # as a copy into another database does
        session.execute(sa.delete(ChunkEntry))
        session.execute(sa.update(Chunk).values(indexed=False))

    await database.write(lose)
    while await ChunkIndex(database).catch_up():
        pass
    indexed = await database.read(lambda session: session.execute(words).all())
    assert indexed == before != []
    assert (await ChunkSearch(database).search(LOCAL_USER_ID, "shipping"))[0].heading == "Shipping > Abroad"


async def test_limits_of_a_collection(database: Database) -> None:
    documents = Documents(database, KnowledgeLimits(max_documents=1, max_bytes=10))
    await documents.add(LOCAL_USER_ID, None, "one.md", b"x" * 8, kind="markdown")
    with pytest.raises(LimitReached):
        await documents.add(LOCAL_USER_ID, None, "two.md", b"x", kind="markdown")
    with pytest.raises(LimitReached):
        await documents.add(LOCAL_USER_ID, None, "one.md", b"y" * 11, kind="markdown")


async def test_who_may_still_read_the_documents_that_replies_rest_on(database: Database) -> None:
    documents, collections, rights = Documents(database), Collections(database), SourceRights(database)
    people = {role: await person(database, role) for role in ("admin", "agent", "viewer")}
    members = {role: await person(database, role) for role in ("agent", "viewer")}
    made = await collections.create(LOCAL_USER_ID, "Closed")
    for member in members.values():
        await collections.set_member(LOCAL_USER_ID, made.id, member, may_edit=False)
    closed = (await documents.add(LOCAL_USER_ID, made.id, "closed.md", b"x", kind="markdown")).id
    open_to_all = (await documents.add(LOCAL_USER_ID, None, "open.md", b"x", kind="markdown")).id
    asked = [closed, open_to_all, new_id(), "document-1", ""]
    for user in (LOCAL_USER_ID, people["admin"], *members.values()):
        assert await rights.usable(user, asked) == {closed, open_to_all}
        assert await rights.closed(user, asked) == set()
    for user in (people["agent"], people["viewer"]):
        assert await rights.usable(user, asked) == {open_to_all}
        assert await rights.closed(user, asked) == {closed}
    await collections.remove_member(LOCAL_USER_ID, made.id, members["agent"])
    assert await rights.usable(members["agent"], asked) == {open_to_all}
    await documents.remove(LOCAL_USER_ID, closed)
    for user in (LOCAL_USER_ID, *people.values(), *members.values()):
        assert await rights.usable(user, asked) == {open_to_all}
        assert await rights.closed(user, asked) == set(), "of what is gone there is no right to ask"


async def test_collections_that_several_users_may_use(database: Database) -> None:
    collections = Collections(database)
    ids = [(await collections.create(LOCAL_USER_ID, name)).id for name in ("One", "Two")]
    both, one = [await person(database, "agent") for _ in range(2)]
    for user, usable in ((both, ids), (one, ids[:1])):
        for id in usable:
            await collections.set_member(LOCAL_USER_ID, id, user, may_edit=False)
    wanted = [*reversed(ids), new_id(), "no id", ids[0]]
    assert await collections.open_to([both], wanted) == ids[::-1]
    assert await collections.open_to([both, one], wanted) == ids[:1]
    assert await collections.open_to([one], []) == []


async def test_the_audit_log_has_who_and_what_and_no_text(database: Database) -> None:
    documents = Documents(database)
    added = await documents.add(LOCAL_USER_ID, None, "plan.md", b"a secret", kind="markdown")
    await documents.remove(LOCAL_USER_ID, added.id)
    events = await database.read(lambda session: session.scalars(sa.select(AuditEvent).order_by(AuditEvent.id)).all())
    assert [(event.action, event.target, event.actor_id) for event in events] == [
        ("document_added", added.id, LOCAL_USER_ID),
        ("document_removed", added.id, LOCAL_USER_ID),
    ]
    assert [event.details["name"] for event in events] == ["plan.md", "plan.md"]
    assert "secret" not in str([event.details for event in events])
    collections = Collections(database)
    made = await collections.create(LOCAL_USER_ID, "Plans")
    await collections.delete(LOCAL_USER_ID, made.id)
    latest = sa.select(AuditEvent.details).order_by(AuditEvent.id.desc()).limit(1)
    assert await database.read(lambda session: session.scalar(latest)) == {"documents": 0, "name": "Plans"}


async def test_a_document_outlives_who_added_it(database: Database) -> None:
    admin = await person(database, "admin")
    added = await Documents(database).add(admin, None, "terms.md", b"x", kind="markdown")
    await database.write(lambda session: session.execute(sa.delete(Account).where(Account.id == admin)))
    assert (await Documents(database).get(LOCAL_USER_ID, added.id)).name == "terms.md"
    who = sa.select(DocumentVersion.created_by)
    assert await database.read(lambda session: session.scalar(who)) is None


HOSTILE = (
    '" * NEAR ( : &|! ' * 117,
    "NEAR(refund shipping, 2)",
    "AND OR NOT",
    "refund* AND",
    "^refund",
    "{title heading}: refund",
    "refund <-> norway",
    "!refund",
    "refund:*",
    "'; DROP TABLE kb_chunk; --",
    "\\",
    "%_",
    "\0",
    "\ud800",
    "\u0301" * 2000,
    "🙂" * 2000,
    "漢" * 2000,
    "x" * 2000,
    " ".join(f"w{n}" for n in range(400)),
    "(" * 2000,
)


async def test_operators_of_the_databases_are_words(database: Database) -> None:
    documents, search = Documents(database), ChunkSearch(database)
    await documents.add(LOCAL_USER_ID, None, "terms.md", b"x", kind="markdown")
    await read_all(database)
    collections = [await Collections(database).create(LOCAL_USER_ID, f"{n}") for n in range(40)]
    for query in HOSTILE:
        for asked in (None, [KNOWLEDGE_COLLECTION_ID], [one.id for one in collections]):
            found = await search.search(LOCAL_USER_ID, query, collections=asked)
            names_a_word = "refund" in query.lower() and (asked is None or len(asked) == 1)
            assert bool(found) == names_a_word, query


async def test_the_inbox_that_answers_from_a_collection_is_no_member_to_be_removed(database: Database) -> None:
    collections = Collections(database)
    made = await collections.create(LOCAL_USER_ID, "Terms")
    inbox = await Inboxes(database).create(LOCAL_USER_ID, name="Shop", collections=[made.id])
    assert await collections.members(LOCAL_USER_ID, made.id) == []
    account = sa.select(CollectionMember.user_id).where(CollectionMember.collection_id == made.id)
    id = await database.read(lambda session: session.scalar(account))
    assert id is not None
    with pytest.raises(NotFound):
        await collections.remove_member(LOCAL_USER_ID, made.id, id)
    assert await collections.require_usable(id, [made.id]) == [made.id]
    assert [one.name for one in (await collections.use(LOCAL_USER_ID, made.id)).inboxes] == [inbox.name]


async def test_a_person_goes_and_their_documents_stay(services: Services) -> None:
    database, collections = services.database, Collections(services.database)
    documents, search = Documents(database), ChunkSearch(database)
    editor = await person(database, "agent")
    made = await collections.create(LOCAL_USER_ID, "Terms")
    await collections.set_member(LOCAL_USER_ID, made.id, editor, may_edit=True)
    added = await documents.add(editor, made.id, "terms.md", b"x", kind="markdown")
    await read_all(database)
    assert len(await search.search(editor, "refund")) == 1
    await services.desk.erasure.erase(None, editor)
    assert await search.search(editor, "refund") == []
    assert len(await search.search(LOCAL_USER_ID, "refund")) == 1
    assert await collections.members(LOCAL_USER_ID, made.id) == []

    def left(session: Session) -> tuple[str | None, list[str]]:
        version = session.get_one(DocumentVersion, (added.id, 1))
        return version.created_by, broken_rules(session.connection())

    assert await database.read(left) == (None, [])


async def test_uploads_of_one_name_at_once_are_one_document(database: Database) -> None:
    documents = Documents(database)
    for data in ([b"%d" % n for n in range(12)], [b"same"] * 12):
        adding = (documents.add(LOCAL_USER_ID, None, "terms.md", one, kind="markdown") for one in data)
        added = await asyncio.gather(*adding, return_exceptions=True)
        assert all(isinstance(one, AddedDocument | Conflict) for one in added), added
        (document,) = (await documents.page(LOCAL_USER_ID)).items
        assert document.newest == max(one.version for one in added if isinstance(one, AddedDocument))


async def test_a_collection_goes_while_its_documents_are_saved(database: Database) -> None:
    documents, collections, queue = Documents(database), Collections(database), ReadingQueue(database, "one")
    for number in range(8):
        made = await collections.create(LOCAL_USER_ID, f"{number}")
        for name in ("a.md", "b.md", "c.md", "d.md"):
            await documents.add(LOCAL_USER_ID, made.id, name, b"x", kind="markdown")
        jobs = [await queue.claim_next() for _ in range(3)]
        ended = await asyncio.gather(
            *(save_chunks(queue, job, "Terms", TEXT, CHUNKS) for job in jobs if job),
            documents.add(LOCAL_USER_ID, made.id, "d.md", b"new", kind="markdown"),
            collections.delete(LOCAL_USER_ID, made.id),
            return_exceptions=True,
        )
        failures = [one for one in ended if isinstance(one, BaseException)]
        assert all(isinstance(one, Conflict | NotFound) for one in failures), failures
        assert (await documents.page(LOCAL_USER_ID)).items == ()
        assert await queue.claim_next() is None


async def test_the_use_of_a_collection_names_ones_own_chats_only(services: Services, database: Database) -> None:
    collections = Collections(database)
    admin, agent = await person(database, "admin"), await person(database, "agent")
    used = await collections.create(admin, "Orders", everyone=True)
    now = datetime.now(UTC)

    def chats(session: Session) -> None:
        def chat(user_id: str, title: str, settings: dict[str, object]) -> None:
            row = Conversation(id=new_id(), user_id=user_id, title=title, created_at=now, updated_at=now)
            row.settings = settings
            session.add(row)

        chat(admin, "mine", {"collections": [KNOWLEDGE_COLLECTION_ID, used.id]})
        chat(agent, "theirs", {"collections": [used.id]})
        chat(agent, "no use", {"system_prompt": f"About {used.id}."})
        chat(agent, "none", {})

    await database.write(chats)
    use = await collections.use(admin, used.id)
    assert (use.chats, [chat.title for chat in use.own_chats]) == (2, ["mine"])
    with pytest.raises(NotAllowed):
        await collections.use(agent, used.id)
    await collections.change(admin, used.id, everyone=False)
    with pytest.raises(NotFound):
        await collections.use(agent, used.id)
