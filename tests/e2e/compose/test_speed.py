"""The container is as fast as a checkout: its image has the C++ decoder compiled for this processor."""

from __future__ import annotations

import re

import pytest

from benchmarks.container import compare, sentence
from tests.e2e.compose.desk import IMAGE, ComposeProject

ROUNDS = 5


def test_the_image_has_the_decoder_for_this_processor(desk: ComposeProject) -> None:
    found = desk.try_compose("run", "--rm", "-T", "--no-deps", "app", "deskmate", "doctor").stdout.decode()
    assert re.search(r"C\+\+ decoder: prebuilt for \S+", found), found


def test_decodes_are_as_fast_as_in_a_checkout(desk: ComposeProject, capsys: pytest.CaptureFixture[str]) -> None:
    """Measured in turns, and shown, not asserted: other programs may be busy on this machine."""
    compared = compare(IMAGE, rounds=ROUNDS)
    with capsys.disabled():
        print(f"\n{sentence(compared)}")
