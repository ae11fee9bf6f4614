"""Property tests here have no deadline, and tiny models one thread: a busy machine is not a defect."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings

from engine.execution.native import checked, verified

torch.set_num_threads(1)  # several would mostly wait for one another, and for whatever else runs

settings.register_profile("engine", deadline=None, max_examples=60)
settings.load_profile("engine")


@pytest.fixture(scope="session", autouse=True)
def no_records() -> Iterator[None]:
    """Checks every model each time: what an earlier test or run found out about it does not count."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verified, "read_record", lambda _path: None)
        patch.setattr(verified, "write_record", lambda _path, _record: None)
        patch.setattr(checked.CheckedModel, "_read", lambda _model: None)
        patch.setattr(checked.CheckedModel, "remember", lambda _model, _weights: None)
        yield
