"""A model that does not fit into the container's memory keeps the application from starting."""

from __future__ import annotations

import re

from tests.e2e.compose.desk import ComposeProject


def test_a_model_that_fits_is_checked_before_the_application_starts(desk: ComposeProject) -> None:
    assert desk.inspect("model-check")["State"]["ExitCode"] == 0
    assert "fits into memory" in desk.compose("logs", "--no-color", "model-check")


def test_what_does_not_fit_is_said_once_with_the_numbers(desk: ComposeProject) -> None:
    file = desk.folder / ".env"
    before = file.read_text(encoding="utf-8")
    try:
        desk.configure(ENGINE_KV_CACHE_MEMORY=64, DESKMATE_MEMORY="3g")
        refused = desk.try_compose("up", "--detach", "--wait")
        assert refused.returncode
        check, app = desk.inspect("model-check"), desk.inspect("app")
        assert check["State"]["ExitCode"] == 2
        assert check["RestartCount"] == 0
        assert app["State"]["Status"] == "created"
        log = desk.compose("logs", "--no-color", "model-check")
        assert "does not fit into memory" in log
        assert "in a container that may use 3.22 GB" in log
        assert re.search(r"put DESKMATE_MEMORY=\d+g into \.env|take a machine with more memory", log)
    finally:
        file.write_text(before, encoding="utf-8")
        desk.up()
