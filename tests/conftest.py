"""How processes share the tests (``make test`` starts two): all of the browser's on one, others file by file."""

from __future__ import annotations

from pathlib import Path

import pytest

E2E = Path(__file__).parent / "e2e"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        group = "browser" if E2E in item.path.parents else item.path.stem
        item.add_marker(pytest.mark.xdist_group(group))
