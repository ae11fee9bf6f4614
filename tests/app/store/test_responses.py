"""Stored responses on both databases: their user's alone, in chains, counted, expired, exported, erased."""

from __future__ import annotations

import asyncio
import io
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from app.domain import storage
from app.domain.conversation_document import Document
from app.domain.ids import LOCAL_USER_ID as ME
from app.domain.ids import new_id
from app.domain.responses import response_id_of
from app.domain.roles import UserRole
from app.errors import LimitReached, NotFound
from app.services.container import Services
from app.store.accounts.accounts import AccountRecords
from app.store.accounts.invitations import Invitations
from app.store.chat import responses as responses_module
from app.store.chat.responses import Exchange, ResponseRecords
from app.store.chat.storage_use import StorageUsageRecords
from app.store.db.models import Account
from app.store.db.response_models import StoredResponse
from app.store.maintenance import retention as retention_module
from app.store.maintenance.retention import Retention
from app.transfer.service import Export
from tests.app.conftest import add_user

TEXT = "Grüße \0 世界 🦜 \\ud83d"


@pytest.fixture
def records(services: Services) -> ResponseRecords:
    return ResponseRecords(services.database)


async def add(records: ResponseRecords, user_id: str = ME, previous: str | None = None, text: str = TEXT) -> str:
    id = response_id_of(new_id())
    body = {"id": id, "previous_response_id": previous, "output": [{"type": "message", "content": text}]}
    await records.add(user_id, Exchange([{"type": "message", "content": text, "number": 10**30}], body))
    return id


async def age(services: Services, days: float, *ids: str) -> None:
    rows = [responses_module._row_id(id) for id in ids]
    moment = datetime.now(UTC) - timedelta(days=days)
    statement = sa.update(StoredResponse).where(StoredResponse.id.in_(rows)).values(created_at=moment)
    await services.database.write(lambda session: session.execute(statement))


async def ids_of(records: ResponseRecords, user_id: str = ME) -> list[str]:
    return [exchange.body["id"] async for exchange in records.read_all(user_id)]


async def content(export: Export) -> bytes:
    return b"".join([piece async for piece in export.pieces])


async def test_it_is_its_users_alone(services: Services, records: ResponseRecords, stranger: str) -> None:
    first = await add(records)
    second = await add(records, previous=first)
    stored = await records.get(ME, first)
    assert stored.input == [{"type": "message", "content": TEXT, "number": 10**30}]
    assert stored.body["output"] == [{"type": "message", "content": TEXT}]
    for work in (records.get, records.delete, records.chain):
        with pytest.raises(NotFound):
            await work(stranger, second)
    assert await records.with_ids(stranger, [first, second]) == {}
    assert await ids_of(records, stranger) == []
    assert await records.delete_all(stranger) == 0
    # A chain that another user's response begins is none.
    theirs = await add(records, stranger, previous=second)
    with pytest.raises(NotFound, match="deleted"):
        await records.chain(stranger, theirs)
    assert [one.body["id"] for one in await records.chain(ME, second)] == [first, second]
    await age(services, 40, first, second)
    assert await Retention(services.database).delete_older_responses(datetime.now(UTC) - timedelta(days=30)) == 2
    assert await ids_of(records, stranger) == [theirs]


@pytest.mark.parametrize(
    "id", ["", "resp_", f"resp_{'g' * 32}", "01a21344-51b1-759f-b5a9-0a392d26a9b6", f"resp_{'0' * 32}\n", "resp_\0"]
)
async def test_wrong_ids(records: ResponseRecords, id: str) -> None:
    for work in (records.get, records.delete, records.chain):
        with pytest.raises(NotFound):
            await work(ME, id)
    assert await records.with_ids(ME, [id]) == {}


