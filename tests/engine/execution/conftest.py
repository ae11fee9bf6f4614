"""What tests of computed steps share."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread for each step: several would wait for one another where other tests hold the cores."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
