"""``deskmate quantize`` writes a model that serves, reports what it costs, and fails with one sentence."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from app.cli.main import main
from testing.models import make_model


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("models") / "llama", hidden=128, std=0.1)


@pytest.fixture(autouse=True)
def without_a_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINE_NATIVE", "false")


def run(*arguments: str) -> int:
    try:
        main(["quantize", *arguments])
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def test_perplexity_is_measured_before_and_after(
    llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text").write_text("The quick brown fox jumps over the lazy dog. " * 60)
    out = tmp_path / "out"
    assert run(str(llama), "--to", "int8", "--out", str(out), "--text", str(tmp_path / "text")) == 0
    report = capsys.readouterr().out
    assert re.search(rf"{out} holds {llama} in int8: \d+\.\d MB instead of \d+\.\d MB, 14 weights", report)
    found = re.search(r"Perplexity on ([\d,]+) tokens: ([\d.]+) before, ([\d.]+) after", report)
    assert found is not None
    before, after = float(found[2]), float(found[3])
    assert before != after
    assert abs(before - after) < 0.2 * before


def test_without_perplexity_the_model_is_not_run(
    llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(str(llama), "--to", "int4", "--out", str(tmp_path / "out"), "--no-perplexity") == 0
    report = capsys.readouterr().out
    assert "Perplexity" not in report
    assert "Not quantized: lm_head.weight" in report
    assert f"deskmate serve --model {tmp_path / 'out'}" in report


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["{llama}", "--to", "int4", "--out", "{folder}"], "exists already"),
        (["{folder}/nowhere", "--to", "int4", "--out", "{folder}/out"], "There is no model"),
        (["{llama}", "--to", "int4", "--out", "{folder}/out", "--text", "{folder}/nowhere"], "cannot be read"),
        (["{llama}", "--to", "int4", "--out", "{folder}/out", "--text", "{folder}/short"], "too short"),
        (["{llama}", "--to", "int3", "--out", "{folder}/out"], "int3"),
    ],
)
def test_errors_are_one_sentence(
    llama: Path, tmp_path: Path, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "short").write_text("short")
    assert run(*(each.format(llama=llama, folder=tmp_path) for each in arguments)) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
