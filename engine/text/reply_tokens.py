"""Puts a reply's sampled token ids back into a later prompt, so that the prefix cache still matches.

Tokenizing a text gives one of the many token sequences that spell it. If the model sampled another one, the prefix
cache finds nothing of the reply. So the prompt is rendered as text, and wherever a reply appears in it unchanged, its
ids replace its text.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_MAX_EXTRA_TOKENS = 64  #: tokens after a reply's text: a stop string's, or those held back when it was stopped
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


@dataclass(frozen=True, slots=True)
class ReplyMessage:
    """An assistant message of a conversation, with its sampled tokens.

    Args:
        index: index of the message in the conversation.
        token_ids: the token ids that the model sampled for it.
    """

    index: int
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReplySpan:
    """A reply's place in a rendered conversation, as character offsets, and the ids to put there."""

    start: int
    end: int
    token_ids: tuple[int, ...]


class ReplyTokens:
    """Matches replies' token ids with their text.

    Args:
        tokenizer: the model's tokenizer.
        vocab_size: number of token ids the model knows; None uses the tokenizer's length.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, vocab_size: int | None = None) -> None:
        from transformers.utils import chat_template_utils

        self._decode = _decoder_of(tokenizer)
        # The markers that transformers puts around control tokens in users' text; older versions have none.
        self._markers = tuple(getattr(chat_template_utils, f"_CONTROL_TOKEN_{end}", "") for end in ("START", "END"))
        self._unmarked = str.maketrans("", "", "".join(self._markers))
        self._vocab_size = len(tokenizer) if vocab_size is None else vocab_size
        added = {
            token.content: token_id
            for token_id, token in tokenizer.added_tokens_decoder.items()
            # White space may be an added token too, but it would merge with the text before it.
            if token.special or not token.content.isspace()
        }
        self._added = added
        self._anchors: dict[int, str] = {}  # anchor token id -> the text it spells alone
        self._special = {token_id for token_id, token in tokenizer.added_tokens_decoder.items() if token.special}
        self._special.update(tokenizer.all_special_ids)
        self._begins_with_added = re.compile("|".join(map(re.escape, sorted(added, key=len, reverse=True))) or "(?!)")

    def is_marked(self, rendered: str) -> bool:
        """Whether the text may contain something that looks like a control token and is user text."""
        return any(marker in rendered for marker in self._markers)  # "" always is: other markers, or no support

    def trim_to_text(self, token_ids: Sequence[int], text: str) -> tuple[int, ...]:
        """Drops the ids after ``text`` and returns those that spell exactly ``text``; empty if there are none.

        The dropped ids are the token that ended the reply, a stop string, or text that was held back when the reply
        was stopped. A text with bytes that are no character (U+FFFD) has no such ids: decoding those bytes depends on
        their neighbours.
        """
        anchor = next(iter(self._added.values()), None)
        if anchor is None or not text or _REPLACEMENT in text:
            return ()
        kept = list(token_ids)
        while kept and kept[-1] in self._special:
            kept.pop()
        for _ in range(_MAX_EXTRA_TOKENS + 1):
            spelled = self._spelled(kept, anchor)
            # SentencePiece drops the space before the first word of a text; after the anchor the word is not the first.
            exact = spelled == text or (spelled == " " + text and self._decode(kept) == text)
            if exact and self._special.isdisjoint(kept):
                return tuple(kept)
            if len(spelled) < len(text) or not kept:
                return ()
            kept.pop()
        return ()

    def find_spans(
        self, rendered: str, segments: Sequence[str], replies: Sequence[ReplyMessage]
    ) -> Iterator[ReplySpan]:
        """Yields the places, in order, where a reply in a rendered conversation can be replaced by its ids.

        The reply must appear unchanged (templates may strip or rewrite it), and a control token must follow it: the
        text after the reply then tokenizes the same with and without it.

        Args:
            rendered: the rendered conversation.
            segments: the texts around and between the replies, one more than there are replies.
            replies: the replies in order.
        """
        start = len(segments[0])
        if not rendered.startswith(segments[0]):
            return
        for reply, following in zip(replies, segments[1:], strict=True):
            end = rendered.find(following, start)
            if end < 0:
                return
            shown = rendered[start:end].translate(self._unmarked)
            control = self._begins_with_added.match(following)
            if control and self._are_plain(reply.token_ids) and _REPLACEMENT not in shown:
                spelled = self._spelled(reply.token_ids, self._added[control[0]])
                # SentencePiece drops the space before the first word of a text; here the word is not the first.
                space = len(spelled) - len(shown)
                if spelled == " " * space + shown and rendered.endswith(" " * space, 0, start) and space <= 1:
                    yield ReplySpan(start - space, end, reply.token_ids)
            start = end + len(following)

    def _are_plain(self, token_ids: Sequence[int]) -> bool:
        """Whether the model knows all ids and none is a control token, whose name a reply may spell in letters."""
        known = bool(token_ids) and min(token_ids) >= 0 and max(token_ids) < self._vocab_size
        return known and self._special.isdisjoint(token_ids)

    def _spelled(self, token_ids: Sequence[int], anchor: int) -> str:
        """Returns the text that the ids add after the anchor token, special tokens by their names."""
        before = self._anchors.get(anchor)
        if before is None:
            before = self._anchors[anchor] = self._decode([anchor])
        both = self._decode([anchor, *token_ids])
        return both[len(before) :] if both.startswith(before) else ""


class TextOnlyTokenizer:
    """Wraps a tokenizer so that ``apply_chat_template`` returns the text instead of tokenizing it.

    The text is exactly what ``apply_chat_template`` would tokenize, with the control tokens in users' text marked.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def __call__(self, text: str, **_options: object) -> dict[str, str]:
        return {"input_ids": text}

    def render(self, conversation: Sequence[dict[str, Any]], **options: Any) -> str:
        """Returns the text that ``apply_chat_template(conversation, tokenize=True, return_dict=False)`` tokenizes."""
        template = type(self._tokenizer).apply_chat_template
        rendered = template(cast("PreTrainedTokenizerBase", self), list(conversation), **options)
        return cast(str, rendered)


def make_sentinels(replies: Sequence[ReplyMessage]) -> list[str]:
    """Makes a random word per reply; rendered in the reply's place, it shows what the template puts around it."""
    nonce = secrets.token_hex(16)
    return [f"reply{nonce}n{number}n" for number in range(len(replies))]


def split_at(text: str, words: Sequence[str]) -> list[str] | None:
    """Splits a text at the words; None unless each word occurs exactly once, in this order."""
    parts = []
    for word in words:
        head, found, text = text.partition(word)
        if not found or word in text:
            return None
        parts.append(head)
    return [*parts, text]


def _decoder_of(tokenizer: PreTrainedTokenizerBase) -> Callable[[list[int]], str]:
    backend: Any = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        return lambda ids: str(backend.decode(ids, skip_special_tokens=False))
    return lambda ids: str(tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))
