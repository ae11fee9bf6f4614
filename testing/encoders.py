"""Saves tiny random encoders of the families that the engine is tested with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoConfig, AutoModel, PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from testing.models import draw_weights
from testing.tokenizers import CORPUS, byte_level_tokenizer

MAX_TOKENS = 96


def make_encoder(
    path: Path,
    family: str = "bert",
    *,
    seed: int = 0,
    hidden: int = 32,
    pooling: dict[str, Any] | None = None,
    modules: tuple[str, ...] = ("Transformer", "Pooling", "Normalize"),
    prompts: dict[str, str] | None = None,
    config: dict[str, Any] | None = None,
) -> Path:
    """Saves a tiny fp32 encoder with its sentence-transformers files; returns ``path``.

    Args:
        family: ``bert``, ``xlm-roberta`` or ``qwen3`` (causal; last-token pooling).
        pooling: of ``1_Pooling/config.json``; default: the family's.
        modules: of ``modules.json``; empty writes none of these files.
        config: entries of ``config.json`` beside the family's.
    """
    causal = family == "qwen3"
    tokenizer = _with_end(byte_level_tokenizer(400, chat_template=False)) if causal else _wordpiece(family)
    values: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "pad_token_id": tokenizer.pad_token_id,
        # RoBERTa's table begins to count after the padding row
        "max_position_embeddings": MAX_TOKENS + (tokenizer.pad_token_id + 1 if family == "xlm-roberta" else 0),
    }
    values |= {"num_key_value_heads": 2, "head_dim": 8} if causal else {"type_vocab_size": 2}
    built = AutoConfig.for_model(family, **values, **(config or {}))
    model: PreTrainedModel = AutoModel.from_config(built).to(torch.float32)
    draw_weights(model, seed=seed, std=0.25)
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    if modules:
        steps = [
            {"idx": number, "name": str(number), "path": f"{number}_{kind}" if number else "", "type": f"x.{kind}"}
            for number, kind in enumerate(modules)
        ]
        (path / "modules.json").write_text(json.dumps(steps))
        (path / "1_Pooling").mkdir(exist_ok=True)
        default = {"pooling_mode_lasttoken": True} if causal else {"pooling_mode_mean_tokens": True}
        (path / "1_Pooling" / "config.json").write_text(json.dumps(pooling or default))
        (path / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": MAX_TOKENS}))
    if prompts is not None:
        (path / "config_sentence_transformers.json").write_text(json.dumps({"prompts": prompts}))
    return path


def _wordpiece(family: str) -> PreTrainedTokenizerBase:
    """Trains a WordPiece tokenizer with the special tokens of a family, in the order of its ids."""
    begin, pad, end, unknown = ("<s>", "<pad>", "</s>", "<unk>") if family == "xlm-roberta" else (
        "[CLS]", "[PAD]", "[SEP]", "[UNK]"
    )  # fmt: skip
    specials = [begin, pad, end, unknown] if family == "xlm-roberta" else [pad, unknown, begin, end]
    tokenizer = Tokenizer(models.WordPiece(unk_token=unknown))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.train_from_iterator(
        CORPUS, trainers.WordPieceTrainer(vocab_size=300, special_tokens=specials, show_progress=False)
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{begin} $A {end}", special_tokens=[(one, tokenizer.token_to_id(one)) for one in (begin, end)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, cls_token=begin, sep_token=end, pad_token=pad, unk_token=unknown
    )


def _with_end(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """Adds the padding token after each text, as Qwen 3 Embedding's tokenizer does."""
    end, id = tokenizer.pad_token, tokenizer.pad_token_id
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {end}", special_tokens=[(end, id)]
    )
    return tokenizer
