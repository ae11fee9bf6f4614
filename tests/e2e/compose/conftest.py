"""One desk for all tests here, on a Docker engine where there is one."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.compose.desk import ComposeProject


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith("tests/e2e/compose/"):
            item.add_marker(pytest.mark.compose)
            item.add_marker(pytest.mark.timeout(3600))


def _missing() -> str | None:
    """Why there is nothing to run a desk with."""
    for command in (("docker", "info"), ("docker", "compose", "version")):
        try:
            done = subprocess.run(command, capture_output=True, timeout=60)
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"{' '.join(command)}: {error}"
        if done.returncode:
            return f"{' '.join(command)}: {done.stderr.decode(errors='replace').strip().splitlines()[-1]}"
    return None


@pytest.fixture(scope="package")
def new_desk(tmp_path_factory: pytest.TempPathFactory, endless_model: Path) -> ComposeProject:
    """The folder as it was copied: no secrets yet, nothing built."""
    if missing := _missing():
        pytest.skip(f"no Docker engine with Compose here ({missing})")
    for file in endless_model.iterdir():
        file.chmod(0o644)  # the application's user in the container is another one
    return ComposeProject(tmp_path_factory.mktemp("desk"), endless_model)


@pytest.fixture(scope="package")
def desk(new_desk: ComposeProject) -> Iterator[ComposeProject]:
    """Built from its folder and up for the first time."""
    new_desk.set_up()
    new_desk.build()
    try:
        new_desk.up()
        yield new_desk
    finally:
        new_desk.destroy()
