"""The script for machines with a GPU runs, and says what failed: here on a tiny model, without a GPU."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import gpu_check
from benchmarks.overlap import idle_share


@pytest.mark.full
@pytest.mark.parametrize("broken", [False, True])
def test_every_part_runs_and_one_that_fails_hides_no_other(
    broken: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "result.json"
    monkeypatch.setattr(sys, "argv", ["gpu_check", "--device", "cpu", "--quick", "--output", str(output)])
    if broken:
        monkeypatch.setitem(gpu_check.MOST_ERROR, gpu_check.torch.bfloat16, 0.0)
    with pytest.raises(SystemExit) as ended:
        gpu_check.main()
    assert ended.value.code == int(broken)
    parts = json.loads(output.read_text())["parts"]
    failed = [name for name, part in parts.items() if not part["ok"]]
    assert failed == (["attention cpu", "attention sdpa"] if broken else [])
    assert parts["greedy llama"]["tokens"] > 0
    assert parts["speed"]["ratio"].keys() == {"1 chats, tokens/s", "4 chats, tokens/s"}
    assert parts["overlap"]["chats"] == 4
    assert parts["attention flash3"]["not_here"] == "it runs on cuda, not on cpu"


def test_time_in_which_nothing_runs() -> None:
    assert idle_share([(0.0, 10.0)]) == 0
    assert idle_share([(6.0, 8.0), (0.0, 4.0), (1.0, 2.0), (3.0, 5.0)]) == pytest.approx(1 / 8)
