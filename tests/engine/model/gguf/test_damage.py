"""A damaged GGUF file is refused in one sentence; it crashes nothing, hangs nothing and allocates nothing large."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import gguf
import pytest

from engine import EngineSettings, ModelLoadError, find_model
from engine.model.gguf.checkpoint import open_gguf_checkpoint
from engine.model.gguf.header import read_header
from testing.damaged_gguf import Span, damaged, header_spans
from testing.gguf_files import make_gguf

NUM_FILES = 1_000


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("gguf")
    return make_gguf(folder / "tiny.gguf", "qwen2", "Q8_0", layers=1, hidden=32, heads=2, kv_heads=1).read_bytes()


def span(data: bytes, what: str) -> Span:
    return next(span for span in header_spans(data) if span.what == what)


def with_number(data: bytes, what: str, value: int) -> bytes:
    found = span(data, what)
    return data[: found.start] + value.to_bytes(found.size, "little") + data[found.start + found.size :]


def open_file(path: Path) -> None:
    open_gguf_checkpoint(path, EngineSettings(model=str(path)), lambda _stage, _share: None)


def refusal(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    with pytest.raises(ModelLoadError) as caught:
        open_file(path)
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert str(path) in sentence
    return sentence.replace(str(path), "FILE")


def open_damaged(path: Path, what: str, content: bytes) -> None:
    """Opens a damaged file, which may still be a model: a name with another letter harms nothing."""
    path.write_bytes(content)
    tracemalloc.start()
    try:
        read_header(path)
    except ModelLoadError:
        pass
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 20 * len(content) + 1_000_000, what
    sentence = ""
    try:
        open_file(path)
    except ModelLoadError as error:
        sentence = str(error)
    except Exception as error:
        raise AssertionError(f"{what}: {type(error).__name__}: {error}") from error
    assert "\n" not in sentence, what
    assert len(sentence) < 700, what


@pytest.mark.parametrize("seed", range(2))
def test_damaged_files(whole: bytes, tmp_path: Path, seed: int) -> None:
    for what, content in damaged(whole, 20, seed):
        open_damaged(tmp_path / "damaged.gguf", what, content)


@pytest.mark.full
@pytest.mark.timeout(1_800)
def test_a_thousand_damaged_files(whole: bytes, tmp_path: Path) -> None:
    for what, content in damaged(whole, NUM_FILES, seed=100):
        open_damaged(tmp_path / "damaged.gguf", what, content)


def test_truncation_at_every_boundary_of_the_header(whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "short.gguf"
    for found in header_spans(whole):
        path.write_bytes(whole[: found.start])
        with pytest.raises(ModelLoadError, match=r"incomplete|empty|GGUF"):
            read_header(path)
    path.write_bytes(whole[:-1])
    with pytest.raises(ModelLoadError, match="is incomplete: it has"):
        read_header(path)


@pytest.mark.parametrize(
    ("what", "value", "sentence"),
    [
        ("version", 1, "version 1"),
        ("version", 0x03000000, "big-endian"),
        ("number of tensors", 1 << 63, "claims to have"),
        ("number of fields", 1 << 40, "claims to have"),
        ("number of fields", 60_000, "the name of field"),
        ("length of name of general.architecture", 1 << 63, "the name of field 1 has"),
        ("length of general.architecture", 1 << 40, "ends within general.architecture"),
        ("type of general.architecture", 77, "unknown type 77"),
        ("type of tokenizer.ggml.tokens's entries", 9, "array of arrays"),
        ("length of tokenizer.ggml.tokens", 1 << 60, "claims to have"),
        ("length of tokenizer.ggml.tokens", 1 << 23, "ends within tokenizer.ggml.tokens"),
        ("dimensions of token_embd.weight", 5, "5 dimensions"),
        ("dimensions of token_embd.weight", 0xFFFFFFFF, "dimensions"),
        ("size 0 of token_embd.weight", 33, "blocks of 32"),
        ("size 0 of token_embd.weight", 1 << 63, "has the shape"),
        ("size 1 of token_embd.weight", 0, "has the shape"),
        ("format of token_embd.weight", 99, "format number 99"),
        ("position of token_embd.weight", 7, "not aligned"),
        ("position of blk.0.attn_q.weight", 0, "overlaps"),
        ("position of token_embd.weight", (1 << 63) - 32, "is incomplete"),
        ("qwen2.block_count", 0xFFFFFFFF, "qwen2.block_count"),
        ("qwen2.block_count", 2, "qwen2.block_count is 2, and its tensors have 1"),
        ("qwen2.embedding_length", 64, "qwen2.embedding_length is 64"),
        ("qwen2.feed_forward_length", 1 << 30, "does not fit its tensors"),
        ("qwen2.attention.head_count", 0, "has no qwen2.attention.head_count"),
        ("qwen2.attention.head_count_kv", 1 << 20, "FILE"),
        ("qwen2.rope.freq_base", 0x7FC00000, "qwen2.rope.freq_base is 'nan'"),
    ],
)
def test_a_field_that_lies(whole: bytes, tmp_path: Path, what: str, value: int, sentence: str) -> None:
    assert sentence in refusal(tmp_path / "lying.gguf", with_number(whole, what, value))


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "is an empty file"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "Git LFS pointer"),
        (b"<!DOCTYPE html><html><body>Not found</body></html>", "web page"),
        ((40).to_bytes(8, "little") + b'{"__metadata__":{}}' + b" " * 80, "safetensors"),
        (b"tjgg" + b"\1" * 60, "before GGUF"),
        (b"PK\x03\x04" + b"\1" * 60, "zip archive"),
        (bytes(4096), "begins with zeros"),
        (b"something else entirely", "is not a GGUF file"),
    ],
)
def test_another_file_is_called_by_its_name(tmp_path: Path, content: bytes, sentence: str) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelLoadError) as caught:
        find_model(str(path))
    assert sentence in str(caught.value)
    assert str(path) in str(caught.value)


def test_layers_without_a_word_on_their_window(tmp_path: Path) -> None:
    def edit(writer: gguf.GGUFWriter) -> None:
        writer.add_sliding_window(16)
        writer.add_sliding_window_pattern([True, False, True])

    path = make_gguf(tmp_path / "tiny.gguf", "olmo2", layers=2, edit=edit)
    said = refusal(path, path.read_bytes())
    assert "olmo2.attention.sliding_window_pattern does not say of each of its 2 layers" in said
