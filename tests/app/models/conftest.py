"""A package index with a model in it, and a recommended list that names it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from testing.package_index import PackageIndex


@pytest.fixture
def index() -> Iterator[PackageIndex]:
    with PackageIndex().running() as running, pytest.MonkeyPatch.context() as patch:
        for variable in ("UV_DEFAULT_INDEX", "UV_INDEX_URL"):
            patch.delenv(variable, raising=False)
        patch.setenv("PIP_INDEX_URL", running.url)
        yield running
