"""Makes a tokenizer from the vocabulary in a GGUF file: the ids are those that llama.cpp gives the same text.

transformers also reads these vocabularies, but splits text in its own way where it does not know the file's, and its
versions differ. Source: https://github.com/ggml-org/llama.cpp/blob/master/src/llama-vocab.cpp
"""

from __future__ import annotations

from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from engine.errors import ModelLoadError, first_line
from engine.model.gguf.model_file import GgufModel
from engine.model.gguf.pre_tokenizers import pre_tokenizer
from engine.model.gguf.special_tokens import (
    CONTROL,
    UNKNOWN,
    USER_DEFINED,
    special_tokens,
    vocabulary,
)

_SPACE = "▁"
_NO_RSTRIP = frozenset({"<unk>", "<s>", "<|endoftext|>"})


def make_tokenizer(model: GgufModel) -> Any:
    """Returns transformers' tokenizer for a file's vocabulary, with its chat template.

    Raises:
        ModelLoadError: the file has no vocabulary, or one of a kind that is not supported, or a damaged one.
    """
    tokens = vocabulary(model)
    kind = model.metadata.get("tokenizer.ggml.model")
    if not tokens or kind in (None, "none", "no_vocab"):
        raise ModelLoadError(f"{model.path} holds no tokenizer. Use a GGUF file that has one.")
    makers = {"gpt2": _byte_level, "llama": _sentencepiece}
    if kind not in makers:
        raise ModelLoadError(
            f"{model.path} has a vocabulary of the kind {str(kind)[:40]}, which Deskmate does not read from a GGUF "
            "file. Use the safetensors weights of the model."
        )
    ids = {token: index for index, token in enumerate(tokens)}
    if len(ids) < len(tokens):
        twice = next(token for index, token in enumerate(tokens) if ids[token] != index)
        raise ModelLoadError(f"The vocabulary of {model.path} is damaged: it has the token {twice[:40]!r} twice.")
    try:
        tokenizer, adds_bos = makers[kind](model, ids)
    except Exception as error:  # the library raises plain exceptions
        if isinstance(error, ModelLoadError):
            raise
        raise ModelLoadError(f"The vocabulary of {model.path} cannot be loaded: {first_line(error)}") from error
    named = {name: tokens[index] for name, index in special_tokens(model).items()}
    _add_tokens(tokenizer, model, tokens)
    _add_ends(tokenizer, model, adds_bos)
    template = model.metadata.get("tokenizer.chat_template")
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        chat_template=template if isinstance(template, str) else None,
        clean_up_tokenization_spaces=False,
        **{f"{name}_token": text for name, text in named.items()},
    )


def _byte_level(model: GgufModel, ids: dict[str, int]) -> tuple[Tokenizer, bool]:
    """Returns a tokenizer for a byte-level vocabulary as GPT-2's, and whether prompts begin with ``bos`` by default."""
    kind = pre_tokenizer(model.metadata.get("tokenizer.ggml.pre"), str(model.path))
    merges = model.metadata.get("tokenizer.ggml.merges")
    if not isinstance(merges, list):
        raise ModelLoadError(f"The vocabulary of {model.path} is incomplete: it has no merges.")
    pairs = []
    for merge in merges:
        at = merge.find(" ", 1)
        pair = (merge[:at], merge[at + 1 :])
        if at > 0 and pair[0] in ids and pair[1] in ids and pair[0] + pair[1] in ids:
            pairs.append(pair)
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=pairs, ignore_merges=kind.takes_whole_words))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in kind.patterns),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, kind.adds_bos


def _sentencepiece(model: GgufModel, ids: dict[str, int]) -> tuple[Tokenizer, bool]:
    """Returns a tokenizer for a SentencePiece vocabulary, which merges the pair whose token has the highest score."""
    scores = model.metadata.get("tokenizer.ggml.scores")
    if scores is None or isinstance(scores, list) or len(scores) < len(ids):
        raise ModelLoadError(f"The vocabulary of {model.path} is incomplete: its tokens have no scores.")
    unknown = special_tokens(model).get("unk", 0)
    tokenizer = Tokenizer(
        models.BPE(
            vocab=ids,
            merges=_merges(ids, scores.tolist()),
            byte_fallback=True,
            fuse_unk=True,
            unk_token=vocabulary(model)[unknown],
        )
    )
    adds_space = model.metadata.get("tokenizer.ggml.add_space_prefix", True)
    replaced = normalizers.Replace(" ", _SPACE)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), replaced]) if adds_space else replaced
    steps: list[Any] = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if adds_space else steps)
    return tokenizer, True


def _merges(ids: dict[str, int], scores: list[float]) -> list[tuple[str, str]]:
    """Returns all pairs of tokens that make a token, those with the highest score first."""
    found: list[tuple[float, int, int, str, str]] = []
    for token, index in ids.items():
        for at in range(1, len(token)):
            left, right = token[:at], token[at:]
            if left in ids and right in ids:
                found.append((-scores[index], ids[left], ids[right], left, right))
    found.sort()
    return [(left, right) for _score, _left, _right, left, right in found]


def _add_tokens(tokenizer: Tokenizer, model: GgufModel, tokens: list[str]) -> None:
    """Adds the tokens that are found in a text before anything else."""
    kinds = model.metadata.get("tokenizer.ggml.token_type")
    if kinds is None or isinstance(kinds, list):
        kinds = []
    is_stripping = any(each in str(model.metadata.get("general.name", "")).lower() for each in ("phi-3", "phi3"))
    special: list[AddedToken] = []
    plain: list[AddedToken] = []
    named = set(special_tokens(model).values())
    for index, token in enumerate(tokens):
        kind = int(kinds[index]) if index < len(kinds) else CONTROL if index in named else 1
        if not token or kind not in (CONTROL, UNKNOWN, USER_DEFINED):
            continue
        is_special = kind != USER_DEFINED
        added = AddedToken(token, normalized=False, special=is_special, rstrip=is_stripping and token not in _NO_RSTRIP)
        (special if is_special else plain).append(added)
    tokenizer.add_special_tokens(special)
    tokenizer.add_tokens(plain)


def _add_ends(tokenizer: Tokenizer, model: GgufModel, adds_bos: bool) -> None:
    """Adds the tokens that a prompt begins and ends with."""
    texts, special = vocabulary(model), special_tokens(model)
    wanted = {
        "bos": model.metadata.get("tokenizer.ggml.add_bos_token", adds_bos),
        "eos": model.metadata.get("tokenizer.ggml.add_eos_token", False),
    }
    ends = {name: special[name] for name, is_wanted in wanted.items() if is_wanted and name in special}
    if not ends:
        return
    # placeholders: a token's text may hold characters that a template gives a meaning
    before, after = ["bos"] * ("bos" in ends), ["eos"] * ("eos" in ends)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[*before, "$A", *after],
        pair=[*before, "$A", *after, *(f"{name}:1" for name in before), "$B:1", *(f"{name}:1" for name in after)],
        special_tokens=[{"id": name, "ids": [index], "tokens": [texts[index]]} for name, index in ends.items()],
    )
