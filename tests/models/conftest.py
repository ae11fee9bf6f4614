"""What the guide is trained on takes seconds to read; small models need one thread, as in tests/engine."""

from __future__ import annotations

import pytest
import torch

from models.guide.topics import GuideData, load

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def data() -> GuideData:
    """Not to be changed."""
    return load()
