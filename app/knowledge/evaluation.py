"""How good a search is: recall and mean reciprocal rank over a file of questions, by each way to search."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from app.domain.knowledge import Passage
from app.knowledge.questions import Question

#: Passages that are asked for with each question: an answer below them is as good as none.
DEPTH = 10

#: Finds the passages for a query, best first: at most as many as the second argument says.
Find = Callable[[str, int], Awaitable[Sequence[Passage]]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Where a question's first answer stood."""

    question: Question
    rank: int | None  #: from 1; None if none of the first ``DEPTH`` passages answers


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Shares of the questions, 0 to 1."""

    questions: int
    recall_at_1: float  #: with an answer in the first passage
    recall_at_3: float
    recall_at_10: float
    mrr: float  #: mean of 1 / rank of the first answer, 0 for none (mean reciprocal rank)


async def ask(questions: Iterable[Question], find: Find) -> list[Outcome]:
    """Asks every question, one after the other."""
    return [Outcome(question, rank_of_answer(question, await find(question.text, DEPTH))) for question in questions]


async def ask_rewritten(
    questions: Iterable[Question], find: Find, rewrite: Callable[[Question], Awaitable[str]]
) -> list[Outcome]:
    """Asks what ``rewrite`` makes of every question; if that finds nothing, the question itself, as replies do."""
    outcomes = []
    for question in questions:
        found = await find(await rewrite(question), DEPTH) or await find(question.text, DEPTH)
        outcomes.append(Outcome(question, rank_of_answer(question, found)))
    return outcomes


def rank_of_answer(question: Question, passages: Sequence[Passage]) -> int | None:
    """Returns the rank, from 1, of the first passage that answers the question; its headings count as its words."""
    for rank, passage in enumerate(passages[:DEPTH], start=1):
        if question.is_answered_by(f"{passage.heading}\n{passage.text}"):
            return rank
    return None


def score(outcomes: Sequence[Outcome]) -> Scores:
    """Computes the scores of at least one outcome."""
    if not outcomes:
        raise ValueError("no outcomes: ask at least one question")
    ranks = [outcome.rank for outcome in outcomes if outcome.rank is not None]

    def recall(depth: int) -> float:
        return sum(rank <= depth for rank in ranks) / len(outcomes)

    return Scores(
        questions=len(outcomes),
        recall_at_1=recall(1),
        recall_at_3=recall(3),
        recall_at_10=recall(DEPTH),
        mrr=sum(1 / rank for rank in ranks) / len(outcomes),
    )


def format_table(scores: Mapping[str, Scores]) -> str:
    """Returns a text table with a line for each way to search."""
    width = max(len("way"), *(len(way) for way in scores)) if scores else len("way")
    lines = [f"{'way':<{width}}  questions  recall@1  recall@3  recall@10    MRR"]
    for way, line in scores.items():
        lines.append(
            f"{way:<{width}}  {line.questions:>9}  {line.recall_at_1:>8.3f}  {line.recall_at_3:>8.3f}"
            f"  {line.recall_at_10:>9.3f}  {line.mrr:.3f}"
        )
    return "\n".join(lines)


def missed(outcomes: Iterable[Outcome], *, depth: int = 3) -> list[Outcome]:
    """Returns the questions without an answer among the first ``depth`` passages."""
    return [outcome for outcome in outcomes if outcome.rank is None or outcome.rank > depth]
