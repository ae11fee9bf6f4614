"""Chunks are encoded in windows of whole sentences, each under its headings."""

from __future__ import annotations

import numpy as np

from app.knowledge.vectors import windows_of_chunks, windows_to_bytes
from app.knowledge.windows import MAX_CHARS, MAX_SENTENCE_CHARS, windows_of


def test_short_sentences_share_a_window_and_long_ones_do_not() -> None:
    long = "word " * (MAX_CHARS // 5)
    assert windows_of("Policy", f"One. Two.\n{long}. Three.") == [
        "Policy: One. Two.",
        f"Policy: {long.strip()} ." if long.endswith(" .") else f"Policy: {long}.",
        "Policy: Three.",
    ]


def test_nothing_is_lost_and_no_window_is_too_long() -> None:
    text = "x" * 5000 + "漢字。" * 400
    windows = [one.removeprefix("P: ") for one in windows_of("P", text)]
    assert "".join(windows).replace(" ", "") == text
    assert max(map(len, windows)) <= MAX_SENTENCE_CHARS


def test_a_chunk_without_words_is_its_place() -> None:
    assert windows_of("Policy > Refunds", " \n") == ["Policy > Refunds"]


def test_stored_windows_keep_their_directions() -> None:
    rows = np.random.default_rng(0).normal(size=(3, 64)).astype(np.float32)
    stored = windows_to_bytes(rows)
    broken = {"none": b"", "other": b"\x01" * 65}  # of no windows, and of another number of dimensions
    ids, starts, read = windows_of_chunks({"none": b""} | {"two": stored[:128]} | broken | {"one": stored[128:]}, 64)
    assert (ids, starts.tolist(), read.shape) == (["two", "one"], [0, 2], (3, 64))
    cosines = (read * rows).sum(axis=1) / np.linalg.norm(rows, axis=1)
    assert cosines.min() > 0.999
    ids, starts, read = windows_of_chunks(broken, 64)
    assert (ids, len(starts), len(read)) == ([], 0, 0)
