"""What the guide is trained on takes seconds to read."""

from __future__ import annotations

import pytest

from models.guide.topics import GuideData, load


@pytest.fixture(scope="session")
def data() -> GuideData:
    """Not to be changed."""
    return load()
