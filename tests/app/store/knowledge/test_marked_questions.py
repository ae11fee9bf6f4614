"""Questions that passages answer: the phrase that is kept, the file, and who may mark; on both databases."""

from __future__ import annotations

import pytest

from app.domain.ids import LOCAL_USER_ID as ME
from app.domain.marked_questions import as_jsonl, sentences_of
from app.errors import NotAllowed, NotFound
from app.knowledge.questions import read_questions
from app.services.container import Services
from app.store.accounts.personal_data import UserDataRecords
from app.store.db.database import Database
from app.store.knowledge.collections import Collections
from app.store.knowledge.documents import Documents
from app.store.knowledge.marked_questions import MarkedQuestions
from tests.app.store.test_knowledge import TEXT, person, read_all


@pytest.fixture
async def database(services: Services) -> Database:
    await services.knowledge.ingest.close()
    return services.database


def test_a_passage_is_cut_into_sentences_and_lines() -> None:
    assert sentences_of("One. Two!\n\n| --- |\n| a | b |\n") == ["One.", "Two!", "| a | b |"]
    assert sentences_of("...\n\n") == []
    assert len(sentences_of("word " * 500)[0]) <= 300


async def test_the_sentence_that_is_most_like_the_question_is_the_answer(database: Database) -> None:
    documents, questions = Documents(database), MarkedQuestions(database)
    added = await documents.add(ME, None, "terms.md", b"x", kind="markdown")
    await read_all(database)
    for question in ("How much is shipping to Norway?", "When is my refund paid?", "When is my refund paid?"):
        await questions.mark(ME, question, added.id, version=1, start=0, end=len(TEXT))
    assert [(one.question, one.answer) for one in await questions.all(ME)] == [
        ("How much is shipping to Norway?", "Shipping to Norway costs twelve euros."),
        ("When is my refund paid?", "Refunds are paid within ten days."),
    ]
    await questions.mark(ME, "When is my refund paid?", added.id, version=1, start=34, end=len(TEXT))
    first, second = read_questions(as_jsonl(await questions.all(ME)))
    assert first.documents == ("terms.md",)
    assert second.answers == ("Refunds are paid within ten days.", "Shipping to Norway costs twelve euros.")
    for one in await questions.all(ME):
        await questions.remove(ME, one.id)
    assert as_jsonl(await questions.all(ME)) == ""


async def test_editors_mark_questions_and_these_go_with_them(database: Database) -> None:
    collections, documents, questions = Collections(database), Documents(database), MarkedQuestions(database)
    admin, editor, reader = [await person(database, role) for role in ("admin", "agent", "agent")]
    secret = (await collections.create(admin, "Secret")).id
    await collections.set_member(admin, secret, editor, may_edit=True)
    added = await documents.add(admin, secret, "terms.md", b"x", kind="markdown")
    await read_all(database)
    with pytest.raises(NotFound):
        await questions.mark(reader, "Refund?", added.id, version=1, start=0, end=33)
    await collections.set_member(admin, secret, reader, may_edit=False)
    with pytest.raises(NotAllowed):
        await questions.mark(reader, "Refund?", added.id, version=1, start=0, end=33)
    made = await questions.mark(editor, "Refund?", added.id, version=1, start=0, end=33)
    assert await questions.all(reader) == []
    assert await questions.all(reader, secret) == []
    with pytest.raises(NotFound):
        await questions.remove(reader, made.id)
    assert [one.id for one in await questions.all(admin)] == [made.id]
    await documents.remove(admin, added.id)
    assert len(await questions.all(admin, secret)) == 1  # a new document may answer it
    data = UserDataRecords(database)
    before = await data.preview(editor)
    assert (before.marked_questions, before.articles, before.drafts) == (1, 0, 0)
    await data.delete_rest(admin, before)
    assert await questions.all(admin) == []
