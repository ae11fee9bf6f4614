"""Masks that a thread computes are those of the newest token, and no work outlives the block that it runs beside."""

from __future__ import annotations

import gc
import threading
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest

from engine import SamplingParams, StructuredOutput, StructureKind
from engine.errors import LogitsError
from engine.sampling import grammar_compiler, grammar_masks
from engine.sampling.grammar import Grammar, GrammarMatcher, compute_masks
from engine.sampling.grammar_compiler import GrammarCompiler
from engine.sampling.grammar_masks import GrammarMasks
from engine.sampling.sampler import SamplingRow
from testing.grammars import bytes_compiler

PATTERN = "(ab|cd)[0-9]{1,3}[xyz]+!"
COMPLEX = "a(b|c){0,50}d|a.{0,40}(xyz|zyx|[a-f]{3,30}q)"


@cache
def compiler() -> GrammarCompiler:
    return bytes_compiler()


def grammar(pattern: str = PATTERN) -> Grammar:
    return compiler().compile(StructuredOutput(StructureKind.REGEX, pattern))


def row_of(text: str, request_id: str = "one", is_held: bool = True, pattern: str = PATTERN) -> SamplingRow:
    return SamplingRow(
        request_id,
        SamplingParams.neutral(temperature=0),
        seed=0,
        token_ids=list(text.encode()),
        num_prompt_tokens=0,
        grammar=grammar(pattern).start(request_id) if is_held else None,
    )


def banned_after(text: str) -> list[int]:
    return grammar().start("reference").banned(list(text.encode()), 0).tolist()


def banned_of(row: SamplingRow) -> list[int]:
    return row.banned().tolist()


BANNED = {text: banned_after(text) for text in ("", "ab", "cd1")}


class Watched:
    """Replaces the computation: begins when the block has begun, signals its end, and counts its matchers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.block_began, self.ended = threading.Event(), threading.Event()
        self.calls: list[int] = []
        monkeypatch.setattr(grammar_masks, "compute_masks", self)

    def __call__(self, matchers: Sequence[GrammarMatcher], executor: Any) -> None:
        assert self.block_began.wait(timeout=20), "the block waits for the masks"
        self.calls.append(len(matchers))
        compute_masks(matchers, executor)
        self.ended.set()


def test_all_rows_are_computed_in_one_call_while_the_block_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    watched, masks = Watched(monkeypatch), GrammarMasks()
    rows = [row_of("ab"), row_of("free", is_held=False), row_of("cd1"), row_of("")]
    with masks.computed_beside(rows):
        watched.block_began.set()
        assert watched.ended.wait(timeout=20), "nothing was computed beside the block"
    assert watched.calls == [3]
    monkeypatch.setattr(GrammarMatcher, "_check", None)  # would fail if a mask was computed now
    assert [banned_of(rows[index]) for index in (0, 2, 3)] == [BANNED[text] for text in ("ab", "cd1", "")]


def test_without_a_grammar_no_thread_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    watched, masks, before = Watched(monkeypatch), GrammarMasks(), set(threading.enumerate())
    with masks.computed_beside([row_of("free", is_held=False)]):
        pass
    assert watched.calls == []
    assert not set(threading.enumerate()) - before


@pytest.mark.parametrize(
    ("before", "kept", "after"),
    [("", 0, "ab"), ("ab1", 3, "ab12"), ("ab1x", 3, "ab12"), ("ab12x", 2, "ab"), ("ab1", 3, "ab1")],
    ids=["begins", "goes on", "goes another way", "drops", "stays"],
)
def test_a_mask_of_an_older_text_is_not_used(before: str, kept: int, after: str) -> None:
    row, masks = row_of(before), GrammarMasks()
    with masks.computed_beside([row]):
        pass
    token_ids: Any = row.token_ids
    del token_ids[kept:]
    assert banned_of(row) == banned_after(after[:kept])
    with masks.computed_beside([row]):
        pass
    token_ids += after[kept:].encode()
    assert banned_of(row) == banned_after(after)


@pytest.mark.parametrize("fails", [False, True])
def test_no_work_outlives_the_block(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    release, ended = threading.Event(), threading.Event()

    def compute(matchers: Sequence[GrammarMatcher], executor: Any) -> None:
        release.wait(timeout=60)
        compute_masks(matchers, executor)
        threading.Event().wait(0.05)
        ended.set()

    monkeypatch.setattr(grammar_masks, "compute_masks", compute)
    row, masks = row_of("ab"), GrammarMasks()
    try:
        with masks.computed_beside([row]):
            release.set()
            if fails:
                raise RuntimeError("the forward pass failed")
    except RuntimeError:
        assert fails
    assert ended.is_set()
    assert banned_of(row) == BANNED["ab"]


def test_a_failed_computation_is_left_to_each_row(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def compute(matchers: Sequence[GrammarMatcher], executor: Any) -> None:
        raise RuntimeError("no thread can be started")

    monkeypatch.setattr(grammar_masks, "compute_masks", compute)
    row, masks = row_of("ab"), GrammarMasks()
    with masks.computed_beside([row]):
        pass
    assert "no thread can be started" in caplog.text
    assert banned_of(row) == BANNED["ab"]


@pytest.mark.parametrize("text", ["b", "a"], ids=["in following the text", "in computing the mask"])
def test_a_grammar_that_fails_does_so_for_its_own_row(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_compiler, "_STEP_LEXER_FUEL", 100)
    compiler.cache_clear()  # copies of a grammar share what its lexer has become
    broken, sound, masks = row_of(text, "broken", pattern=COMPLEX), row_of("ab", "sound"), GrammarMasks()
    with masks.computed_beside([broken, sound]):
        pass
    for _ in range(2):
        with pytest.raises(LogitsError, match="broken"):
            broken.banned()
    assert banned_of(sound) == BANNED["ab"]


def test_the_thread_ends_with_its_owner() -> None:
    masks, before = GrammarMasks(), set(threading.enumerate())
    with masks.computed_beside([row_of("ab")]):
        pass
    (thread,) = set(threading.enumerate()) - before
    del masks
    gc.collect()
    thread.join(timeout=60)
    assert not thread.is_alive()
