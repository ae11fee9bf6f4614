"""Knowledge API: search."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Query

from app.api.deps import ServicesDep, UserId
from app.domain.knowledge import MAX_QUERY_CHARS, Passage, SearchWay
from app.knowledge.search import MAX_PASSAGES

router = APIRouter(prefix="/api/kb", tags=["knowledge"])


@dataclass(frozen=True, slots=True)
class Passages:
    passages: list[Passage]


@router.get("/search")
async def search_passages(
    user_id: UserId,
    services: ServicesDep,
    q: Annotated[str, Query(max_length=MAX_QUERY_CHARS)],
    limit: Annotated[int, Query(ge=1, le=MAX_PASSAGES)] = 10,
    collection: Annotated[list[str] | None, Query(max_length=100)] = None,
    way: SearchWay = SearchWay.FUSED,
) -> Passages:
    """Returns the passages that match best, best first, from the collections that the caller may use."""
    return Passages(await services.knowledge.search.search(user_id, q, collections=collection, limit=limit, way=way))
