"""LoRA adapters compute what merged weights compute, mixed in one batch, and never share cached blocks."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine import BeamSearchParams, EngineSettings, InvalidRequestError, ModelLoadError
from engine.execution.adapters import load_adapter
from engine.model.adapter_files import CONFIG, WEIGHTS
from engine.runtime.engine_core import EngineCore
from engine.runtime.model_loading import load
from testing.core_requests import GREEDY, ReaderRecord, add, finish
from testing.lora import TARGETS, make_adapter, merge
from testing.models import make_model
from testing.native import needs_compiler
from testing.reference import TIE_MARGIN, Reference

PROMPT = list(range(7, 30))


def core_of(base: Path, adapters: dict[str, Path], **options: Any) -> EngineCore:
    values = {
        **{"model": str(base), "dtype": "float32", "device": "cpu", "max_model_len": 64},
        **{"num_kv_blocks": 96, "kv_block_size": 4, "lora": [f"{name}={path}" for name, path in adapters.items()]},
        **options,
    }
    settings = EngineSettings(**values, _env_file=None)
    return EngineCore(load(settings, lambda _stage, _fraction: None), settings)


def reply(core: EngineCore, adapter: str | None, prompt: list[int] = PROMPT) -> list[int]:
    add(core, "r", prompt, GREEDY, adapter=adapter)
    return finish(core).tokens["r", 0]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("models") / "base", "llama", eos=False)


@pytest.fixture(scope="module")
def adapters(base: Path) -> dict[str, Path]:
    """Two adapters that differ in all that an adapter can differ in."""
    return {
        "all": make_adapter(base.parent / "all", base),
        "some": make_adapter(
            base.parent / "some",
            base,
            seed=2,
            rank=3,
            targets=("q_proj", "v_proj", "down_proj"),
            use_rslora=True,
            rank_pattern={r"layers\.0\.self_attn\.q_proj": 5},
            alpha_pattern={"v_proj": 1.5},
        ),
    }


@pytest.mark.parametrize("native", [pytest.param(True, marks=needs_compiler), False])
@pytest.mark.parametrize("family", ["llama", "gemma2", "phi3"])
def test_a_reply_equals_that_of_the_merged_weights(family: str, native: bool, tmp_path: Path) -> None:
    base = make_model(tmp_path / "base", family, eos=False)
    fused = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")
    targets = fused if family == "phi3" else TARGETS
    adapter = make_adapter(
        tmp_path / "adapter", base, targets=targets, rank_pattern={targets[0]: 5}, alpha_pattern={"down_proj": 3}
    )
    expected = Reference(merge(base, adapter, tmp_path / "merged")).greedy(PROMPT, 16)
    assert min(expected.leads) > TIE_MARGIN
    core = core_of(base, {"mine": adapter}, native=native)
    assert (core.model.decoder is not None) is native
    assert reply(core, "mine") == list(expected.token_ids)
    assert reply(core, None) != list(expected.token_ids)


@pytest.mark.parametrize(
    "params", [{"n": 3, "seed": 1, "temperature": 1.0}, {"n": 3, "beam_search": BeamSearchParams(width=3)}]
)
def test_all_replies_to_a_prompt_have_the_adapter(
    base: Path, adapters: dict[str, Path], params: dict[str, Any], tmp_path: Path
) -> None:
    def replies(core: EngineCore, adapter: str | None) -> dict[tuple[str, int], list[int]]:
        add(core, "r", PROMPT, replace(GREEDY, max_tokens=8, **params), adapter=adapter)
        return finish(core).tokens

    merged = merge(base, adapters["all"], tmp_path / "merged")
    for file in base.glob("*token*"):
        shutil.copy(file, merged)
    found = replies(core_of(base, adapters), "all")
    assert len(found) == 3
    assert found == replies(core_of(merged, {}), None)


def test_rslora_divides_by_the_square_root(base: Path, adapters: dict[str, Path], tmp_path: Path) -> None:
    expected = Reference(merge(base, adapters["some"], tmp_path / "merged")).greedy(PROMPT, 16)
    assert reply(core_of(base, adapters), "some") == list(expected.token_ids)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"native": False},
        {"batch_invariant": True},
        {"speculation": "prompt-lookup"},
        {"speculation": "draft"},
        {"max_batched_tokens": 8, "max_num_seqs": 8},
        {"num_kv_blocks": 22},
    ],
    ids=["plain", "through modules", "batch invariant", "prompt lookup", "draft model", "chunked prefill", "preempted"],
)
def test_requests_with_different_adapters_share_a_batch(
    base: Path, adapters: dict[str, Path], options: dict[str, Any]
) -> None:
    if options.get("speculation") == "draft":
        options = {"speculation": str(base)}
    alone = {name: reply(core_of(base, adapters, **options), name) for name in ("all", "some", None)}
    assert len(set(map(tuple, alone.values()))) == 3
    core = core_of(base, adapters, **options)
    for name in ("some", None, "all"):
        add(core, str(name), PROMPT, GREEDY, adapter=name)
    found = finish(core)
    assert {name: found.tokens[str(name), 0] for name in alone} == alone
    assert (core.stats().num_preemptions > 0) is ("num_kv_blocks" in options)


@pytest.mark.parametrize("quantization", ["none", "int8", "int4"])
def test_replaced_linear_layers_are_adapted(base: Path, adapters: dict[str, Path], quantization: str) -> None:
    exact = reply(core_of(base, adapters), "all")
    core = core_of(base, adapters, native=False, dtype="bfloat16", quantization=quantization)
    assert reply(core, "all")[:2] == exact[:2]
    assert reply(core, None)[:2] != exact[:2]


def test_cached_blocks_are_found_only_with_the_same_adapter(base: Path, adapters: dict[str, Path]) -> None:
    core = core_of(base, adapters)
    cached = []
    for name in ("all", "all", "some", None):
        before = core.stats().cached_prompt_tokens
        reply(core, name)
        cached.append(core.stats().cached_prompt_tokens - before)
    assert cached[1] > 0
    assert [cached[0], *cached[2:]] == [0, 0, 0]


def test_replies_are_not_changed_by_one_that_is_aborted(base: Path, adapters: dict[str, Path]) -> None:
    expected = reply(core_of(base, adapters), "some")
    core, found = core_of(base, adapters), ReaderRecord()
    for name in ("all", "some"):
        add(core, name, PROMPT, GREEDY, adapter=name)
    found.add(core.step())
    core.abort("all")
    assert finish(core, found).tokens["some", 0] == expected


def test_an_adapter_that_is_unloaded_finishes_its_replies(base: Path, adapters: dict[str, Path]) -> None:
    expected = reply(core_of(base, adapters), "all")
    core = core_of(base, adapters)
    add(core, "r", PROMPT, GREEDY, adapter="all")
    first = core.step()
    del core.model.adapters["all"]
    assert [*[token for delta in first.deltas for token in delta.token_ids], *finish(core).tokens["r", 0]] == expected
    with pytest.raises(InvalidRequestError, match="No adapter is loaded under the name 'all'"):
        reply(core, "all")


def test_without_a_request_for_it_an_adapter_changes_nothing(base: Path, adapters: dict[str, Path]) -> None:
    assert reply(core_of(base, adapters), None) == reply(core_of(base, {}, native=False), None)


def _config(**values: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        config = json.loads((folder / CONFIG).read_text())
        (folder / CONFIG).write_text(json.dumps({**config, **values}))

    return change


def _tensors(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    def change_file(folder: Path) -> None:
        tensors = load_file(folder / WEIGHTS)
        change(tensors)
        save_file(
            {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()},
            folder / WEIGHTS,
        )

    return change_file


_A = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_config(use_dora=True), "it uses DoRA"),
        (_config(bias="all"), "it changes biases"),
        (_config(modules_to_save=["lm_head"]), "modules_to_save"),
        (_config(peft_type="IA3"), "peft_type is 'IA3'"),
        (_config(init_lora_weights="pissa_niter_16"), "changes the base's weights"),
        (_config(r=8), "is 4 by 128, where rank 8"),
        (_config(r=True), "the rank True"),
        (_config(lora_alpha=None), "lora_alpha is None"),
        (_config(lora_alpha=10**400), "lora_alpha is 1000"),
        (_config(alpha_pattern={"q_proj": 10**400}), "lora_alpha is 1000"),
        (_config(lora_alpha=1e308), "beyond the numbers of float32"),
        (_config(rank_pattern={"(": 2}), "not a regular expression"),
        (_config(rank_pattern={"a{99999999999999999999}": 2}), "not a regular expression"),
        (_config(alpha_pattern={"(" * 5000 + ")" * 5000: 2}), "not a regular expression"),
        (lambda folder: (folder / CONFIG).write_text("[]"), "is not an object"),
        (lambda folder: (folder / CONFIG).write_text("{"), "cannot be loaded"),
        (lambda folder: (folder / CONFIG).unlink(), f"there is no {CONFIG}"),
        (lambda folder: (folder / WEIGHTS).unlink(), f"there is no {WEIGHTS}"),
        (lambda folder: (folder / WEIGHTS).rename(folder / "adapter_model.bin"), "pickled"),
        (lambda folder: (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:-9]), "cannot be loaded"),
        (_tensors(lambda tensors: tensors.clear()), "it has no weights"),
        (_tensors(lambda tensors: tensors.pop(_A)), "A and B of .* is missing"),
        (_tensors(lambda tensors: tensors.update({_A: tensors[_A][:, :32]})), "made for an-org/a-base"),
        (_tensors(lambda tensors: tensors[_A].fill_(float("nan"))), "finite"),
        (_tensors(lambda tensors: tensors.update({_A.replace("layers.0", "layers.9"): tensors[_A]})), "layers.9"),
        (_tensors(lambda tensors: tensors.update({"base_model.model.lm_head.weight": tensors[_A]})), "lm_head.weight"),
    ],
)
def test_what_cannot_be_applied_is_refused_in_a_sentence(
    base: Path, tmp_path: Path, change: Callable[[Path], None], message: str
) -> None:
    folder = make_adapter(tmp_path / "adapter", base)
    model = core_of(base, {}, native=False).model
    load_adapter(model, "good", folder)
    change(folder)
    with pytest.raises(ModelLoadError, match=message) as refusal:
        load_adapter(model, "bad", folder)
    assert "\n" not in str(refusal.value)


def test_a_folder_that_is_no_path_is_refused(base: Path) -> None:
    with pytest.raises(ModelLoadError, match=f"there is no {CONFIG}"):
        load_adapter(core_of(base, {}, native=False).model, "bad", Path("no\0path"))


def test_other_weights_under_the_same_name_have_another_content_id(base: Path, adapters: dict[str, Path]) -> None:
    model = core_of(base, adapters).model
    assert model.adapters["all"].content_id != model.adapters["some"].content_id
    again = load_adapter(model, "other name", adapters["all"])
    assert again.content_id == model.adapters["all"].content_id


@pytest.mark.parametrize("value", ["name", "=folder", "a=", "a b=folder", "a=x,a=y", "../x=folder"])
def test_malformed_settings_are_refused(value: str) -> None:
    with pytest.raises(ValueError, match=r"must be NAME=FOLDER|given twice"):
        EngineSettings(lora=value, _env_file=None)
