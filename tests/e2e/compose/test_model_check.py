"""A model that does not fit into the container's memory keeps the application from starting."""

from __future__ import annotations

import re

from tests.e2e.compose.desk import ComposeProject


def test_a_model_that_fits_is_checked_before_the_application_starts(desk: ComposeProject) -> None:
    assert desk.inspect("model-check")["State"]["ExitCode"] == 0
    assert "fits into memory" in desk.compose("logs", "--no-color", "model-check")


def test_what_does_not_fit_is_said_once_with_the_numbers(desk: ComposeProject) -> None:
    with desk.changed(ENGINE_KV_CACHE_MEMORY=64, DESKMATE_MEMORY="3g"):
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


def test_the_line_that_it_names_is_enough(desk: ComposeProject) -> None:
    """One line for the model, one for the memory: what the check says is put into ``.env`` as it stands."""
    with desk.changed(ENGINE_KV_CACHE_MEMORY=2, DESKMATE_MEMORY="1g"):
        assert desk.try_compose("run", "--rm", "-T", "model-check").returncode == 2
        said = desk.try_compose("run", "--rm", "-T", "model-check").stderr.decode()
        named = re.search(r"put (DESKMATE_MEMORY)=(\d+g) into \.env", " ".join(said.split()))
        assert named, said
        desk.configure(**{named[1]: named[2]})
        desk.up()
        assert desk.inspect("app")["HostConfig"]["Memory"] == int(named[2][:-1]) * 1024**3
