"""The judge of a search: what counts as an answer, the scores by hand, and files that are refused."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from app.domain.knowledge import Passage
from app.knowledge.evaluation import Outcome, ask, ask_rewritten, format_table, missed, rank_of_answer, score
from app.knowledge.questions import Question, QuestionFileError, read_questions

QUESTION = Question(text="How do I start?", answers=("make `run` starts [the chat](x.md)", "press Start"))


def passage(text: str, heading: str = "") -> Passage:
    return Passage(document_id="d", version=1, title="T", heading=heading, text=text, start=0, end=len(text), score=1.0)


def outcome(rank: int | None) -> Outcome:
    return Outcome(QUESTION, rank)


@pytest.mark.parametrize(
    "text",
    [
        "First **MAKE run**\n  starts the chat.",
        "| press | Start |\nthen wait",
        "`make run` starts [the chat](other.md#top)",
    ],
)
def test_markup_case_and_line_breaks_do_not_hide_an_answer(text: str) -> None:
    assert QUESTION.is_answered_by(text)


@pytest.mark.parametrize("text", ["", "make run stops the chat", "make run starts", "Start press"])
def test_other_words_are_no_answer(text: str) -> None:
    assert not QUESTION.is_answered_by(text)


def test_the_rank_is_that_of_the_first_answer_within_ten() -> None:
    wrong = [passage("wrong")] * 9
    assert rank_of_answer(QUESTION, [passage("Press start"), passage("press start")]) == 1
    assert rank_of_answer(QUESTION, [*wrong, passage("x", heading="Press Start")]) == 10
    assert rank_of_answer(QUESTION, [*wrong, passage("wrong"), passage("press start")]) is None
    assert rank_of_answer(QUESTION, []) is None


def test_scores_are_those_computed_by_hand() -> None:
    scores = score([outcome(1), outcome(3), outcome(4), outcome(10), outcome(None)])
    assert (scores.questions, scores.recall_at_1, scores.recall_at_3, scores.recall_at_10) == (5, 0.2, 0.4, 0.8)
    assert scores.mrr == pytest.approx((1 + 1 / 3 + 1 / 4 + 1 / 10) / 5)
    with pytest.raises(ValueError, match="at least one"):
        score([])


async def test_a_follow_up_is_asked_as_rewritten_and_as_it_was_if_that_finds_nothing() -> None:
    asked = list[str]()

    async def find(text: str, _limit: int) -> Sequence[Passage]:
        asked.append(text)
        return {"rewritten": [passage("wrong"), passage("Press start")], "as it was": [passage("Press start")]}.get(
            text, []
        )

    async def rewrite(question: Question) -> str:
        return "rewritten" if question.before else "something else"

    questions = [
        Question(text="And then?", answers=("press Start",), before=(("How do I begin?", "Press Start."),)),
        Question(text="as it was", answers=("press Start",)),
    ]
    assert [one.rank for one in await ask_rewritten(questions, find, rewrite)] == [2, 1]
    assert asked == ["rewritten", "something else", "as it was"]


def test_missed_are_those_below_the_third_passage() -> None:
    outcomes = [outcome(3), outcome(4), outcome(None)]
    assert missed(outcomes) == outcomes[1:]


async def test_every_question_is_asked_in_its_own_words_for_ten_passages() -> None:
    asked = []

    async def find(query: str, limit: int) -> Sequence[Passage]:
        asked.append((query, limit))
        return [passage("wrong"), passage("Press Start.")]

    outcomes = await ask([QUESTION, QUESTION], find)
    assert asked == [("How do I start?", 10)] * 2
    assert [found.rank for found in outcomes] == [2, 2]


def test_the_table_has_a_line_for_each_way() -> None:
    header, text, fused = format_table({"text": score([outcome(2)]), "fused": score([outcome(1)])}).splitlines()
    assert header.split() == ["way", "questions", "recall@1", "recall@3", "recall@10", "MRR"]
    assert text.split() == ["text", "1", "0.000", "1.000", "1.000", "0.500"]
    assert fused.split() == ["fused", "1", "1.000", "1.000", "1.000", "1.000"]
    assert len({len(line) for line in (header, text, fused)}) == 1


def test_a_file_is_read_with_its_halves() -> None:
    content = (
        '{"question": "a", "answers": ["x"], "document": "d.md", "half": "tuning", "note": 1}\n\n'
        '{"question": "b", "answers": ["y", "z"], "document": ["d.md", "e.md"], "half": "held-out", "language": "de", '
        '"before": [["c", "d"]]}\n'
    )
    first, second = read_questions(content)
    assert first == Question(text="a", answers=("x",), documents=("d.md",), half="tuning")
    assert second == Question(
        text="b", answers=("y", "z"), before=(("c", "d"),), documents=("d.md", "e.md"), half="held-out", language="de"
    )
    assert read_questions(content, half="held-out") == [second]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("", "no question"),
        ("{", "Line 1 is not JSON"),
        ("[]", "Line 1: the line"),
        ('{"question": "a", "answers": ["x"]}\n{"question": "a"}', "Line 2: answers"),
        ('{"question": "", "answers": ["x"]}', "Line 1: question"),
        ('{"question": "a", "answers": []}', "Line 1: answers"),
        ('{"question": "a", "answers": [" * "]}', "Line 1: an answer is empty"),
        ('{"question": "a", "answers": [7]}', "Line 1: answers.0"),
        ('{"question": "a", "answers": ["x"], "before": [["only a message"]]}', "Line 1: before.0.1"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_with_its_line(content: str, sentence: str) -> None:
    with pytest.raises(QuestionFileError, match=sentence):
        read_questions(content)


def test_a_half_that_nobody_is_in_names_those_there_are() -> None:
    with pytest.raises(QuestionFileError, match='no question of the half "test"; there are: tuning'):
        read_questions('{"question": "a", "answers": ["x"], "half": "tuning"}', half="test")
