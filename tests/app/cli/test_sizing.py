"""``deskmate doctor --size``: the arithmetic, and the sentences for what cannot be sized up."""

from __future__ import annotations

import json
import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from safetensors import safe_open

from app.cli.main import main
from engine import SERVER_WEIGHT_FORMATS, WEIGHT_FORMATS, EngineSettings, ModelLoadError, model_size
from engine.execution.attention.int8_cache import int8_bytes
from engine.model import quantization
from engine.scheduling.cache_layout import LayerShape
from testing.gguf_files import make_gguf
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
    docs = (ROOT / "docs" / "scaling.md").read_text(encoding="utf-8")
    example = re.search(r"<!-- begin example -->\n```\n\$ deskmate (.*)\n([^`]*)```\n<!-- end example -->", docs)
    assert example is not None
    with pytest.raises(SystemExit):
        main([*example[1].split()])
    assert capsys.readouterr().out == example[2]


def results(name: str) -> Any:
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())


def test_the_numbers_in_the_docs_are_those_that_were_measured() -> None:
    docs = (ROOT / "docs" / "scaling.md").read_text(encoding="utf-8")

    def rate(name: str, model: str, work: str) -> float:
        rows = [row for row in results(name)["rows"] if row["engine"] == "deskmate"]
        figures = next(row["figures"] for row in rows if (row["model"], row["work"]) == (model, work))
        return float(figures["decode" if work == "1 chat" else "throughput"])

    small, amx = "2026-11-22-bench-small", "2026-11-27-bench-amx-bursts"
    product = results("2026-11-28-product-sqlite")["medians"]["the whole product"]["tokens_per_s"]
    assert f"of the whole product | {product:,.0f} |" in docs
    assert f"at once | {rate(small, 'guide', '1 chat'):,.0f}; {rate(small, 'guide', '8 chats'):,.0f} |" in docs
    assert f"at once | {rate(small, 'S', '1 chat'):.0f}; {rate(small, 'S', '8 chats'):.0f} |" in docs
    assert f"at once | {rate(amx, 'M', '1 chat'):.1f}; {rate(amx, 'M', '8 chats'):.1f} |" in docs
    used = round(rate(small, "S", "8 chats"))
    assert f"`R` = {used}" in docs
    assert f"1,000 / (3,600 × {used} × 0.25) = {1000 / (3600 * used * 0.25):.4f}" in docs
    saving = results("2026-11-21-persistence")["databases"]["sqlite"]["64 replies"]
    assert f"saving takes {saving['share_taken_by_saving']:.1%}".replace("%", " %") in docs
    queries = results("2026-11-21-history")["databases"]["sqlite"]["all"]["queries"]
    assert f"two million messages {queries['search, common word']['p50_ms']:.0f} ms" in docs


def test_the_worked_example_by_hand(tmp_path: Path) -> None:
    size = model_size(write(tmp_path / "model", QWEN3_8B))
    assert size.cache_per_token() == 36 * 2 * 8 * 128 * 2 == 147_456
    assert size.cache(8192) == 8192 * 147_456
    assert size.parameters == 8_190_735_360  # as the hub has it
    end = 151_936 * 4096
    norms = size.parameters - size.linear - 2 * end
    assert (size.output, size.experts, size.is_tied) == (end, 0, False)
    assert 0 < norms < 1_000_000
    weights = {name: size.weights(number_format) for name, number_format in WEIGHT_FORMATS.items()}
    assert weights == {
        "bf16": 2 * size.parameters,
        "int8": size.linear + end + 2 * (end + norms),
        "fp8": size.linear + 2 * (2 * end + norms),
        "int4": size.linear * 5 // 8 + end + 2 * (end + norms),
    }
    assert size.weights(SERVER_WEIGHT_FORMATS["8 bits"]) == size.linear + 2 * (2 * end + norms)


