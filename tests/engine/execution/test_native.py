"""The decoder in C++: which models it takes, what it does without a compiler, and that its numbers are right."""

from __future__ import annotations

import logging
import platform
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine import EngineSettings
from engine.execution.attention.base import LayerCache, Sequences
from engine.execution.attention.int8_cache import Int8LayerCache
from engine.execution.batch import Batch
from engine.execution.load import load_model
from engine.execution.native import build, eligibility
from engine.execution.native.compiler import VARIANTS, Variant, compile_library, find_compiler, variant_file
from engine.execution.native.decoder import Decoder
from engine.execution.native.weights import DecoderWeights
from engine.model.attention_hook import LayerProbe
from engine.model.loaded_model import LoadedModel
from testing.models import make_model
from testing.native import FORMATS, needs_compiler

BLOCK_SIZE = 16
LONG = 500  #: several times what a chunk's attention takes at once
LENGTH = 150  #: longer than what attention takes at once, and no multiple of anything


def load(path: Path, **settings: object) -> LoadedModel:
    chosen = EngineSettings(model=str(path), device="cpu", **{"dtype": "float32", **settings})  # type: ignore[arg-type]
    return load_model(chosen, lambda _stage, _fraction: None)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("models") / "qwen3", "qwen3", vocab_size=397, tie_word_embeddings=True)


