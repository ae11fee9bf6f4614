"""A search of documents that answers as a test scripts it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from app.domain.knowledge import Passage
from app.errors import NotFound


def passage(text: str, number: int = 1, *, title: str = "Returns", heading: str = "", score: float = 1.0) -> Passage:
    """Makes a passage of a document of its own."""
    return Passage(
        document_id=f"document-{number}",
        version=1,
        title=title,
        heading=heading,
        text=text,
        start=10 * number,
        end=10 * number + len(text),
        score=score,
    )


class ScriptedSearch:
    """Finds the same passages for each query but those of ``found_for``, in the collections that a user may use.

    Args:
        members: the users who may use each collection, by its id.
    """

    def __init__(self, *found: Passage, members: dict[str, set[str]]) -> None:
        self.found: Sequence[Passage] = found
        self.found_for: Mapping[str, Sequence[Passage]] = {}
        self.queries: list[str] = []
        self.members = members

    async def search(
        self, user_id: str, query: str, *, collections: Sequence[str] | None, limit: int
    ) -> Sequence[Passage]:
        for collection in collections or ():
            if user_id not in self.members.get(collection, ()):
                raise NotFound("There is no such collection.")
        self.queries.append(query)
        return list(self.found_for.get(query, self.found))[:limit]

    async def usable_documents(self, user_id: str, document_ids: Collection[str]) -> set[str]:
        """All of them, if the user may use any collection."""
        return {*document_ids} if any(user_id in members for members in self.members.values()) else set()

    async def closed_documents(self, user_id: str, document_ids: Collection[str]) -> set[str]:
        """Returns none: an answer keeps what it has quoted."""
        return set()
