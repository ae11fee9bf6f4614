"""What is said of the stages of a long start."""

from __future__ import annotations

import time

import pytest

from app.cli.console import StageProgress


def test_a_log_hears_of_each_stage_once_and_again_where_it_takes_long(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with StageProgress() as progress:
        for second in range(26):
            now = 100.0 + second
            progress("Downloading somebody/model", second / 50)
        progress("Loading weights", 0.0)
        progress("Loading weights", 1.0)
        progress.stop()
        now += 100.0
        progress("Loading weights", 0.5)  # another model, while the server runs
    assert capsys.readouterr().err.splitlines() == [
        "Downloading somebody/model...",
        "Downloading somebody/model: 20%",
        "Downloading somebody/model: 40%",
        "Loading weights...",
    ]