@pytest.fixture(autouse=True)
def keep_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps transformers' module beside the decoder, to compare with."""
    monkeypatch.setattr(eligibility, "max_rows", lambda: 0)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Several would wait for one another at every turn where other tests hold the cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def fresh_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Looked for anew, now and afterwards; nothing is prebuilt."""
    monkeypatch.setattr(build, "PREBUILT", tmp_path / "prebuilt")
    build.load_library.cache_clear()
    yield
    build.load_library.cache_clear()


class Sequence:
    """One text in a cache of its own, its blocks in no order."""

    def __init__(self, model: LoadedModel, length: int = LENGTH, seed: int = 0, kv_cache_dtype: str = "auto") -> None:
        assert isinstance(model.decoder, DecoderWeights)
        dice = torch.Generator().manual_seed(seed)
        self.tokens = torch.randint(0, model.vocab_size, (length,), generator=dice)
        self.blocks = torch.randperm(-(-length // BLOCK_SIZE), generator=dice).tolist()
        caches = [
            Int8LayerCache.allocate(shape, len(self.blocks), BLOCK_SIZE, model.device)
            if kv_cache_dtype == "int8"
            else LayerCache.zeros(shape, len(self.blocks), BLOCK_SIZE, model.dtype, model.device)
            for shape in model.layers
        ]
        self.decoder = Decoder(model.decoder, caches, [0] * len(caches))

    def batch(self, start: int, stop: int) -> Batch:
        """Tokens of one chunk, all of whose logits are wanted."""
        positions = torch.arange(start, stop)
        slots = torch.tensor(
            [self.blocks[at // BLOCK_SIZE] * BLOCK_SIZE + at % BLOCK_SIZE for at in positions.tolist()]
        )
        return Batch(
            input_ids=self.tokens[start:stop].unsqueeze(0),
            position_ids=positions.unsqueeze(0),
            slots=(slots,),
            logits_rows=torch.arange(stop - start),
            sequences=(Sequences((stop - start,), (stop,), (tuple(self.blocks),), BLOCK_SIZE),),
            lengths=None,
        )

    def logits(self, *stops: int) -> Tensor:
        """Of the whole text, in chunks that end there."""
        starts = (0, *stops[:-1])
        return torch.cat([self.decoder.logits(self.batch(*chunk)) for chunk in zip(starts, stops, strict=True)])


@torch.inference_mode()
def theirs(model: LoadedModel, tokens: Tensor) -> Tensor:
    positions = torch.arange(len(tokens))
    return model.logits(tokens[None], positions[None], positions, LayerProbe()).float()


def error(ours: Tensor, exact: Tensor) -> float:
    return float((ours - exact).norm() / exact.norm())


@needs_compiler
@pytest.mark.parametrize(("settings", "largest"), FORMATS)
def test_logits_are_those_of_transformers_modules(path: Path, settings: dict[str, str], largest: float) -> None:
    model = load(path, **settings)
    text = Sequence(model)
    assert error(text.logits(LENGTH), theirs(model, text.tokens)) < largest


@needs_compiler
@pytest.mark.parametrize("stops", [(LONG,), (256, LONG - 33, LONG)])
def test_a_chunk_has_more_keys_than_are_scored_at_once(path: Path, stops: tuple[int, ...]) -> None:
    model = load(path, dtype="bfloat16")
    text = Sequence(model, LONG)
    assert error(text.logits(*stops), theirs(model, text.tokens)) < 0.03


@needs_compiler
@pytest.mark.parametrize(("settings", "largest"), FORMATS[:3])
def test_rows_that_do_not_fill_their_tiles(tmp_path: Path, settings: dict[str, str], largest: float) -> None:
    """What another model has left behind them does not count."""
    full, model = (
        load(make_model(tmp_path / str(inner), "qwen3", config={"intermediate_size": inner}), **settings)
        for inner in (1120, 1104)
    )
    before = Sequence(full)
    before.decoder._caches[0].values.fill_(torch.nan)
    before.decoder.logits(before.batch(1, LENGTH))
    text = Sequence(model)
    whole = text.logits(LENGTH)
    assert error(whole, theirs(model, text.tokens)) < largest
    assert torch.equal(Sequence(model).logits(64, 77, LENGTH), whole)


@needs_compiler
@pytest.mark.parametrize(
    ("settings", "stops", "threads"),
    [
        # Attention adds in another order in chunks than in the shortest ones and in single rows.
        ({"dtype": "float32"}, (8, 72, 81, 140, LENGTH), 1),
        ({"dtype": "float32"}, (64, 77, LENGTH), 3),
        ({"dtype": "bfloat16"}, (64, 72, 81, 110, LENGTH), 1),
        ({"dtype": "bfloat16"}, (8, 37, LENGTH), 3),
        ({"dtype": "bfloat16", "quantization": "int8"}, (33, 70, LENGTH), 3),
        ({"dtype": "bfloat16", "quantization": "int4"}, (33, 70, LENGTH), 3),
    ],
)
def test_neither_chunks_nor_threads_change_a_bit(
    path: Path, settings: dict[str, str], stops: tuple[int, ...], threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load(path, **settings)
    whole = Sequence(model).logits(LENGTH)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    assert torch.equal(Sequence(model).logits(*stops), whole)


@needs_compiler
def test_the_shortest_chunks_are_as_row_by_row(path: Path) -> None:
    model = load(path)
    short = [*range(7, LENGTH, 7), LENGTH]
    assert torch.equal(Sequence(model).logits(*short), Sequence(model).logits(*range(1, LENGTH + 1)))


@needs_compiler
@pytest.mark.parametrize(("settings", "largest"), FORMATS)
def test_row_by_row_it_says_what_a_chunk_says(path: Path, settings: dict[str, str], largest: float) -> None:
    model = load(path, **settings)
    assert error(Sequence(model).logits(*range(1, LENGTH + 1)), Sequence(model).logits(LENGTH)) < largest


@needs_compiler
@pytest.mark.parametrize("own", [(1, 1, 1), (1, 30, 12), (5, 69, 1)], ids=str)
def test_one_text_beside_others_is_as_it_is_alone(path: Path, own: tuple[int, ...]) -> None:
    """Rows of several texts in one step, each with its own length and its own blocks."""
    model = load(path)
    assert isinstance(model.decoder, DecoderWeights)
    texts = [Sequence(model, length=length, seed=length) for length in (6, 70, 17)]
    alone = [
        text.logits(len(text.tokens) - count, len(text.tokens))[-1] for text, count in zip(texts, own, strict=True)
    ]
    blocks = sum(len(text.blocks) for text in texts)
    caches = [LayerCache.zeros(shape, blocks, BLOCK_SIZE, model.dtype, model.device) for shape in model.layers]
    decoder = Decoder(model.decoder, caches, [0] * len(caches))
    first, batches = 0, list[Batch]()
    for text in texts:
        text.blocks, first = [first + block for block in text.blocks], first + len(text.blocks)
        count = own[len(batches)]
        decoder.logits(text.batch(0, len(text.tokens) - count))
        batches.append(text.batch(len(text.tokens) - count, len(text.tokens)))
    together = Batch(
        input_ids=torch.cat([batch.input_ids for batch in batches], dim=1),
        position_ids=torch.cat([batch.position_ids for batch in batches], dim=1),
        slots=(torch.cat([batch.slots[0] for batch in batches]),),
        logits_rows=torch.tensor([sum(own) - 1, own[0] - 1, own[0] + own[1] - 1]),
        sequences=(
            Sequences(
                own,
                tuple(len(text.tokens) for text in texts),
                tuple(tuple(text.blocks) for text in texts),
                BLOCK_SIZE,
            ),
        ),
        lengths=None,
    )
    assert torch.equal(decoder.logits(together), torch.stack([alone[index] for index in (2, 0, 1)]))


@needs_compiler
def test_not_a_number_stays_one(path: Path) -> None:
    model = load(path)
    text = Sequence(model, length=20)
    text.logits(19)
    text.decoder._caches[0].values[text.blocks[0], 3] = torch.nan
    assert text.decoder.logits(text.batch(19, 20)).isnan().all()


@needs_compiler
@pytest.mark.parametrize(
    ("family", "reason"),
    [
        ("cohere2", "Cohere2DecoderLayer has unexpected parts"),  # attention and MLP read the same rows
        ("gpt-neox", "has unexpected parts: gpt_neox, lm_head"),
    ],
)
def test_what_is_built_otherwise_runs_through_transformers(
    tmp_path: Path, family: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="engine"):
        model = load(make_model(tmp_path / family, family))
    assert model.decoder is None
    assert reason in caplog.text


@pytest.mark.parametrize(
    "settings",
    [
        {"native": False},
        {"batch_invariant": True},
        {"dtype": "float16"},
        {"quantization": "int8", "dtype": "float32"},
    ],
)
def test_where_it_is_not_wanted_or_not_made_for(path: Path, settings: dict[str, object]) -> None:
    assert load(path, **settings).decoder is None


@pytest.mark.usefixtures("fresh_library")
def test_without_a_compiler_every_step_runs_through_transformers(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with caplog.at_level(logging.INFO, logger="engine"):
        model = load(path)
    assert model.decoder is None
    assert "CXX names no-such-compiler, which was not found" in caplog.text


@pytest.mark.usefixtures("fresh_library")
@pytest.mark.parametrize("script", ["echo 'no such option' >&2; exit 1", "kill -9 $$"])
def test_a_compiler_that_fails_is_named(tmp_path: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "compiler"
    compiler.write_text(f"#!/bin/sh\n{script}\n")
    compiler.chmod(compiler.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(build.NotCompiled, match=f"{compiler} failed"):
        build.load_library()
    assert not list((tmp_path / "cache").rglob("*.so"))


@needs_compiler
@pytest.mark.usefixtures("fresh_library")
def test_where_nothing_can_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(build.NotCompiled, match="cannot be used"):
        build.load_library()


@needs_compiler
@pytest.mark.usefixtures("fresh_library")
@pytest.mark.parametrize(
    ("asked", "failure"),
    [("home", RuntimeError("Could not determine home directory.")), ("exists", PermissionError(13, "not yours"))],
)
def test_a_start_survives_a_cache_that_cannot_be_looked_into(
    path: Path,
    asked: str,
    failure: Exception,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Elsewhere(type(Path())):  # type: ignore[misc]
        pass

    def fails(*_: object) -> None:
        raise failure

    setattr(Elsewhere, asked, fails)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(build, "Path", Elsewhere)
    with caplog.at_level(logging.INFO, logger="engine"):
        assert load(path).decoder is None
    assert "runs through transformers" in caplog.text


@pytest.fixture(scope="module", params=["without any", *(variant.name for variant in VARIANTS)])
def extensions(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Every prebuilt variant that this processor can run, and one for what all have; the only one that is found."""
    usable = build.usable_variants(platform.machine(), build.cpu_features())
    chosen = next((variant for variant in usable if variant.name == request.param), None)
    if request.param == "without any":
        chosen = Variant("baseline", platform.machine(), (), frozenset())
    if chosen is None:
        pytest.skip("this processor cannot run it")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "PREBUILT", tmp_path_factory.mktemp("prebuilt"))
        patch.setattr(build, "VARIANTS", (chosen,))
        compile_library(find_compiler(), chosen.options, build.PREBUILT / variant_file(chosen))
        patch.delenv("CXX", raising=False)
        build.load_library.cache_clear()
        yield chosen.name
    build.load_library.cache_clear()


