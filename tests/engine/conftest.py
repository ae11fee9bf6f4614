"""Property tests here have no deadline: a busy machine is not a defect."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("engine", deadline=None, max_examples=60)
settings.load_profile("engine")
