"""When a search ends, step by step. What it finds is compared with transformers in ``runtime/test_beam_search.py``."""

from __future__ import annotations

from typing import Any

import pytest

from engine import BeamSearchParams
from engine.sampling.beam_search import BeamSearch, Choice

END = 0


def search(width: int = 1, max_tokens: int = 10, **options: Any) -> BeamSearch:
    return BeamSearch(BeamSearchParams(width=width, **options), max_tokens=max_tokens, end_token_ids=[END])


@pytest.mark.parametrize(
    ("options", "goes_on"),
    [
        ({"early_stopping": False}, False),  # -0.9 at one token is below -0.5
        ({"early_stopping": True}, False),
        ({"early_stopping": "never"}, True),  # -0.9 at ten tokens would be above
        ({"early_stopping": "never", "max_tokens": 1}, False),
        ({"early_stopping": "never", "length_penalty": 0.0}, False),
        ({"early_stopping": "never", "length_penalty": -1.0}, False),
    ],
)
def test_a_search_ends_when_no_beam_could_become_better(options: dict[str, Any], goes_on: bool) -> None:
    made = search(**options)
    assert made.advance([[(END, -0.5), (1, -0.9)]]) == ([Choice(0, 1)] if goes_on else None)
    [best] = made.replies(1)
    assert ([scores.token_id for scores in best.scores()], best.score) == ([END], -0.5)


def test_a_longer_reply_wins_where_its_tokens_are_likelier() -> None:
    made = search(early_stopping="never")
    made.advance([[(END, -0.5), (1, -0.6)]])
    made.advance([[(2, -0.1), (END, -3.0)]])
    assert made.advance([[(END, -0.1), (3, -4.0)]]) is None
    [best] = made.replies(1)
    assert [(one.token_id, one.rank) for one in best.scores()] == [(1, 2), (2, 1), (END, 1)]
    assert best.score == pytest.approx(-0.8 / 3)


def test_all_beams_must_have_ended_first() -> None:
    made = search(width=2, early_stopping=True)
    assert made.advance([[(END, -0.1), (1, -0.2), (2, -0.3), (3, -9.0)]]) == [Choice(0, 1), Choice(0, 2)]
    assert made.num_beams == 2
    assert made.advance([[(4, -0.1)] * 4, [(5, -8.0)] * 4]) == [Choice(0, 4), Choice(0, 4)]
    assert made.advance([[(END, -0.1), (1, -9.0)], [(END, -0.2), (1, -9.0)]]) is None
    assert [len(reply.scores()) for reply in made.replies(2)] == [1, 3]


def test_an_end_that_is_not_among_the_likeliest_is_not_taken() -> None:
    made = search(width=2)
    made.advance([[(1, -0.1), (2, -0.2), (END, -0.3), (3, -0.4)]])
    assert [[scores.token_id for scores in reply.scores()] for reply in made.replies(3)] == [[1], [2]]
