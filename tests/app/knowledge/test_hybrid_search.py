"""Each way of searching finds what its rankings find, within the user's rights."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from app.domain.knowledge import Passage, SearchWay
from app.errors import EngineUnavailable, NotFound, NotSupported, StorageUnavailable
from app.knowledge.dense_search import DenseSearch
from app.knowledge.hybrid_search import HybridSearch
from engine import Embeddings, EngineStoppedError
from testing.fake_encoder import FakeEncoder
from tests.app.knowledge.test_dense_search import RECORDS, Records, in_memory


class Passages:
    """The chunks of ``RECORDS``; the words of a query find those that have all of them."""

    def __init__(self, *usable: str) -> None:
        self._usable = usable

    async def search(
        self, user_id: str, query: str, *, collections: Sequence[str] | None, limit: int
    ) -> Sequence[Passage]:
        found = await self.rank(user_id, query, collections=collections)
        return [passage(id, score) for id, score in found.items()][:limit]

    async def rank(self, user_id: str, query: str, *, collections: Sequence[str] | None) -> Mapping[str, float]:
        usable = await self.usable(user_id, collections)
        return {id: 0.9 for id, (owner, text) in RECORDS.items() if owner in usable and query in text}

    async def usable(self, user_id: str, collections: Sequence[str] | None) -> Sequence[str]:
        if collections is not None and not set(collections) <= set(self._usable):
            raise NotFound("There is no such collection.")
        return self._usable if collections is None else collections

    async def passages(self, user_id: str, scores: Mapping[str, float]) -> Sequence[Passage]:
        return [passage(id, score) for id, score in scores.items() if RECORDS[id][0] in self._usable]


def passage(id: str, score: float) -> Passage:
    return Passage(document_id=id, version=1, title=id, heading="", text=RECORDS[id][1], start=0, end=9, score=score)


async def search_of(encoder: FakeEncoder | None, *usable: str) -> HybridSearch:
    dense = DenseSearch(lambda: encoder, Records(**RECORDS), in_memory)
    await dense.catch_up()
    return HybridSearch(Passages(*usable), dense)


async def found(
    search: HybridSearch, query: str, way: SearchWay, collections: Sequence[str] | None = None
) -> list[str]:
    passages = await search.search("user", query, collections=collections, limit=3, way=way)
    return [one.document_id for one in passages]


async def test_each_way_finds_what_its_rankings_find() -> None:
    search = await search_of(FakeEncoder(), "help")
    assert await found(search, "printer needs", SearchWay.TEXT) == ["printer"]
    assert await found(search, "are refunds paid", SearchWay.DENSE) == ["refunds", "printer"]
    assert await found(search, "needs", SearchWay.FUSED) == ["printer", "refunds"]
    assert await found(search, "paid are refunds", SearchWay.FUSED) == ["refunds", "printer"]


@pytest.mark.parametrize("way", SearchWay)
async def test_no_way_finds_what_the_user_may_not_use(way: SearchWay) -> None:
    search = await search_of(FakeEncoder(), "help")
    assert "secret" not in await found(search, "refunds", way)
    assert "secret" not in await found(search, "refunds", way, ["help"])
    with pytest.raises(NotFound):
        await found(search, "refunds", way, ["board"])


async def test_without_an_encoder_words_find_what_there_is() -> None:
    search = await search_of(None, "help")
    assert await found(search, "refunds", SearchWay.FUSED) == ["refunds"]
    with pytest.raises(NotSupported, match="no encoder"):
        await found(search, "refunds", SearchWay.DENSE)


async def test_words_find_what_there_is_while_the_encoder_is_down() -> None:
    encoder = FakeEncoder()
    search = await search_of(encoder, "help")
    encoder.refuse = EngineStoppedError("It sleeps.")
    assert await found(search, "refunds", SearchWay.FUSED) == ["refunds"]
    with pytest.raises(EngineUnavailable, match="It sleeps"):
        await found(search, "refunds", SearchWay.DENSE)


async def test_words_and_meaning_are_searched_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, both = FakeEncoder(), asyncio.Barrier(2)
    search = await search_of(encoder, "help")
    embed, rank = encoder.embed, Passages.rank

    async def embed_beside(*given: Any, **options: Any) -> Embeddings:
        await both.wait()
        return await embed(*given, **options)

    async def rank_beside(*given: Any, **options: Any) -> Mapping[str, float]:
        await both.wait()
        return await rank(*given, **options)

    monkeypatch.setattr(encoder, "embed", embed_beside)
    monkeypatch.setattr(Passages, "rank", rank_beside)
    async with asyncio.timeout(30):  # one after the other, each would wait for ever
        assert await found(search, "needs", SearchWay.FUSED) == ["printer", "refunds"]


async def test_a_database_that_fails_is_no_search_by_meaning_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    search = await search_of(FakeEncoder(), "help")

    async def rank(*_given: Any, **_options: Any) -> Mapping[str, float]:
        raise StorageUnavailable("It is gone.")

    monkeypatch.setattr(Passages, "rank", rank)
    with pytest.raises(StorageUnavailable, match="It is gone"):
        await found(search, "needs", SearchWay.FUSED)
