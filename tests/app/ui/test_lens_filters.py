"""The lens's filters in the browser, run by Node, leave the same distributions as the engine's sampler."""

from __future__ import annotations

import base64
import json
import random
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from app.turns.lens import LensSettings
from engine import SamplingParams
from engine.sampling import cpu
from engine.sampling.inspection import RowInspector
from engine.sampling.sampler import SamplingRow
from engine.text.vocabulary import Vocabulary

SCRIPT = Path(__file__).parents[2] / "web" / "lens_filters.js"
VOCABULARY = 400
REPLY = [7, 3, 3, 9]


class _Names(Vocabulary):
    def __init__(self) -> None:
        pass

    def name(self, token_id: int) -> str:
        return str(token_id)

    def data(self, token_id: int) -> bytes:
        return b""


class _Ban:
    def banned(self, _token_ids: Any, _num_prompt_tokens: int) -> Any:
        return np.array([11, 12, 13])


def random_case(rng: random.Random) -> dict[str, Any]:
    """A row of scores, with ties; what the engine's sampler makes of it; and what the page is sent."""
    params = SamplingParams(
        temperature=rng.choice([0.0, 0.2, 0.7, 1.0, 1.7]),
        top_k=rng.choice([0, 1, 2, 20, 399]),
        top_p=rng.choice([1.0, 0.95, 0.9, 0.5, 0.05]),
        min_p=rng.choice([0.0, 0.02, 0.1, 0.9]),
        typical_p=rng.choice([1.0, 1.0, 0.95, 0.5, 0.1]),
        top_n_sigma=rng.choice([0.0, 0.0, 1.0, 2.5]),
        repetition_penalty=rng.choice([1.0, 1.4]),
        frequency_penalty=rng.choice([0.0, 0.7]),
        presence_penalty=rng.choice([0.0, -0.5]),
        logit_bias=rng.choice([None, {20: 3.0, 21: -6.0}]),
    ).with_defaults(SamplingParams.neutral())
    # Halves that float16 holds exactly, so that ties are ties on both sides; 8 is a random highest logit.
    steps = [rng.choice([-1, -0.5, -0.25]) * rng.randint(0, 40) for _ in range(VOCABULARY)]
    logits = torch.tensor([[8 + step for step in steps]])
    token_ids = [1, *REPLY]
    bans = [_Ban()] if rng.random() < 0.5 else []
    row = SamplingRow("one", params, seed=1, token_ids=token_ids, num_prompt_tokens=1, bans=bans)
    weights = cpu.kept_weights(cpu.adjust(logits, [row])[0], row).astype(np.float64)
    kept = (weights / weights.sum()).tolist()
    (found,) = RowInspector(row, token_ids, _Names(), keeps_rows=True).inspect(logits, [0])
    assert found is not None
    assert found.row is not None
    sent = found.row
    causes = {one.token.token_id: one.removed_by for one in sent.alternatives}
    return {
        "kept": kept,
        "causes": causes,
        "data": base64.b64encode(sent.logits + sent.banned).decode(),
        "row": {
            "vocab_size": VOCABULARY,
            "highest": sent.highest,
            "has_forbidden": bool(sent.banned),
            "counts": sent.counts,
            "bias": sent.bias,
        },
        "settings": {name: getattr(params, name) for name in LensSettings.__slots__},
    }


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node")
def test_the_browser_s_filters_are_the_engine_s() -> None:
    rng = random.Random(30)
    cases = [random_case(rng) for _ in range(60)]
    asked = json.dumps([{name: case[name] for name in ("data", "row", "settings")} for case in cases])
    answer = subprocess.run(["node", SCRIPT], input=asked, capture_output=True, text=True, check=True, timeout=60)
    for case, found in zip(cases, json.loads(answer.stdout), strict=True):
        assert np.abs(np.array(found["shares"]) - case["kept"]).max() < 1e-3, case["settings"]
        assert found["count"] == np.count_nonzero(case["kept"])
        for token, cause in case["causes"].items():
            assert found["removed"][token] == cause, (token, case["settings"])
