"""Chunks get their vectors in the background, and the index follows every change of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pytest

from app.domain.knowledge import ChunkText, StoredVectors
from app.errors import EngineUnavailable
from app.knowledge import dense_search
from app.knowledge.dense_index import DenseIndex, MemoryIndex
from app.knowledge.dense_search import DenseSearch
from engine import Embeddings, EncoderInfo, EngineStoppedError, TextRole
from testing.fake_encoder import FakeEncoder


class Records:
    """Chunks in memory: (collection, text) by id, and their vectors."""

    def __init__(self, **chunks: tuple[str, str]) -> None:
        self.chunks = chunks
        self.stored: dict[str, tuple[str, StoredVectors]] = {}
        self.num_loaded = 0

    async def revision(self) -> str:
        return repr((self.chunks, sorted((id, mark) for id, (mark, _) in self.stored.items())))

    async def unencoded(self, fingerprint: str, limit: int, after: str = "") -> Sequence[ChunkText]:
        waiting = [id for id in sorted(self.chunks) if id > after and self._mark(id) != fingerprint]
        return [
            ChunkText(chunk_id=id, collection_id=self.chunks[id][0], place="", text=self.chunks[id][1])
            for id in waiting[:limit]
        ]

    async def save(self, fingerprint: str, vectors: Mapping[str, StoredVectors]) -> None:
        self.stored |= {id: (fingerprint, vector) for id, vector in vectors.items() if id in self.chunks}

    async def encoded(self, fingerprint: str) -> Mapping[str, str]:
        return {id: owner for id, (owner, _) in self.chunks.items() if self._mark(id) == fingerprint}

    async def vectors(self, fingerprint: str, chunk_ids: Sequence[str]) -> Mapping[str, bytes]:
        self.num_loaded += len(chunk_ids)
        return {id: self.stored[id][1].vector for id in chunk_ids if self._mark(id) == fingerprint}

    async def windows(self, fingerprint: str, chunk_ids: Collection[str]) -> Mapping[str, bytes]:
        return {id: self.stored[id][1].windows for id in chunk_ids if self._mark(id) == fingerprint}

    def _mark(self, chunk_id: str) -> str:
        return self.stored[chunk_id][0] if chunk_id in self.stored else ""


async def in_memory(info: EncoderInfo) -> DenseIndex:
    return MemoryIndex(info.dimensions)


RECORDS = {
    "refunds": ("help", "refunds are paid within five days"),
    "printer": ("help", "the printer needs paper"),
    "secret": ("board", "refunds for the board are paid at once"),
}


async def found(search: DenseSearch, query: str, *collections: str) -> list[str]:
    return [one.chunk_id for one in await search.search(query, collections=collections, limit=2)]


async def test_chunks_are_encoded_and_found_by_meaning() -> None:
    encoder, records = FakeEncoder(), Records(**RECORDS)
    search = DenseSearch(lambda: encoder, records, in_memory)
    assert await found(search, "are refunds paid", "help") == []
    await search.catch_up()
    assert await found(search, "are refunds paid", "help") == ["refunds", "printer"]
    assert set(await found(search, "are refunds paid", "help", "board")) == {"refunds", "secret"}
    assert [(role, background) for _, role, background in encoder.calls[:2]] == [
        (TextRole.DOCUMENT, True),
        (TextRole.QUERY, False),
    ]


async def test_every_change_reaches_the_index_and_only_the_change_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense_search, "ENCODED_AT_ONCE", 2)
    encoder, records = FakeEncoder(), Records(**RECORDS)
    search = DenseSearch(lambda: encoder, records, in_memory)
    encoded = list[int]()
    await search.catch_up(encoded.append)
    assert (sum(encoded), len(encoded)) == (len(RECORDS), 2)
    assert records.num_loaded == 0  # what was encoded here goes straight into the index
    del records.chunks["refunds"]
    records.chunks["printer"] = ("board", RECORDS["printer"][1])  # its document moved
    records.chunks["returns"] = ("help", "returns and refunds")
    await search.catch_up()
    assert await found(search, "refunds", "help") == ["returns"]
    assert set(await found(search, "refunds", "board")) == {"secret", "printer"}
    assert records.num_loaded == 1
    calls = len(encoder.calls)
    await search.catch_up()
    await search.catch_up()
    assert (records.num_loaded, len(encoder.calls)) == (1, calls)


async def test_a_chunk_that_goes_while_it_is_encoded_leaves_the_index() -> None:
    encoder, records = FakeEncoder(), Records(**RECORDS)
    embed = encoder.embed

    async def losing(*given: Any, **options: Any) -> Embeddings:
        records.chunks.pop("refunds", None)
        return await embed(*given, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoder, "embed", losing)
        search = DenseSearch(lambda: encoder, records, in_memory)
        await search.catch_up()
    await search.catch_up()
    assert await found(search, "refunds", "help") == ["printer"]


async def test_what_another_server_has_encoded_is_taken_as_it_is() -> None:
    encoder, records = FakeEncoder(), Records(**RECORDS)
    await DenseSearch(lambda: encoder, records, in_memory).catch_up()
    calls = len(encoder.calls)
    second = DenseSearch(lambda: encoder, records, in_memory)
    await second.catch_up()
    assert (len(encoder.calls), records.num_loaded) == (calls, 3)
    assert await found(second, "paper for the printer", "help") == ["printer", "refunds"]


async def test_another_encoder_encodes_all_again() -> None:
    encoder, records = FakeEncoder(), Records(**RECORDS)
    search = DenseSearch(lambda: encoder, records, in_memory)
    await search.catch_up()
    await search.catch_up()  # now nothing has changed since the last look
    old = dict(records.stored)
    encoder.become("0123456789abcdef")
    await search.catch_up()
    assert {mark for mark, _ in records.stored.values()} == {"0123456789abcdef"}
    assert records.stored.keys() == old.keys()
    assert await found(search, "paper for the printer", "help") == ["printer", "refunds"]


async def test_without_an_encoder_nothing_is_found_and_nothing_fails() -> None:
    search = DenseSearch(lambda: None, Records(**RECORDS), in_memory)
    await search.catch_up()
    assert not search.is_available
    assert await found(search, "refunds", "help") == []


async def test_an_encoder_that_fails_says_so_and_is_tried_again() -> None:
    encoder, records = FakeEncoder(), Records(**RECORDS)
    search = DenseSearch(lambda: encoder, records, in_memory)
    encoder.refuse = EngineStoppedError("It stopped.")
    with pytest.raises(EngineStoppedError):
        await search.catch_up()
    encoder.refuse = None
    await search.catch_up()
    encoder.refuse = EngineStoppedError("It stopped.")
    with pytest.raises(EngineUnavailable, match="It stopped"):
        await found(search, "refunds", "help")
