"""A reply's own token ids, put back into a later prompt: reading it again would split it otherwise.

Tokenizing a text gives one of the many token sequences that spell it; a model that sampled another one finds nothing
of its reply in the prefix cache. So the prompt is rendered as text, and where a reply stands in it as it was given
out, its ids take the place of its text.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_MAX_EXTRA_TOKENS = 64  #: behind the text of a reply: of a stop string, or what was held back when it was stopped
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


@dataclass(frozen=True, slots=True)
class ReplyMessage:
    """An assistant's message as it stands in a conversation.

    Args:
        index: of the message.
        token_ids: what the model sampled when it wrote that.
    """

    index: int
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReplySpan:
    """Where a reply stands in a rendered conversation, as character offsets, and the ids to put there."""

    start: int
    end: int
    token_ids: tuple[int, ...]


class ReplyTokens:
    """Knows which token ids spell which text.

    Args:
        tokenizer: the model's.
        vocab_size: ids at and above are not the model's; None takes the tokenizer's word.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, vocab_size: int | None = None) -> None:
        from transformers.utils import chat_template_utils

        self._decode = _decoder_of(tokenizer)
        # What transformers wraps around control tokens in people's text; not there in versions that do not.
        self._markers = tuple(getattr(chat_template_utils, f"_CONTROL_TOKEN_{end}", "") for end in ("START", "END"))
        self._unmarked = str.maketrans("", "", "".join(self._markers))
        self._vocab_size = len(tokenizer) if vocab_size is None else vocab_size
        added = {
            token.content: token_id
            for token_id, token in tokenizer.added_tokens_decoder.items()
            # White space may be an added token too, but it would join with what stands before it.
            if token.special or not token.content.isspace()
        }
        self._added = added
        self._anchors: dict[int, str] = {}  # what each spells alone
        self._special = {token_id for token_id, token in tokenizer.added_tokens_decoder.items() if token.special}
        self._special.update(tokenizer.all_special_ids)
        self._begins_with_added = re.compile("|".join(map(re.escape, sorted(added, key=len, reverse=True))) or "(?!)")

    def is_marked(self, rendered: str) -> bool:
        """There may be something in it that looks like a control token and is text."""
        return any(marker in rendered for marker in self._markers)  # "" is: that version has others, or none

    def trim_to_text(self, token_ids: Sequence[int], text: str) -> tuple[int, ...]:
        """The ids that spell exactly ``text``: these, less what follows it. Empty where there are none.

        What follows is the token that ended the reply, a stop string, or text that was held back when it was stopped.
        A text with bytes that are no character (U+FFFD) has none: how such bytes are read depends on their neighbours.
        """
        anchor = next(iter(self._added.values()), None)
        if anchor is None or not text or _REPLACEMENT in text:
            return ()
        kept = list(token_ids)
        while kept and kept[-1] in self._special:
            kept.pop()
        for _ in range(_MAX_EXTRA_TOKENS + 1):
            spelled = self._spelled(kept, anchor)
            # SentencePiece drops the space before the first word of a text: behind the anchor, it is not the first.
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
        """Where replies stand in a rendered conversation and can be replaced by their ids, in order.

        A reply must stand there to the letter (templates may strip or rewrite it), and a control token must follow:
        what is tokenized behind it is then the same with it and without.

        Args:
            rendered: the conversation.
            segments: what stands between the replies, one more than those.
            replies: in their order.
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
                # SentencePiece drops the space before the first word of a text, and here it is not the first.
                space = len(spelled) - len(shown)
                if spelled == " " * space + shown and rendered.endswith(" " * space, 0, start) and space <= 1:
                    yield ReplySpan(start - space, end, reply.token_ids)
            start = end + len(following)

    def _are_plain(self, token_ids: Sequence[int]) -> bool:
        """The model knows them, and none is a control token, whose name a reply may spell in letters."""
        known = bool(token_ids) and min(token_ids) >= 0 and max(token_ids) < self._vocab_size
        return known and self._special.isdisjoint(token_ids)

    def _spelled(self, token_ids: Sequence[int], anchor: int) -> str:
        """What ids add to a text that stands before them, special tokens by their names."""
        before = self._anchors.get(anchor)
        if before is None:
            before = self._anchors[anchor] = self._decode([anchor])
        both = self._decode([anchor, *token_ids])
        return both[len(before) :] if both.startswith(before) else ""


class TextOnlyTokenizer:
    """Stands in for a tokenizer while it renders a template, and gives the text instead of tokenizing it.

    So the text is exactly what ``apply_chat_template`` would tokenize, control tokens in people's text marked.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def __call__(self, text: str, **_options: object) -> dict[str, str]:
        return {"input_ids": text}

    def render(self, conversation: Sequence[dict[str, Any]], **options: Any) -> str:
        """What ``apply_chat_template(conversation, tokenize=True, return_dict=False, ...)`` would tokenize."""
        template = type(self._tokenizer).apply_chat_template
        rendered = template(cast("PreTrainedTokenizerBase", self), list(conversation), **options)
        return cast(str, rendered)


def make_sentinels(replies: Sequence[ReplyMessage]) -> list[str]:
    """A word for each reply, in no conversation yet: rendered in its place, it shows what the template puts around."""
    nonce = secrets.token_hex(16)
    return [f"reply{nonce}n{number}n" for number in range(len(replies))]


def split_at(text: str, words: Sequence[str]) -> list[str] | None:
    """What stands between words; None unless each is there once, in this order."""
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
