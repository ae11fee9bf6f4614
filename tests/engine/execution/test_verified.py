"""A later start takes what an earlier one found out about a model, and never believes it blindly."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from engine import EngineSettings
from engine.execution import load as execution_load
from engine.execution.load import load_model, prepare_model
from engine.execution.native import decoder, eligibility, verified
from engine.execution.native.weights import DecoderWeights
from engine.model import load as model_load
from engine.model.gguf.header import read_header
from engine.model.loaded_model import LoadedModel
from testing.gguf_files import make_gguf
from testing.models import make_model
from testing.native import FORMATS, needs_compiler
from tests.engine.execution.test_load_into_decoder import equal, reply

pytestmark = [needs_compiler, pytest.mark.slow]

READ_RECORD, WRITE_RECORD = verified.read_record, verified.write_record  # before the other tests' fixture
ROOT = Path(__file__).resolve().parents[3]
FORBIDDEN = (
    "transformers.modeling_utils",
    "transformers.models.auto.modeling_auto",
    "transformers.generation.utils",
    "transformers.core_model_loading",
    "torch._dynamo",
    "torch._inductor",
    "torch.distributed.tensor",
    "sympy",
    "pandas",
)
"""Modules that a start needs only if the model was not checked before. Together they take longer than all the rest."""

START = f"""
import sys
import engine.execution.native.decoder as decoder
from engine.execution.native import verified
from pathlib import Path
from engine import EngineSettings
from engine.runtime import model_loading

decoder.MAX_ROWS_WITHOUT_AVX2 = sys.maxsize
verified.cache_folder = lambda: Path(sys.argv[1])
for model in sys.argv[2:]:
    settings = EngineSettings(model=model, device="cpu", dtype="float32", num_kv_blocks=60)
    model_loading.prepare(settings, lambda *_: None)
    model_loading.build_core(model_loading.load(settings, lambda *_: None), settings, lambda *_: None)
    print(*[name for name in {FORBIDDEN!r} if name in sys.modules])