def test_an_output_layer_in_fewer_bits_is_another_copy_of_the_embeddings_that_it_shares(tmp_path: Path) -> None:
    tied = model_size(write(tmp_path / "model", {**QWEN3_8B, "tie_word_embeddings": True}))
    assert tied.is_tied
    assert tied.weights(WEIGHT_FORMATS["int8"]) == tied.linear + tied.output + 2 * (tied.parameters - tied.linear)
    assert tied.weights(WEIGHT_FORMATS["bf16"]) == 2 * tied.parameters


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_report_offers_the_formats_that_the_engine_loads(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With everything that a machine can lack there, what is refused is refused for the device alone."""
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device=None: (9, 0))
    monkeypatch.setattr(quantization, "triton_unavailable_reason", lambda _device: None)
    choices = get_args(EngineSettings.model_fields["quantization"].annotation)
    names = [name for name in choices if name not in ("none", "auto")]
    assert {*names, "bf16"} == set(WEIGHT_FORMATS)
    for name in names:
        expected = nullcontext() if device in WEIGHT_FORMATS[name].devices else pytest.raises(ModelLoadError)
        with expected:
            quantization.choose_linears(name, torch.device(device), torch.bfloat16)


def reported(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """The cells under the cards by format: of this engine, and of a model server."""
    with pytest.raises(SystemExit) as ended:
        main(["doctor", "--size", *arguments])
    assert ended.value.code in (0, None)
    tables = capsys.readouterr().out.split("\n\n")[1:3]
    first, second = (
        {cells[0]: cells[4:] for line in table.splitlines()[2:] if (cells := re.split(r"  +", line))}
        for table in tables
    )
    return first, second


def test_the_engine_is_not_said_to_hold_what_it_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = write(tmp_path / "model", QWEN3_8B)
    own, servers = reported(capsys, model, "--context", "8192", "--users", "50")
    assert set(own) == set(WEIGHT_FORMATS)
    assert set(servers) == set(SERVER_WEIGHT_FORMATS)
    assert set(own["int4"]) == {"CPU only"}
    assert not [cell for cells in own.values() for cell in cells if ":" in cell], "the engine uses one card"
    usable = 80 * 0.9 - 2
    held = int((usable * 10**9 - 2 * 8_190_735_360) // (8192 * 147_456))
    assert own["bf16"][2] == f"{held} of 50"
    assert servers["bf16"][2].startswith("2: ")


def test_a_card_must_hold_the_weights_as_they_are_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """23 billion parameters: 46 GB in bf16, of which a card of 48 GB has 41.2, and half of that in 8 bits."""
    model = write(tmp_path / "model", {**QWEN3_8B, "num_hidden_layers": 114})
    own, servers = reported(capsys, model, "--context", "1024", "--users", "1")
    assert own["int8"][1] == own["fp8"][1] == "no"
    assert own["int8"][2] != "no"
    assert servers["8 bits"][1].startswith("1: ")


def test_the_model_in_the_box_has_as_many_weights_as_its_file() -> None:
    size = model_size(str(ROOT / "models" / "guide"))
    with safe_open(ROOT / "models" / "guide" / "model.safetensors", "pt") as weights:
        stored = sum(weights.get_tensor(name).numel() for name in weights.keys())  # noqa: SIM118
    assert size.parameters == stored
    assert size.cache_per_token() == 4 * 2 * 2 * 64 * 2


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
    assert size.experts >= experts
    eight_bits, own = SERVER_WEIGHT_FORMATS["8 bits"], WEIGHT_FORMATS["fp8"]
    assert size.weights(own) - size.weights(eight_bits) == size.experts, "this engine leaves experts in bf16"


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


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            {"quant_method": "awq", "bits": 4, "group_size": 128},
            "AWQ (4 bits, groups of 128); Deskmate serves it as int4.",
        ),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "128 x 128); Deskmate serves it as int8, or fp8"),
        ({"quant_method": "aqlm"}, "quantized with aqlm, which Deskmate does not read"),
    ],
)
def test_a_quantized_checkpoint_is_named(
    fields: dict[str, Any], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = write(tmp_path / "model", small("llama", quantization_config=fields))
    with pytest.raises(SystemExit):
        main(["doctor", "--size", model, "--context", "64"])
    assert words in " ".join(capsys.readouterr().out.split())
    assert model_size(model).parameters == model_size(write(tmp_path / "dense", small("llama"))).parameters


def test_a_gguf_file_has_the_size_of_its_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = make_gguf(tmp_path / "tiny.gguf", "qwen2", "Q8_0", hidden=256, vocab_size=400)
    size = model_size(str(path))
    assert size.name == "tiny"
    assert size.stored_format == "Q8_0"
    assert 0.9 < size.stored_bytes / path.stat().st_size < 1.0
    assert size.stored_bytes < size.weights(WEIGHT_FORMATS["bf16"])
    with pytest.raises(SystemExit) as ended:
        main(["doctor", "--size", str(path), "--context", "512"])
    assert ended.value.code == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    here = [row[0] for row in rows if row and row[0] in ("Q8_0", "bf16", "int8", "int4")]
    assert here == ["Q8_0", "bf16", "bf16"]  # the last is a model server's


def test_a_damaged_gguf_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "damaged.gguf").write_bytes(b"GGUF" + bytes(40))
    with pytest.raises(ModelLoadError, match="version 0"):
        model_size(str(tmp_path / "damaged.gguf"))


def test_an_int8_cache_takes_a_byte_for_each_number_and_its_scales() -> None:
    """As the engine allocates it."""
    size = model_size(str(ROOT / "models" / "guide"))
    shape = LayerShape(num_kv_heads=2, head_dim=64, value_head_dim=64, sliding_window=None)
    assert size.cache_per_token("int8") == 4 * int8_bytes(shape) == 4 * 2 * (64 + 64 + 8)
    assert size.cache(100, "int8") == 112 * size.cache_per_token("int8")


def test_the_report_of_an_int8_cache_is_of_cpus_and_leaves_the_servers_in_bf16(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = write(tmp_path / "model", QWEN3_8B)
    as_ever = reported(capsys, model)
    own, servers = reported(capsys, model, "--kv-cache-dtype", "int8")
    assert servers == as_ever[1]
    assert own == {name: ["CPU only"] * 4 for name in ("bf16", "int8", "int4")}
    with pytest.raises(SystemExit):
        main(["doctor", "--size", model, "--kv-cache-dtype", "int8"])
    assert f"KV cache in int8: {36 * 2 * 8 * (128 + 4) / 1024:.0f} KiB for a token" in capsys.readouterr().out


def test_a_cache_that_no_kernel_reads_is_not_sized(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = write(tmp_path / "model", QWEN3_8B)
    with pytest.raises(SystemExit) as ended:
        main(["doctor", "--size", model, "--kv-cache-dtype", "fp8"])
    assert ended.value.code == 2
    assert "fp8 is not supported" in capsys.readouterr().err