@pytest.mark.full
@needs_compiler
@pytest.mark.parametrize(("settings", "largest"), FORMATS)
def test_on_a_processor_with_other_extensions(
    extensions: str, path: Path, settings: dict[str, str], largest: float
) -> None:
    """The same source without what this processor can do besides."""
    model = load(path, **settings)
    assert build.describe_native_decoder() == f"prebuilt for {extensions}"
    text = Sequence(model)
    assert error(text.logits(LENGTH), theirs(model, text.tokens)) < largest


@pytest.mark.full
@needs_compiler
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_int8_cache_on_a_processor_with_other_extensions(extensions: str, path: Path, dtype: str) -> None:
    """As a prompt, as decodes, and as both, against the cache in the model's own dtype."""
    model = load(path, dtype=dtype, kv_cache_dtype="int8")
    assert build.describe_native_decoder() == f"prebuilt for {extensions}"
    exact = Sequence(model).logits(LENGTH)
    whole = Sequence(model, kv_cache_dtype="int8").logits(LENGTH)
    assert 0 < error(whole, exact) < 0.05
    assert error(Sequence(model, kv_cache_dtype="int8").logits(*range(1, LENGTH + 1)), exact) < 0.05
    assert torch.equal(Sequence(model, kv_cache_dtype="int8").logits(64, 81, LENGTH), whole)
