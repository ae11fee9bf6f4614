"""The script for machines with a GPU runs, goes on where it was, and says what failed: here without a GPU."""

from __future__ import annotations

import json
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu_check import __main__ as script
from benchmarks.gpu_check import agreement, speed
from benchmarks.gpu_check.check import Results, Stage, StageContext
from benchmarks.gpu_check.workload import NEW_TOKENS, requests
from benchmarks.overlap import idle_share
from engine.execution.attention.selection import KERNELS


@pytest.mark.full
@pytest.mark.timeout(600)
def test_every_stage_runs(tmp_path: Path) -> None:
    output = tmp_path / "result.json"
    asked = ["--rehearse", "--output", str(output), "--folder", str(tmp_path / "models")]
    assert script.main(asked) == 0
    stages = json.loads(output.read_text())["stages"]
    assert stages.keys() == {stage.name for stage in script.STAGES}
    assert all(stage["done"] for stage in stages.values())
    assert stages["agreement"]["parts"]["attention flash3"]["not_here"] == "it runs on cuda, not on cpu"
    assert stages["agreement"]["parts"]["greedy llama"]["tokens"] > 0
    assert stages["llama-8b"]["parts"]["one chat, bf16"]["share_of_bandwidth"] > 0
    eight_bits = stages["eight-bits"]["parts"]
    assert eight_bits["fp8"]["not_here"].startswith("quantization=fp8 runs on GPUs only")
    assert eight_bits["int8"]["decode_against_bf16"] > 0
    assert eight_bits["perplexity of the guide"]["perplexity"]["bfloat16, none"] > 1
    assert stages["workload"]["parts"]["transformers, continuous batching"]["deskmate_against_it"] > 0
    assert stages["idle"]["parts"]["128 chats"]["chats"] == 4
    assert stages["beside-generate"]["parts"]["1, 8 and 64 chats"]["ratio"].keys() == {"1", "4"}


def test_a_part_that_fails_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(agreement.MAX_RELATIVE_ERROR, torch.bfloat16, 0.0)
    output = tmp_path / "result.json"

    def some(check: StageContext) -> None:
        for kernel in KERNELS[-2:]:
            check.part(kernel.name, partial(agreement.attention_kernel, check, kernel))
        check.part("last", lambda: {"number": 1})

    monkeypatch.setattr(script, "STAGES", (Stage("some", 1, "", some),))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert script.main(["--rehearse", "--output", str(output), "--folder", str(tmp_path)]) == 1
    parts = json.loads(output.read_text())["stages"]["some"]["parts"]
    assert [part["ok"] for part in parts.values()] == [False, False, True]


def test_a_call_goes_on_where_the_last_one_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stage that dies or hangs is told and done again; what does not fit into the minutes waits."""
    output = tmp_path / "result.json"
    started: list[str] = []
    ends: dict[str, Any] = {"one": 0, "two": -11, "three": subprocess.TimeoutExpired("", 1)}

    def process(command: list[str], **_options: Any) -> Any:
        name = command[command.index("--stage") + 1]
        started.append(name)
        if ends[name] == 0:
            script.main(command[command.index("--stage") :])
        if isinstance(ends[name], Exception):
            raise ends[name]
        return subprocess.CompletedProcess(command, ends[name])

    stages = tuple(
        Stage(name, minutes, "", lambda check: print(check.part("part", dict)))
        for name, minutes in (("one", 2), ("two", 2), ("three", 2), ("four", 9))
    )
    monkeypatch.setattr(script, "STAGES", stages)
    monkeypatch.setattr(script, "about", lambda _device: {})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(subprocess, "run", process)
    monkeypatch.setattr("benchmarks.gpu_check.check.torch.cuda.empty_cache", lambda: None)
    call = ["--minutes", "8", "--output", str(output), "--folder", str(tmp_path)]
    assert script.main(call) == 1
    assert started == ["one", "two", "three"]
    found = json.loads(output.read_text())["stages"]
    assert found["one"] == {"parts": {"part": {"ok": True, "seconds": 0.0}}, "done": True}
    assert found["two"]["parts"]["all of it"]["error"] == "its process ended with -11"
    assert found["three"]["parts"]["all of it"]["error"] == "it was not done after 2 minutes"
    ends = dict.fromkeys(ends | {"four": 0}, 0)
    assert script.main([*call, "--minutes", "20"]) == 0
    assert started[3:] == ["two", "three", "four"]
    assert "all of it" not in json.loads(output.read_text())["stages"]["two"]["parts"]


def test_only_a_rehearsal_leaves_out_what_a_machine_lacks(tmp_path: Path) -> None:
    """On a GPU, products that cannot be had are a failure."""

    def check(device: str) -> StageContext:
        return StageContext(device, True, tmp_path, "eight-bits", Results(tmp_path / "result.json"))

    assert speed.not_here(check("cpu"), "int8") is None
    assert speed.not_here(check("cpu"), "fp8") is not None
    assert speed.not_here(check("cuda"), "fp8") is None


def test_without_a_gpu_it_says_what_to_do(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit):
        script.main([])
    assert "--rehearse" in capsys.readouterr().err
    assert script.main(["--list"]) == 0
    assert capsys.readouterr().out.count("minutes at most") == len(script.STAGES)


def test_the_workload_is_nano_vllms() -> None:
    chats = requests(rehearse=False)
    assert len(chats) == 256
    assert sum(chat.new_tokens for chat in chats) == NEW_TOKENS
    assert sum(len(chat.prompt) for chat in chats) == 142_827


def test_time_in_which_nothing_runs() -> None:
    assert idle_share([(0.0, 10.0)]) == 0
    assert idle_share([(6.0, 8.0), (0.0, 4.0), (1.0, 2.0), (3.0, 5.0)]) == pytest.approx(1 / 8)
