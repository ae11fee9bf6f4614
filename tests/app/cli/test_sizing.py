"""``deskmate doctor --size``: the arithmetic, and the sentences for what cannot be sized up."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from safetensors import safe_open

from app.cli.main import main
from engine import model_size
from testing.models import FAMILIES

ROOT = Path(__file__).parents[3]
QWEN3_8B = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": False,
    "sliding_window": None,
    "use_sliding_window": False,
}


def write(folder: Path, config: object) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def small(family: str, **values: Any) -> dict[str, Any]:
    """A config of that family with two layers."""
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    shape |= {"num_key_value_heads": 2, "head_dim": 16, "vocab_size": 320, "max_position_embeddings": 512}
    return {"model_type": FAMILIES[family].model_type, **shape, **FAMILIES[family].config, **values}


def test_the_example_in_the_docs_is_what_the_command_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "Qwen" / "Qwen3-8B", QWEN3_8B)
    monkeypatch.chdir(tmp_path)
    docs = (ROOT / "docs" / "SCALING.md").read_text(encoding="utf-8")
    example = re.search(r"<!-- begin example -->\n```\n\$ deskmate (.*)\n([^`]*)```\n<!-- end example -->", docs)
    assert example is not None
    with pytest.raises(SystemExit):
        main([*example[1].split()])
    assert capsys.readouterr().out == example[2]


def test_the_numbers_in_the_docs_are_those_that_were_measured() -> None:
    docs = (ROOT / "docs" / "SCALING.md").read_text(encoding="utf-8")

    def measured(name: str) -> Any:
        return json.loads((ROOT / "benchmarks" / "results" / f"2026-11-21-{name}.json").read_text())

    rates = {
        (row["model"], row["work"]): f"{median(each['total_rate'] for each in row['deskmate']):.0f}"
        for row in measured("engine_vs_transformers")["rows"]
    }
    assert f"eight chats at once | {rates['guide', '8 chats']} tokens per second" in docs
    assert f"| {rates['S', '1 chat']} and {rates['S', '8 chats']} tokens per second" in docs
    assert f"`R` = {rates['S', '8 chats']}" in docs
    saving = measured("persistence")["databases"]["sqlite"]["64 replies"]
    assert f"{saving['tokens_per_s']['turns, saved']:,.0f} tokens per second" in docs
    assert f"saving takes {saving['share_taken_by_saving']:.1%}".replace("%", " %") in docs
    queries = measured("history")["databases"]["sqlite"]["all"]["queries"]
    page, search = (queries[name]["p50_ms"] for name in ("first page of conversations", "search, common word"))
    assert f"a page of conversations in {page:.0f} ms, a search in {search:.0f} ms" in docs


def test_the_worked_example_by_hand(tmp_path: Path) -> None:
    size = model_size(write(tmp_path / "model", QWEN3_8B))
    assert size.cache_per_token == 36 * 2 * 8 * 128 * 2 == 147_456
    assert size.cache(8192) == 8192 * 147_456
    assert size.parameters == 8_190_735_360  # as the hub has it
    ends = 2 * 151_936 * 4096
    assert size.weights("bf16") == 2 * size.parameters
    assert size.weights("int8") == size.quantizable + 2 * (size.parameters - size.quantizable)
    assert 0 < size.parameters - size.quantizable - ends < 1_000_000  # norms


def test_the_model_in_the_box_has_as_many_weights_as_its_file() -> None:
    size = model_size(str(ROOT / "models" / "guide"))
    with safe_open(ROOT / "models" / "guide" / "model.safetensors", "pt") as weights:
        stored = sum(weights.get_tensor(name).numel() for name in weights.keys())  # noqa: SIM118
    assert size.parameters == stored
    assert size.cache_per_token == 4 * 2 * 2 * 64 * 2


@pytest.mark.parametrize(
    ("family", "context", "rows"),
    [
        ("llama", 100, 2 * 112),  # whole blocks of 16
        ("mistral-window", 100, 2 * 16),
        ("mistral-window", 10, 2 * 16),
        ("gemma3", 100, 16 + 112),
        ("mixtral", 100, 2 * 112),
    ],
)
def test_windows_keep_less(tmp_path: Path, family: str, context: int, rows: int) -> None:
    size = model_size(write(tmp_path / "model", small(family)))
    assert size.cache(context) == rows * 2 * 2 * 16 * 2


def test_experts_are_weights_too(tmp_path: Path) -> None:
    size = model_size(write(tmp_path / "model", small("mixtral")))
    experts = 2 * 4 * 3 * 64 * 128
    assert size.parameters > experts
    assert size.quantizable > experts


@pytest.mark.parametrize(
    ("config", "options", "said"),
    [
        (None, [], "has no config.json"),
        ("{oops", [], "cannot be read"),
        ([1], [], "names no model_type"),
        ({"hidden_size": 3}, [], "names no model_type"),
        ({"model_type": "made_up"}, [], "made_up"),
        ({"model_type": "llama", "hidden_size": "many"}, [], "hidden_size"),
        ({"model_type": "t5"}, [], "encoder-decoder"),
        ({"model_type": "deepseek_v3", "kv_lora_rank": 512}, [], "multi-head latent attention"),
        ({"model_type": "mamba"}, [], "attention"),
        (QWEN3_8B, ["--context", "100000"], "40,960 tokens"),
    ],
)
def test_what_cannot_be_sized_up_gets_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], config: object, options: list[str], said: str
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    if config is not None:
        (folder / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    with pytest.raises(SystemExit) as ended:
        main(["doctor", "--size", str(folder), *options])
    shown = capsys.readouterr()
    assert ended.value.code == 2
    assert said in shown.err
    assert shown.err.startswith("deskmate: ")
    assert "Traceback" not in shown.err
    assert shown.out == ""


@pytest.mark.parametrize("name", ["Nobody/Nothing", "no such folder", "../x/y/z"])
def test_a_model_that_is_not_here(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["doctor", "--size", name])
    assert "neither a folder nor a model in the local cache" in capsys.readouterr().err
