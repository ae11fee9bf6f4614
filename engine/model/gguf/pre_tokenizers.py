"""How byte-level vocabularies split text before they merge bytes, by the names that GGUF files give them.

Each name stands for regular expressions that are applied one after another: what one matches, and what is between its
matches, are pieces for the next. Source: ``llm_tokenizer_bpe`` and ``tokenizer_pre`` in
https://github.com/ggml-org/llama.cpp/blob/master/src/llama-vocab.cpp, in the spelling of the models' own tokenizers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from engine.errors import ModelLoadError

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_WORDS = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_LLAMA3 = rf"{_WORDS}|\p{{N}}{{1,3}}|{_SYMBOLS}|{_REST}"
_QWEN2 = rf"{_WORDS}|\p{{N}}|{_SYMBOLS}|{_REST}"
_QWEN35 = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_REST}"
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = (rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+", rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*")
_SLASHED_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_TEKKEN = rf"{_CASED[0]}|{_CASED[1]}|\p{{N}}|{_SLASHED_SYMBOLS}|{_REST}"
_GPT4O = rf"{_CASED[0]}{_CONTRACTIONS}?|{_CASED[1]}{_CONTRACTIONS}?|\p{{N}}{{1,3}}|{_SLASHED_SYMBOLS}|{_REST}"
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
    rf"|{_REST}",
)
_DEFAULT = (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """How text is split, and what else a vocabulary's name implies."""

    patterns: tuple[str, ...]
    takes_whole_words: bool = False  #: a piece that is a token is one, whatever the merges make of it
    adds_bos: bool = False  #: unless the file has ``add_bos_token``


_GROUPS: Final = {
    PreTokenizer(_DEFAULT): "default",
    PreTokenizer((_LLAMA3,), takes_whole_words=True, adds_bos=True): (
        "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano"
    ),
    PreTokenizer((_LLAMA3,)): "dbrx smaug-bpe glm4 chatglm-bpe",
    PreTokenizer((_QWEN2,)): "qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2",
    PreTokenizer((_QWEN35,)): "qwen35",
    PreTokenizer((_TEKKEN,), takes_whole_words=True, adds_bos=True): "tekken",
    PreTokenizer((_GPT4O,)): "gpt-4o llama4 kanana2 talkie minimax-m2",
    PreTokenizer((r"\p{N}", _GPT2)): "starcoder refact command-r smollm codeshell exaone minerva-7b mellum2",
    PreTokenizer((_GPT2,)): (
        "gpt-2 phi-2 gigachat a.x-4.0 mellum mpt olmo jais trillion granite-docling exaone4 modern-bert"
    ),
    PreTokenizer(_DEEPSEEK3): "deepseek-v3 hunyuan-dense joyai-llm",
    PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]")): "falcon",
}
PRE_TOKENIZERS: Final = {name: kind for kind, names in _GROUPS.items() for name in names.split()}


def pre_tokenizer(name: str | None, model: str) -> PreTokenizer:
    """Returns the pre-tokenizer of a name; files of early 2024 have none, and llama.cpp takes its default for them.

    Raises:
        ModelLoadError: the name is not known.
    """
    known = PRE_TOKENIZERS.get(name or "default")
    if known is None:
        raise ModelLoadError(
            f"{model} splits text in a way that Deskmate does not know (tokenizer.ggml.pre is {str(name)[:40]}). Use "
            "the safetensors weights of the model."
        )
    return known
