"""Groups unanswered questions by what they ask for."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Sequence

from app.domain.gaps import GapGroup, GapList, GapQuestion, GapState
from app.store.knowledge.concepts import query_words
from app.store.knowledge.gaps import GapRecords

MIN_SIMILARITY = 0.5
"""Of the stems of two questions: the share that both have of those that any has (Jaccard, 1901)."""
MAX_SHOWN = 20
"""Questions of a group that are shown."""


class Gaps:
    """The gaps of the knowledge base, for reviewers."""

    def __init__(self, records: GapRecords) -> None:
        self._records = records

    async def list(self, reviewer_id: str, state: GapState = GapState.OPEN) -> GapList:
        """Returns the groups of questions that the reviewer may see, most frequent first."""
        questions, has_more = await self._records.list(reviewer_id, state)
        return GapList(groups=await asyncio.to_thread(group_questions, questions), has_more=has_more)

    async def mark(self, admin_id: str, message_ids: Sequence[str], *, done: bool) -> None:
        """Takes questions off the list, or puts them back. The group returns with the next question like them.

        Raises:
            NotFound: there are no such questions.
        """
        await self._records.mark(admin_id, message_ids, done=done)


def group_questions(questions: Iterable[GapQuestion]) -> tuple[GapGroup, ...]:
    """Groups questions whose words have mostly the same stems; most frequent first, then latest.

    From the oldest on, each joins the group that holds the most similar question, so that a new question does not
    rearrange the groups there are.
    """
    oldest_first = sorted(questions, key=lambda one: (one.at, one.message_id))
    groups: list[list[GapQuestion]] = []
    group_of: dict[frozenset[str], int] = {}  # by the words of a question
    with_word: dict[str, set[frozenset[str]]] = defaultdict(set)
    for one in oldest_first:
        # A question without words, such as "???", is like itself only.
        words = frozenset(query_words(one.question)) or frozenset([one.question.strip()])
        if (number := group_of.get(words)) is None:
            near = set().union(*(with_word[word] for word in words))
            best = max(near, key=lambda other: (_similarity(words, other), -group_of[other]), default=None)
            if best is not None and _similarity(words, best) >= MIN_SIMILARITY:
                number = group_of[best]
            else:
                number = len(groups)
                groups.append([])
            group_of[words] = number
            for word in words:
                with_word[word].add(words)
        groups[number].append(one)
    made = [_group(members[::-1]) for members in groups]
    return tuple(sorted(made, key=lambda group: (-group.count, -group.last_at.timestamp(), group.message_ids)))


def _similarity(one: frozenset[str], other: frozenset[str]) -> float:
    return len(one & other) / len(one | other)


def _group(latest_first: Sequence[GapQuestion]) -> GapGroup:
    return GapGroup(
        question=latest_first[0].question,
        count=len(latest_first),
        last_at=latest_first[0].at,
        collections=tuple(sorted({id for one in latest_first for id in one.collections})),
        message_ids=tuple(one.message_id for one in latest_first),
        questions=tuple(latest_first[:MAX_SHOWN]),
    )
