"""Property tests here have no deadline, and tiny models one thread: a busy machine is not a defect."""

from __future__ import annotations

import torch
from hypothesis import settings

torch.set_num_threads(1)  # several would mostly wait for one another, and for whatever else runs

settings.register_profile("engine", deadline=None, max_examples=60)
settings.load_profile("engine")
