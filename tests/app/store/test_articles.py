"""Proposed articles: who may see and publish them, and what becomes of them; on both databases."""

from __future__ import annotations

import asyncio

import pytest

from app.domain.articles import MAX_BODY_CHARS
from app.domain.ids import LOCAL_USER_ID as ME
from app.domain.ids import new_id
from app.errors import AppError, Conflict, InvalidInput, LimitReached, NotAllowed, NotFound
from app.services.container import Services
from app.store.accounts.personal_data import UserDataRecords
from app.store.db.database import Database
from app.store.db.knowledge_models import KNOWLEDGE_COLLECTION_ID, Document
from app.store.knowledge import articles as articles_module
from app.store.knowledge.articles import Articles
from app.store.knowledge.collections import Collections
from tests.app.store.test_knowledge import person


@pytest.fixture
async def database(services: Services) -> Database:
    await services.knowledge.ingest.close()
    return services.database


async def test_an_article_is_seen_changed_and_published_by_editors_only(services: Services, database: Database) -> None:
    articles, publishing = services.knowledge.articles, services.knowledge.publishing
    collections = Collections(database)
    admin, editor, reader = [await person(database, role) for role in ("admin", "agent", "agent")]
    viewer, stranger = await person(database, "viewer"), await person(database, "agent")
    cases = (await collections.create(admin, "Cases")).id
    for member, may_edit in ((editor, True), (reader, False), (viewer, True)):
        await collections.set_member(admin, cases, member, may_edit=may_edit)
    for user, error in ((reader, NotAllowed), (viewer, NotAllowed), (stranger, NotFound), (new_id(), NotFound)):
        with pytest.raises(error):
            await articles.propose(user, cases, "Title", "Text")
    made = await articles.propose(editor, cases, " A\n title ", "## Question\n")
    assert (made.title, made.body, made.author) == ("A title", "## Question", editor)
    assert [one.id for one in await articles.of_collection(admin, cases)] == [made.id]
    for user in (reader, viewer):
        assert await articles.of_collection(user, cases) == []
    with pytest.raises(NotFound):
        await articles.of_collection(stranger, cases)
    for user in (reader, viewer, stranger, new_id()):
        for act in (
            articles.get(user, made.id),
            articles.change(user, made.id, "T", "B"),
            articles.discard(user, made.id),
            publishing.publish(user, made.id, "T", "B"),
        ):
            with pytest.raises(NotFound):
                await act
    assert (await services.knowledge.search.search(admin, "question", collections=None, limit=5)) == []
    added = await publishing.publish(admin, made.id, "How/what", "## Question\n\nWhat?")
    document = await services.knowledge.documents.get(reader, added.id)
    assert (document.name, document.collection) == ("How-what.md", cases)
    source = await database.read(lambda session: session.get_one(Document, added.id).source)
    assert source == "case"
    assert await articles.of_collection(admin, cases) == []
    for act in (publishing.publish(admin, made.id, "T", "B"), articles.discard(admin, made.id)):
        with pytest.raises(NotFound):
            await act


async def test_publishing_replaces_no_document_and_loses_no_article(services: Services, database: Database) -> None:
    articles, publishing = services.knowledge.articles, services.knowledge.publishing
    documents = services.knowledge.documents
    before = await documents.add(ME, None, "Returns.md", b"# Returns\n\nOther.\n", kind="markdown")
    made = await articles.propose(ME, KNOWLEDGE_COLLECTION_ID, "Returns", "Send it back.")
    with pytest.raises(Conflict, match=r"has a document \"Returns.md\" already"):
        await publishing.publish(ME, made.id, "Returns", "Send it back soon.")
    assert (await documents.get(ME, before.id)).newest == 1
    [kept] = await articles.of_collection(ME, KNOWLEDGE_COLLECTION_ID)
    assert kept.body == "Send it back soon."  # what was written is saved
    # As after a stop between the two transactions, and two clicks at once.
    await documents.add(ME, None, "Returning.md", b"# Returning\n\nSend it.\n", kind="markdown")
    done = await asyncio.gather(
        *(publishing.publish(ME, made.id, "Returning", "Send it.") for _ in range(3)), return_exceptions=True
    )
    assert any(not isinstance(one, BaseException) for one in done)
    assert all(isinstance(one, NotFound) for one in done if isinstance(one, BaseException)), done
    assert sorted(one.name for one in (await documents.page(ME)).items) == ["Returning.md", "Returns.md"]


async def test_limits_and_texts_of_articles(
    services: Services, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    articles = services.knowledge.articles
    refused: list[tuple[str, str]] = [
        ("", "b"),
        (" \n", "b"),
        ("t" * 201, "b"),
        ("t", " "),
        ("t", "b" * (MAX_BODY_CHARS + 1)),
    ]
    for title, body in refused:
        with pytest.raises(InvalidInput):
            await articles.propose(ME, KNOWLEDGE_COLLECTION_ID, title, body)
    made = await articles.propose(ME, KNOWLEDGE_COLLECTION_ID, "t\u202e\0x", "b\0\ud800")
    assert (made.title, made.body) == ("t x", "b\ufffd")
    monkeypatch.setattr(articles_module, "MAX_PROPOSALS", 1)
    with pytest.raises(LimitReached):
        await articles.propose(ME, KNOWLEDGE_COLLECTION_ID, "u", "b")
    for id in ("x", "\0", new_id()):
        with pytest.raises(AppError):
            await articles.get(ME, id)


async def test_articles_go_with_their_collection_and_their_author(services: Services, database: Database) -> None:
    articles, collections = Articles(database), Collections(database)
    admin, author = await person(database, "admin"), await person(database, "admin")
    cases = (await collections.create(admin, "Cases")).id
    for user in (admin, author, ME):
        await articles.propose(user, cases, "T", "B")
    data = UserDataRecords(database)
    for user in (author, ME):
        await data.delete_rest(admin, await data.preview(user))
    assert [one.author for one in await articles.of_collection(admin, cases)] == [admin]
    await collections.delete(admin, cases)
    with pytest.raises(NotFound):
        await articles.of_collection(admin, cases)
