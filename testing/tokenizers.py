"""Trains small real tokenizers: byte-level BPE (as Qwen's) and SentencePiece (as Llama's).

Training takes a fraction of a second and is deterministic. Each builder trains once per process and returns a
fresh tokenizer, so that a test may modify it.
"""

from __future__ import annotations

import tempfile
from functools import cache
from io import BytesIO
from pathlib import Path

import sentencepiece
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

CORPUS: tuple[str, ...] = (
    "Deskmate is a chat application with its own inference engine inside.",
    "How do I make the answers less random? Lower the temperature, or set it to zero.",
    "The quick brown fox jumps over the lazy dog, and the dog does not mind at all.",
    "A reply belongs to the server: close the tab, come back, and the whole reply is there.",
    "def add(a, b):\n    return a + b\n\n\nprint(add(1, 2))\n",
    "Grüße aus Köln, à bientôt, mañana será otro día, dziękuję bardzo.",
    "日本語のテキストと中文文本。 こんにちは、世界！",
    "Привет, как дела? Всё хорошо, спасибо.",
    "0123456789 3.14159 1,000,000 2026-01-31 12:34:56",
    "Emoji: 😀 👍🏽 👩‍👩‍👧‍👦 🇩🇪 and combining marks: e\u0301 n\u0303.",
)

CHATML_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

# As strict as Mistral's: roles alternate, and a system message is refused.
INST_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
    "{% else %}{{ ' ' + message['content'] + eos_token }}{% endif %}"
    "{% endfor %}"
)


@cache
def _trained_byte_level(vocab_size: int) -> str:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - 3,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return str(tokenizer.to_str())


def byte_level_tokenizer(vocab_size: int = 400, *, chat_template: bool = True) -> PreTrainedTokenizerBase:
    """Makes a byte-level BPE with ChatML markers: 256 bytes, merges, then ``<|endoftext|> <|im_start|> <|im_end|>``.

    The corpus yields only a few hundred merges, so the vocabulary may be smaller than ``vocab_size``.
    """
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(_trained_byte_level(vocab_size)),
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
        clean_up_tokenization_spaces=False,
    )
    if chat_template:
        tokenizer.chat_template = CHATML_TEMPLATE
    return tokenizer


@cache
def _trained_sentencepiece(vocab_size: int) -> bytes:
    model = BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(line for text in CORPUS for line in text.splitlines() if line),
        model_writer=model,
        model_type="bpe",
        vocab_size=vocab_size,
        byte_fallback=True,
        hard_vocab_limit=False,
        character_coverage=0.98,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        num_threads=1,
        minloglevel=2,
    )
    return model.getvalue()


def sentencepiece_tokenizer(vocab_size: int = 400, *, chat_template: bool = True) -> PreTrainedTokenizerBase:
    """Makes a SentencePiece BPE with byte fallback, loaded as Llama's: ``<unk> <s> </s>``, 256 bytes, pieces."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "tokenizer.model").write_bytes(_trained_sentencepiece(vocab_size))
        tokenizer: PreTrainedTokenizerBase = LlamaTokenizer.from_pretrained(folder)
    if chat_template:
        tokenizer.chat_template = INST_TEMPLATE
    return tokenizer
