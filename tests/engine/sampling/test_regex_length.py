"""The length of the shortest match of a regular expression, against expressions whose length is known."""

from __future__ import annotations

import pytest

from engine.sampling.regex_length import min_match_length


@pytest.mark.parametrize(
    ("pattern", "length"),
    [
        ("", 0),
        ("abc", 3),
        ("ab?c*d+", 2),
        ("a{5}b{2,}c{3,9}d{0,9}", 10),
        ("a{5}?b+?c??", 6),
        ("(ab|c){4}", 4),
        ("((a{9}){9}){9}", 729),
        ("(?:ab){3}(?P<n>c){2}(?i:d)", 9),
        (r"\d{3}\p{L}{2}\x{1F600}{4}\({2}", 11),
        ("[^])(|{9}]{7}[a-z[:alpha:]]{2}", 9),
        ("^(a|)$", 0),
        ("a{99999999999999999999999}", 10**18 - 1),
        ("((a", 1),
    ],
)
def test_the_shortest_match(pattern: str, length: int) -> None:
    assert min_match_length(pattern) == length