"""


@pytest.fixture(autouse=True)
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder with the records. The decoder runs steps of any number of rows, as it does with AVX2."""
    monkeypatch.setattr(decoder, "MAX_ROWS_WITHOUT_AVX2", sys.maxsize)
    monkeypatch.setattr(verified, "cache_folder", lambda: tmp_path / "records")
    monkeypatch.setattr(verified, "read_record", READ_RECORD)
    monkeypatch.setattr(verified, "write_record", WRITE_RECORD)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    return tmp_path / "records"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return make_model(tmp_path / "model", "qwen3", vocab_size=397, eos=False, config={"attention_bias": True})


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The models that were checked, each time that one was."""
    models: list[str] = []
    whole = model_load.load_checkpoint

    def counted(settings: EngineSettings, *arguments: object) -> LoadedModel:
        models.append(settings.model)
        return whole(settings, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(model_load, "load_checkpoint", counted)
    return models


def load(path: Path, **settings: object) -> LoadedModel:
    chosen = EngineSettings(model=str(path), device="cpu", **{"dtype": "float32", **settings})  # type: ignore[arg-type]
    return load_model(chosen, lambda _stage, _fraction: None)


@pytest.mark.parametrize(("settings", "_largest"), FORMATS)
def test_a_second_start_gives_the_same_model(
    path: Path, checked: list[str], settings: dict[str, str], _largest: float
) -> None:
    first, second = load(path, **settings), load(path, **settings)
    assert len(checked) == 1
    assert second.module is None
    assert equal(first, second)
    for field in ("name", "dtype", "layers", "needs", "max_position_embeddings", "vocab_size", "eos_token_ids"):
        assert getattr(first, field) == getattr(second, field), field
    for field in ("num_parameters", "weight_bytes", "has_unused_adapter", "layer_per_call"):
        assert getattr(first, field) == getattr(second, field), field
    assert first.generation_config.to_dict() == second.generation_config.to_dict()
    assert first.tokenizer.get_vocab() == second.tokenizer.get_vocab()
    messages = [{"role": "user", "content": "Hello, you"}]
    first_ids, second_ids = (one.tokenizer.apply_chat_template(messages)["input_ids"] for one in (first, second))
    assert first_ids == second_ids
    assert prepare_model(EngineSettings(model=str(path), dtype="float32", device="cpu"), print) > 0
    assert reply(first, [5, 6, 7], 10) == reply(second, [5, 6, 7], 10)


@pytest.mark.parametrize("family", ["gpt-oss", "gemma3"])
def test_a_second_start_of_other_structures(tmp_path: Path, checked: list[str], family: str) -> None:
    path = make_model(tmp_path / "other", family, eos=False)
    assert load(path).module is load(path).module is None
    assert len(checked) == 1


@pytest.mark.parametrize(("family", "format_"), [("llama", "Q8_0"), ("llama", "F16"), ("gemma3", "Q4_0")])
def test_a_second_start_from_a_gguf_file(tmp_path: Path, checked: list[str], family: str, format_: str) -> None:
    path = make_gguf(tmp_path / "model.gguf", family, format_)
    first, second = load(path, dtype="auto"), load(path, dtype="auto")
    assert len(checked) == 1
    assert second.module is None
    assert first.file_format == second.file_format is not None
    assert first.name == second.name == "model"
    assert first.generation_config.to_dict() == second.generation_config.to_dict()
    assert first.tokenizer.chat_template == second.tokenizer.chat_template
    assert first.tokenizer.get_vocab() == second.tokenizer.get_vocab()
    assert first.eos_token_ids == second.eos_token_ids
    assert prepare_model(EngineSettings(model=str(path), device="cpu"), print) == second.weight_bytes
    assert reply(first, [5, 6, 7], 10) == reply(second, [5, 6, 7], 10)


def test_a_gguf_file_with_another_header_or_other_weights_is_checked_anew(tmp_path: Path, checked: list[str]) -> None:
    path = make_gguf(tmp_path / "model.gguf", "llama", "F32")
    load(path)
    header = read_header(path)
    content = bytearray(path.read_bytes())
    at = content.index(b"for message in messages")  # in the chat template
    content[at + 4 : at + 11] = b"onesaid"
    path.write_bytes(content)
    load(path)
    assert len(checked) == 2
    weights = header.tensors["blk.1.ffn_down.weight"]
    numbers = np.frombuffer(content, "<f4", weights.nbytes // 4, weights.offset) * 1.01
    content[weights.offset : weights.offset + weights.nbytes] = numbers.astype("<f4").tobytes()
    path.write_bytes(content)
    load(path)
    load(path)
    assert len(checked) == 3


def test_parameters_beside_a_gguf_file_are_read_at_each_start(tmp_path: Path, checked: list[str]) -> None:
    path = make_gguf(tmp_path / "model.gguf", "llama", "Q8_0")
    load(path)
    beside = tmp_path / "model.generation_config.json"
    beside.write_text('{"temperature": 0.25}')
    assert [load(path).generation_config.temperature for _ in range(2)] == [0.25, 0.25]
    beside.unlink()
    assert load(path).generation_config.temperature != 0.25


@pytest.mark.full
def test_a_second_start_imports_no_model_code(path: Path, records: Path) -> None:
    gguf = make_gguf(path.with_name("model.gguf"), "llama", "Q8_0")

    def start() -> list[str]:
        """What was imported by the end of the folder's load, and of the file's."""
        command = [sys.executable, "-c", START, str(records), str(path), str(gguf)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
        return done.stdout.splitlines()

    assert all("transformers.modeling_utils" in imported for imported in start())
    assert start() == ["", ""]


def alter(path: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(path / "model.safetensors")
    change(tensors)
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})


def test_other_weights_under_the_same_names_are_checked_anew(path: Path, checked: list[str]) -> None:
    load(path)
    alter(path, lambda tensors: tensors["model.layers.1.mlp.down_proj.weight"][3].mul_(1.01))
    load(path)
    load(path)
    assert len(checked) == 2


@pytest.mark.parametrize("changed", ["config", "template", "format", "library", "code"])
def test_whatever_a_check_depends_on_makes_it_stale(
    path: Path, checked: list[str], changed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(path)
    settings: dict[str, object] = {}
    match changed:
        case "config":
            config = json.loads((path / "config.json").read_text())
            (path / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 1e-3}))
        case "template":
            template = path / "chat_template.jinja"
            template.write_text(template.read_text() + "{# another #}")
        case "format":
            settings = {"dtype": "bfloat16"}
        case "library":
            monkeypatch.setattr(verified, "_version", lambda _package: "another")
        case "code":
            (tmp_path / "code").mkdir()
            (tmp_path / "code" / "another.py").touch()
            (tmp_path / "code" / "another.py").write_text("changed = True")
            monkeypatch.setattr(verified, "_CODE", (tmp_path / "code",))
    load(path, **settings)
    assert len(checked) == 2


def test_a_dtype_that_gave_way_to_the_number_format_is_not_one_that_is_asked_for(
    path: Path, checked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (execution_load, model_load):  # what a processor with AVX2 only is given
        monkeypatch.setattr(module, "choose_dtype", lambda _choice, _device: torch.float32)
    assert load(path, quantization="int4", dtype="auto").dtype is torch.bfloat16
    asked_for = load(path, quantization="int4", dtype="float32")
    assert (asked_for.decoder, asked_for.dtype) == (None, torch.float32)
    assert len(checked) == 2


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda _text: "",
        lambda _text: "[]",
        lambda _text: "null",
        lambda _text: '"text"',
        lambda _text: "{}",
        lambda text: text.replace('"Structure"', '"dict"'),
        lambda text: text.replace('"head_dim": 16', '"head_dim": "x"'),
        lambda text: text.replace('"num_heads": 4', '"num_heads": 2'),
        lambda text: text.replace("model.layers.1.mlp.up_proj", "model.layers.1.mlp.none"),
        lambda text: text.replace("tokenization", "no_such_module"),
    ],
)
def test_a_damaged_record_is_ignored(
    path: Path, records: Path, checked: list[str], damage: Callable[[str], str], caplog: pytest.LogCaptureFixture
) -> None:
    first = load(path)
    (file,) = records.glob("verified-*.json")
    text = file.read_text()
    file.write_text(damage(text))
    assert file.read_text() != text
    with caplog.at_level(logging.INFO, logger="engine"):
        assert equal(load(path), first)
    assert len(checked) == 2
    assert "ignored" in caplog.text


def test_a_fault_of_the_decoder_is_seen_at_a_later_start(
    path: Path, checked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    load(path)
    pack = DecoderWeights.pack

    def wrong(self: DecoderWeights, group: object, served: object = None) -> None:
        pack(self, group, served)  # type: ignore[arg-type]
        if group.names == ("model.layers.1.self_attn.o_proj",):  # type: ignore[attr-defined]
            self._packed[group].weight[0, 0] = 0  # type: ignore[index]

    monkeypatch.setattr(DecoderWeights, "pack", wrong)
    assert load(path).decoder is None  # the checks see it, too
    assert len(checked) == 2


def test_where_no_record_can_be_written(
    path: Path, records: Path, checked: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    records.touch()  # a file where the folder should be: even root cannot write there
    with caplog.at_level(logging.INFO, logger="engine"):
        assert load(path).module is None
        assert load(path).module is None
    assert len(checked) == 2
    assert "cannot be written" in caplog.text


def test_several_starts_at_once_write_whole_records(path: Path, records: Path) -> None:
    load(path)
    (file,) = records.glob("verified-*.json")
    record = verified.read_record(file)
    assert record is not None

    def write_and_read(_number: int) -> bool:
        verified.write_record(file, record)
        return verified.read_record(file) is not None

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(write_and_read, range(80)))
    assert [one.name for one in records.iterdir()] == [file.name]


def test_old_records_are_deleted(path: Path, records: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verified, "_MAX_RECORDS", 2)
    for number in range(4):
        config = json.loads((path / "config.json").read_text())
        (path / "config.json").write_text(json.dumps(config | {"rope_theta": 10_000.0 + number}))
        load(path)
    assert len(list(records.glob("verified-*.json"))) == 2


def test_a_model_that_needs_its_module_is_not_recorded(
    path: Path, records: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eligibility, "max_rows", lambda: 64)
    assert load(path).module is not None
    assert load(path, native=False).module is not None
    assert not records.exists()
