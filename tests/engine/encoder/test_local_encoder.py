"""Vectors equal sentence-transformers' formula, and work in the background lets replies go first."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import AutoModel, AutoTokenizer

from engine import EngineOverloadedError, EngineStoppedError, InvalidRequestError, TextRole
from engine.encoder import local_encoder
from engine.encoder.encoder_model import EncoderModel
from engine.encoder.load import load_encoder
from engine.encoder.local_encoder import LocalEncoder, batches_by_length
from testing.encoders import MAX_TOKENS, make_encoder
from testing.tokenizers import CORPUS

TEXTS = [*CORPUS[:4], "dog", "the quick brown fox " * 40]


def no_progress(_stage: str, _fraction: float) -> None:
    pass


def load(folder: Path, is_busy: Callable[[], bool] = lambda: False) -> LocalEncoder:
    return LocalEncoder(load_encoder(str(folder), no_progress), is_busy)


def reference(folder: Path, texts: Sequence[str], pooling: str, *, normalizes: bool = True) -> NDArray[np.float32]:
    """Encodes texts one by one with plain transformers, as sentence-transformers documents it."""
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    rows = []
    for text in texts:
        inputs = tokenizer(text, truncation=True, max_length=MAX_TOKENS, return_tensors="pt")
        with torch.no_grad():
            hidden = model(**inputs).last_hidden_state[0]
        row = {"mean": hidden.mean(0), "cls": hidden[0], "max": hidden.amax(0), "last": hidden[-1]}[pooling]
        rows.append(row / row.norm() if normalizes else row)
    return torch.stack(rows).numpy()


@pytest.mark.parametrize(
    ("family", "pooling", "expected"),
    [
        ("bert", {"pooling_mode_mean_tokens": True}, "mean"),
        ("bert", {"pooling_mode_cls_token": True}, "cls"),
        ("bert", {"pooling_mode": "max"}, "max"),
        ("xlm-roberta", {"pooling_mode_mean_tokens": True}, "mean"),
        ("qwen3", {"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False}, "last"),
    ],
)
async def test_vectors_are_those_of_the_formula(
    tmp_path: Path, family: str, pooling: dict[str, Any], expected: str
) -> None:
    encoder = load(make_encoder(tmp_path, family, pooling=pooling))
    try:
        result = await encoder.embed(TEXTS)
    finally:
        encoder.close()
    np.testing.assert_allclose(result.vectors, reference(tmp_path, TEXTS, expected), atol=2e-5)
    assert result.truncated == (len(TEXTS) - 1,)
    assert result.num_tokens[-1] == MAX_TOKENS == encoder.info.max_tokens
    assert max(result.num_tokens[:-1]) < MAX_TOKENS


async def test_a_folder_without_normalize_keeps_the_length(tmp_path: Path) -> None:
    encoder = load(make_encoder(tmp_path, modules=("Transformer", "Pooling")))
    vectors = (await encoder.embed(TEXTS)).vectors
    encoder.close()
    np.testing.assert_allclose(vectors, reference(tmp_path, TEXTS, "mean", normalizes=False), atol=2e-4)


async def test_a_plain_encoder_is_pooled_by_the_mean(tmp_path: Path) -> None:
    encoder = load(make_encoder(tmp_path, "xlm-roberta", modules=()))
    vectors = (await encoder.embed(TEXTS)).vectors
    encoder.close()
    assert encoder.info.max_tokens == MAX_TOKENS  # the table has two rows more
    np.testing.assert_allclose(vectors, reference(tmp_path, TEXTS, "mean"), atol=2e-5)


async def test_each_role_has_its_prompt(tmp_path: Path) -> None:
    encoder = load(make_encoder(tmp_path, prompts={"query": "the dog: ", "document": ""}))
    query = (await encoder.embed(["fox"], role=TextRole.QUERY)).vectors
    document = (await encoder.embed(["fox"], role=TextRole.DOCUMENT)).vectors
    plain = (await encoder.embed(["the dog: fox", "fox"])).vectors
    encoder.close()
    np.testing.assert_allclose(query[0], plain[0], atol=1e-5)
    np.testing.assert_allclose(document[0], plain[1], atol=1e-5)


@pytest.mark.parametrize("name", ["document", "passage", "corpus"])
async def test_documents_have_their_prompt_by_each_of_its_names(tmp_path: Path, name: str) -> None:
    encoder = load(make_encoder(tmp_path, prompts={name: "the dog: "}))
    document = (await encoder.embed(["fox"], role=TextRole.DOCUMENT)).vectors
    plain = (await encoder.embed(["the dog: fox"])).vectors
    encoder.close()
    np.testing.assert_allclose(document, plain, atol=1e-5)


async def test_the_default_prompt_stands_before_texts_whose_role_has_none(tmp_path: Path) -> None:
    make_encoder(tmp_path)
    config = {"prompts": {"query": "the dog: ", "other": "a cat: "}, "default_prompt_name": "other"}
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(config))
    encoder = load(tmp_path)
    found = [(await encoder.embed(["fox"], role=role)).vectors[0] for role in (None, *TextRole)]
    ids = [AutoTokenizer.from_pretrained(tmp_path)(text)["input_ids"] for text in ("a cat: fox", "the dog: fox")]
    other, query = (await encoder.embed(ids)).vectors
    encoder.close()
    np.testing.assert_allclose(found, [other, query, other], atol=1e-5)


async def test_a_prompt_that_is_not_pooled_is_read_only(tmp_path: Path) -> None:
    pooling = {"pooling_mode_mean_tokens": True, "include_prompt": False}
    encoder = load(make_encoder(tmp_path, pooling=pooling, prompts={"query": "the dog "}))
    vector = (await encoder.embed(["fox"], role=TextRole.QUERY)).vectors[0]
    encoder.close()
    tokenizer, model = AutoTokenizer.from_pretrained(tmp_path), AutoModel.from_pretrained(tmp_path).eval()
    skipped = len(tokenizer("the dog ")["input_ids"]) - 1
    with torch.no_grad():
        hidden = model(**tokenizer("the dog fox", return_tensors="pt")).last_hidden_state[0, skipped:]
    expected = hidden.mean(0) / hidden.mean(0).norm()
    np.testing.assert_allclose(vector, expected.numpy(), atol=1e-5)


async def test_token_ids_are_taken_as_they_are(tmp_path: Path) -> None:
    encoder = load(make_encoder(tmp_path))
    ids = AutoTokenizer.from_pretrained(tmp_path)("the dog")["input_ids"]
    result = await encoder.embed([ids, "the dog", ids * MAX_TOKENS])
    np.testing.assert_allclose(result.vectors[0], result.vectors[1], atol=1e-6)
    assert result.truncated == (2,)
    for refused in ([], [10**6], [-1]):
        with pytest.raises(InvalidRequestError):
            await encoder.embed([refused])
    encoder.close()


async def test_background_work_waits_while_the_engine_is_busy(tmp_path: Path) -> None:
    busy = True
    encoder = load(make_encoder(tmp_path), lambda: busy)
    waiting = asyncio.create_task(encoder.embed(["later"], background=True))
    await encoder.embed(["now"])
    await asyncio.sleep(5 * local_encoder.BUSY_POLL_SECONDS)
    assert not waiting.done()
    busy = False
    assert len((await waiting).vectors) == 1
    encoder.close()


async def test_background_work_goes_on_at_last_on_an_engine_that_is_never_idle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_encoder, "MAX_BACKGROUND_WAIT_SECONDS", 0.05)
    encoder = load(make_encoder(tmp_path), lambda: True)
    assert len((await encoder.embed(["later"], background=True)).vectors) == 1
    encoder.close()


async def test_a_query_overtakes_work_in_the_background(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = load(make_encoder(tmp_path))
    entered, go_on = threading.Event(), threading.Event()
    order: list[int] = []
    encode = EncoderModel.encode

    def held(model: EncoderModel, texts: Any) -> NDArray[np.float32]:
        entered.set()
        go_on.wait(60)
        order.append(len(texts))
        return encode(model, texts)

    monkeypatch.setattr(EncoderModel, "encode", held)
    monkeypatch.setattr(local_encoder, "MAX_BATCH_TEXTS", 2)
    long = asyncio.create_task(encoder.embed(["a document"] * 6, background=True))
    await asyncio.to_thread(entered.wait, 60)
    query = asyncio.create_task(encoder.embed(["a query"]))
    await asyncio.sleep(0)
    go_on.set()
    await asyncio.gather(long, query)
    assert order == [2, 1, 2, 2]
    encoder.close()


async def test_a_cancelled_call_computes_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = load(make_encoder(tmp_path))
    entered, go_on, count = threading.Event(), threading.Event(), 0
    encode = EncoderModel.encode

    def held(model: EncoderModel, texts: Any) -> NDArray[np.float32]:
        nonlocal count
        count += 1
        entered.set()
        go_on.wait(60)
        return encode(model, texts)

    monkeypatch.setattr(EncoderModel, "encode", held)
    monkeypatch.setattr(local_encoder, "MAX_BATCH_TEXTS", 1)
    task = asyncio.create_task(encoder.embed(["one", "two", "three"]))
    await asyncio.to_thread(entered.wait, 60)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    go_on.set()
    await encoder.embed(["four"])
    assert count == 2
    encoder.close()


async def test_a_closed_encoder_refuses_and_ends_what_waits(tmp_path: Path) -> None:
    encoder = load(make_encoder(tmp_path), lambda: True)
    waiting = asyncio.create_task(encoder.embed(["later"], background=True))
    await asyncio.sleep(0.05)
    await asyncio.to_thread(encoder.close)
    for call in (waiting, encoder.embed(["again"])):
        with pytest.raises(EngineStoppedError):
            await call


async def test_a_full_encoder_refuses_more_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = load(make_encoder(tmp_path))
    entered, go_on = threading.Event(), threading.Event()
    encode = EncoderModel.encode

    def held(model: EncoderModel, texts: Any) -> NDArray[np.float32]:
        entered.set()
        go_on.wait(60)
        return encode(model, texts)

    monkeypatch.setattr(EncoderModel, "encode", held)
    monkeypatch.setattr(local_encoder, "MAX_WAITING_TEXTS", 3)
    first = asyncio.create_task(encoder.embed(["a"] * 5))  # alone, it may be longer
    await asyncio.to_thread(entered.wait, 60)
    with pytest.raises(EngineOverloadedError, match="5 texts are waiting, of at most 3"):
        await encoder.embed(["b"])
    go_on.set()
    assert len((await first).vectors) == 5
    encoder.close()


def test_batches_keep_within_their_limits_and_lose_no_text() -> None:
    lengths = [1, 512, 3, 2000, *[7] * 100]
    batches = list(batches_by_length(lengths))
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) <= local_encoder.MAX_BATCH_TEXTS
        assert len(batch) == 1 or len(batch) * max(lengths[index] for index in batch) <= local_encoder.MAX_BATCH_TOKENS


def test_close_leaves_no_thread(tmp_path: Path) -> None:
    encoder = load(make_encoder(tmp_path))
    before = set(threading.enumerate())
    asyncio.run(encoder.embed(["one"]))
    assert {thread.name for thread in set(threading.enumerate()) - before} == {"deskmate-encoder"}
    encoder.close()
    assert set(threading.enumerate()) <= before
