"""Trains the guide's SentencePiece tokenizer and writes it the way transformers loads it."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import sentencepiece
from tokenizers import AddedToken, Tokenizer, decoders, normalizers, processors
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

UNKNOWN, BEGIN, END, PAD = "<|unknown|>", "<|begin|>", "<|end|>", "<|pad|>"
ROLES = ("system", "user", "assistant")
SPECIAL = (UNKNOWN, BEGIN, END, PAD, *(f"<|{role}|>" for role in ROLES))

# Earlier turns render to the same text whatever follows, so a prefix cache keeps hitting. Nobody can write a role
# marker into a message: "<|" is broken up before the text reaches the tokenizer. The space in front of what people
# write gives a word the same token at the start of a message as in its middle.
CHAT_TEMPLATE = """\
{{- bos_token -}}
{%- for message in messages -%}
    {%- if message['role'] not in ['system', 'user', 'assistant'] -%}
        {{- raise_exception('The guide knows the roles system, user and assistant, not ' + message['role'] + '.') -}}
    {%- endif -%}
    {%- set space = '' if message['role'] == 'assistant' else ' ' -%}
    {{- '<|' + message['role'] + '|>' + space + message['content'].replace('<|', '< |') + eos_token -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<|assistant|>' -}}
{%- endif -%}
"""


def train(texts: Sequence[str], vocabulary: int) -> bytes:
    """Train a SentencePiece BPE model with byte fallback; returns the ``tokenizer.model`` file's content.

    The text is neither normalised nor padded: decoding an encoding gives the text back, byte for byte.
    """
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([line for text in texts for line in text.splitlines() if line]),
        model_writer=model,
        model_type="bpe",
        vocab_size=vocabulary,
        byte_fallback=True,
        character_coverage=0.9999,
        normalization_rule_name="identity",
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
        split_digits=True,
        unk_id=0,
        bos_id=1,
        eos_id=2,
        pad_id=3,
        unk_piece=UNKNOWN,
        bos_piece=BEGIN,
        eos_piece=END,
        pad_piece=PAD,
        control_symbols=[f"<|{role}|>" for role in ROLES],
        num_threads=1,  # one thread: the same pieces every time
        minloglevel=2,
    )
    return model.getvalue()


def save(model: bytes, folder: Path, context: int) -> PreTrainedTokenizerFast:
    """Write ``tokenizer.model`` and what transformers loads (tokenizer.json, its configuration, chat template)."""
    (folder / "tokenizer.model").write_bytes(model)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=_fast(model),
        unk_token=UNKNOWN,
        bos_token=BEGIN,
        eos_token=END,
        pad_token=PAD,
        model_max_length=context,
        clean_up_tokenization_spaces=False,
        padding_side="left",
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(folder)
    return tokenizer


def _fast(model: bytes) -> Tokenizer:
    """The same BPE for the tokenizers library: its merges are the pieces' splits, in the order they were learned."""
    pieces = sentencepiece.SentencePieceProcessor(model_proto=model)
    vocabulary = {pieces.id_to_piece(i): i for i in range(pieces.get_piece_size())}
    fixed = (pieces.is_control, pieces.is_byte, pieces.is_unknown)
    learned = [piece for piece, i in vocabulary.items() if not any(kind(i) for kind in fixed)]
    known = set(learned)
    merges = [
        (piece[:cut], piece[cut:])
        for piece in sorted(learned, key=lambda piece: (-pieces.get_score(vocabulary[piece]), vocabulary[piece]))
        for cut in range(1, len(piece))
        if piece[:cut] in known and piece[cut:] in known
    ]
    settings: dict[str, Any] = {"unk_token": UNKNOWN, "fuse_unk": True, "byte_fallback": True}
    tokenizer = Tokenizer(BPE(vocabulary, merges, **settings))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A", pair=f"{BEGIN} $A {BEGIN} $B", special_tokens=[(BEGIN, vocabulary[BEGIN])]
    )
    return tokenizer