async def test_chains_branch_and_end_where_one_is_missing(
    records: ResponseRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(responses_module, "_ROWS", 2)
    chain = [await add(records)]
    for _ in range(6):
        chain.append(await add(records, previous=chain[-1]))
    branch = await add(records, previous=chain[2])
    assert [one.body["id"] for one in await records.chain(ME, chain[-1])] == chain
    assert [one.body["id"] for one in await records.chain(ME, branch)] == [*chain[:3], branch]
    await records.delete(ME, chain[4])
    with pytest.raises(NotFound, match=f"'{chain[5]}' continues one"):
        await records.chain(ME, chain[-1])
    assert len(await records.chain(ME, branch)) == 4
    after = await add(records, previous=chain[4])
    with pytest.raises(NotFound, match="deleted"):
        await records.chain(ME, after)


async def test_a_chain_that_is_too_large_is_refused(records: ResponseRecords, monkeypatch: pytest.MonkeyPatch) -> None:
    first = await add(records, text="x" * 1000)
    second = await add(records, previous=first, text="x" * 1000)
    monkeypatch.setattr(responses_module, "MAX_CONVERSATION_BYTES", 3000)
    assert len(await records.chain(ME, first)) == 1
    with pytest.raises(LimitReached):
        await records.chain(ME, second)
    assert [*await records.with_ids(ME, [second])] == [second]
    with pytest.raises(LimitReached):
        await records.with_ids(ME, [first, second])


async def test_what_is_stored_is_counted(services: Services, records: ResponseRecords, stranger: str) -> None:
    uses = StorageUsageRecords(services.database)
    first = await add(records)
    await add(records, stranger)
    use = await uses.of(ME)
    stored = await records.get(ME, first)
    texts = [json.dumps(one, ensure_ascii=False, separators=(",", ":")) for one in (stored.input, stored.body)]
    assert use.bytes == storage.RESPONSE_BYTES + sum(len(text.encode()) for text in texts)
    assert (use.responses, use.conversations) == (1, 0)
    await records.delete(ME, first)
    assert (await uses.of(ME)).bytes == 0


async def test_retention_takes_a_chain_as_a_whole(
    services: Services, records: ResponseRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention_module, "BATCH", 2)
    alive = [await add(records)]
    alive.append(await add(records, previous=alive[0]))
    alive.append(await add(records, previous=alive[0]))  # another branch keeps the whole tree
    dead = [await add(records)]
    dead.append(await add(records, previous=dead[0]))
    dead += [await add(records) for _ in range(5)]
    await age(services, 40, *alive[:2], *dead)
    limit = datetime.now(UTC) - timedelta(days=30)
    assert await Retention(services.database).delete_older_responses(limit) == 7
    assert await ids_of(records) == alive
    assert len(await records.chain(ME, alive[1])) == 2


@pytest.mark.parametrize(
    ("chats", "responses", "days"), [(None, 30, 30), (7, 30, 7), (90, 30, 30), (7, None, 7), (None, None, None)]
)
async def test_how_long_they_are_kept(services: Services, chats: Any, responses: Any, days: Any) -> None:
    settings = services.settings.model_copy(update={"retention_days": chats, "response_retention_days": responses})
    assert settings.response_days == days


async def test_they_are_exported_but_not_imported(services: Services, records: ResponseRecords, stranger: str) -> None:
    ref = await services.turns.start(ME, text="Hello")
    async for _ in services.turns.events(ME, ref.turn_id):
        pass
    without = await content(await services.transfers.export_all(ME, "json"))
    assert b"responses" not in without
    ids = [await add(records) for _ in range(responses_module._EXPORTED_AT_ONCE + 1)]
    data = await content(await services.transfers.export_all(ME, "json"))
    document = Document.model_validate_json(data)
    assert [one.response["id"] for one in document.responses] == ids
    assert document.responses[0].input[0]["content"] == TEXT
    assert len(data.splitlines()) == len(without.splitlines()) + 1 + len(ids)
    counts = await services.transfers.import_file(stranger, io.BytesIO(data))
    assert (counts.imported, counts.already_there) == (1, 0)
    assert await ids_of(records, stranger) == []
    one = await content(await services.transfers.export_one(ME, ref.conversation_id, "json"))
    assert b"resp_" not in one


async def test_they_go_with_their_user(
    services: Services, records: ResponseRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(responses_module, "_BATCH", 2)
    gone, stays = await add_user(services.database), await add_user(services.database)
    for user_id in (gone, stays, ME):
        for _ in range(5):
            await add(records, user_id)
    before = await services.desk.erasure.preview(gone)
    assert before.responses == 5
    await services.desk.erasure.erase(None, gone)
    assert await ids_of(records, gone) == []
    with pytest.raises(NotFound, match="deleted"):  # by a reply that ends after its user
        await add(records, gone)
    assert len(await ids_of(records, stays)) == len(await ids_of(records)) == 5
    await services.desk.erasure.erase(None, ME)
    assert await ids_of(records) == []
    assert await records.delete_all(stays) == 5


async def test_the_database_deletes_them_with_the_account(services: Services, records: ResponseRecords) -> None:
    gone = await add_user(services.database)
    await add(records, gone)
    await services.database.write(lambda session: session.execute(sa.delete(Account).where(Account.id == gone)))
    assert await ids_of(records, gone) == []


async def test_those_from_before_there_were_accounts_change_hands(services: Services, records: ResponseRecords) -> None:
    id = await add(records)
    admin = await AccountRecords(services.database).create("admin", "Admin", UserRole.ADMIN, "hash")
    await Invitations(services.database).take_over(admin.id)
    assert await ids_of(records) == []
    assert await ids_of(records, admin.id) == [id]


async def test_many_are_written_at_once(records: ResponseRecords) -> None:
    first = await add(records)
    ids = await asyncio.gather(*(add(records, previous=first) for _ in range(20)))
    assert sorted(await ids_of(records)) == sorted([first, *ids])
