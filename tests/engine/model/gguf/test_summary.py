"""What a list shows of a GGUF file."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine import ModelLoadError, summarize_gguf
from testing.gguf_header import F32, gguf_bytes


def written(path: Path, *arguments: object, **options: object) -> Path:
    path.write_bytes(gguf_bytes(*arguments, **options))  # type: ignore[arg-type]
    return path


def test_format_sizes_and_context(tmp_path: Path) -> None:
    summary = summarize_gguf(written(tmp_path / "a.gguf"))
    assert (summary.number_format, summary.context_length, summary.can_chat) == ("Q4_1", 512, True)
    assert summary.nbytes == summary.nbytes_per_token == 64 * 32 // 32 * 20


def test_a_file_that_names_no_recipe_has_the_format_of_most_bytes(tmp_path: Path) -> None:
    assert summarize_gguf(written(tmp_path / "a.gguf", {"general.file_type": 1024}, kind=F32)).number_format == "F32"


def test_a_token_reads_no_embeddings_beside_an_output_layer_and_no_idle_experts(tmp_path: Path) -> None:
    shapes = {"token_embd.weight": (10, 10), "output.weight": (10, 10), "blk.0.ffn_up_exps.weight": (8, 100)}
    keys = {"llama.expert_count": 8, "llama.expert_used_count": 2}
    summary = summarize_gguf(written(tmp_path / "a.gguf", keys, shapes, kind=F32))
    assert (summary.nbytes, summary.nbytes_per_token) == (4000, 400 + 800)


def test_the_parts_of_a_split_file_count_together(tmp_path: Path) -> None:
    for number, name in ((1, "token_embd.weight"), (2, "output.weight")):
        written(tmp_path / f"a-0000{number}-of-00002.gguf", {"split.count": 2}, {name: (64, 32)})
    assert summarize_gguf(tmp_path / "a-00001-of-00002.gguf").nbytes == 2 * 1280


@pytest.mark.parametrize("keys", [{"general.architecture": "nomic-bert"}, {"general.type": "adapter"}])
def test_what_writes_no_text_cannot_chat(tmp_path: Path, keys: dict[str, object]) -> None:
    assert not summarize_gguf(written(tmp_path / "a.gguf", keys)).can_chat


def test_a_file_without_an_architecture_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="does not say which architecture"):
        summarize_gguf(written(tmp_path / "a.gguf", {"general.architecture": 7}))
