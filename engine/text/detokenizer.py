"""Converts a reply's tokens to text that is safe to show."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

from engine.outputs import ToolCallDelta
from engine.text.reply_formats.parser import ReplyParser, ReplyParts
from engine.text.stop_regex import RegexStopChecker
from engine.text.stop_strings import StopChecker
from engine.text.word_matching import WordGuard

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"  #: decoders return it for bytes that are not (yet) a character


class IncrementalDetokenizer:
    """Turns growing token ids into growing text, never showing half a character.

    The tokenizer itself decodes a short window of tokens; a token contributes the text of the window with it, less
    the text already emitted (the idea is TGI's and vLLM's). So leading spaces, merges of bytes, added tokens and
    skipped special tokens come out as the tokenizer means them. The window is cut where the text ends with a whole
    character, so the cost of a token does not grow with the reply.

    All pieces joined equal ``tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)``,
    for all ids with byte-level and WordPiece tokenizers, and with byte-fallback ones (SentencePiece) whenever each run
    of byte tokens is valid UTF-8. In an invalid run the tokenizer would take back characters it had already decoded;
    here they stay, the invalid bytes show as U+FFFD, and the text after the run is right.
    """

    _WINDOW = 6  # tokens; a longer window is cut. A cut decodes once more, but each token decodes the whole window
    _MAX_CHARACTER_TOKENS = 4  # tokens: a character is at most 4 bytes of UTF-8, a token at least one

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._decode = _decoder_of(tokenizer)
        self._whole_tokens = _WHOLE_TOKENS.setdefault(tokenizer, {})
        self._window: list[int] = []
        self._text = ""  # the decoded window
        self._emitted = 0  # characters of the window's text that were returned
        self._stable_end = 0  # tokens; the window up to here ends with a whole character
        self._previous_stable_end = 0  # tokens; the stable end before that

    @property
    def is_within_character(self) -> bool:
        """Whether the tokens end within a character, as far as can be told."""
        return self._text.endswith(REPLACEMENT) and len(self._window) - self._stable_end < self._MAX_CHARACTER_TOKENS

    def push(self, token_ids: Sequence[int]) -> str:
        """Adds tokens and returns the text that became certain with them; may be empty."""
        if len(token_ids) > 1 and (text := self._add_together(token_ids)) is not None:
            return text
        return "".join([self.add(token) for token in token_ids])

    def _add_together(self, token_ids: Sequence[int]) -> str | None:
        """Adds tokens by decoding once, to the text that they give one by one.

        Returns None, and adds nothing, unless each of them is whole characters.
        """
        if self._stable_end < len(self._window) or not all(map(self._is_whole, token_ids)):
            return None
        text = self._decode([*self._window, *token_ids])
        if REPLACEMENT in text:
            return None
        new = text[self._emitted :]
        is_cut = False
        for token in token_ids:
            self._window.append(token)
            is_cut |= self._extend_stable_end()
        self._text = self._decode(self._window) if is_cut else text
        self._emitted = len(self._text)
        return new

    def _is_whole(self, token: int) -> bool:
        """Whether a token is whole characters: special tokens, and ids outside the vocabulary, are not."""
        known = self._whole_tokens.get(token)
        if known is None:
            twice = self._decode([token, token])
            known = self._whole_tokens[token] = twice != "" and REPLACEMENT not in twice
        return known

    def finish(self) -> str:
        """Returns the rest: bytes that never became a character, as U+FFFD."""
        rest = self._text[self._emitted :]
        self._window.clear()
        self._text = ""
        self._emitted = self._stable_end = self._previous_stable_end = 0
        return rest

    def add(self, token: int) -> str:
        """Adds one token; see :meth:`push`."""
        window = [*self._window, token]
        text = self._decode(window)
        if text == self._text and self._decode([token, token]) == "":
            return ""  # special, or not in the vocabulary: it adds no text
        self._window = window
        self._text = text
        if not text.endswith(REPLACEMENT):  # the common case
            new = text[self._emitted :]
            if self._extend_stable_end():
                self._text = self._decode(self._window)
                self._emitted = len(self._text)
            else:
                self._emitted = max(self._emitted, len(text))
            return new
        doubtful = len(text) - len(text.rstrip(REPLACEMENT))
        pending = len(self._window) - self._stable_end
        # If more tokens are pending than a character can have, only the last U+FFFD can still become one.
        certain = len(text) - (1 if pending > self._MAX_CHARACTER_TOKENS else doubtful)
        new = text[self._emitted : certain]
        self._emitted = max(self._emitted, certain)
        if pending % self._WINDOW == 0:
            self._cut_between_characters()
        return new

    def _extend_stable_end(self) -> bool:
        """Moves the stable end to the end of the window, and cuts a long window; returns whether it was cut.

        A cut keeps the tokens of the last whole characters: decoding the next token depends on a token before it.
        """
        self._previous_stable_end, self._stable_end = self._stable_end, len(self._window)
        if len(self._window) <= self._WINDOW:
            return False
        del self._window[: self._previous_stable_end]
        self._previous_stable_end, self._stable_end = 0, len(self._window)
        return True

    def _cut_between_characters(self) -> None:
        """Shortens a window that has long not ended with a whole character (noise, or characters across tokens)."""
        for cut in range(len(self._window) - 1, 0, -1):
            head = self._decode(self._window[:cut])
            tail = self._decode(self._window[cut:])
            if head + tail == self._text:
                del self._window[:cut]
                self._text = tail
                self._emitted = max(0, self._emitted - len(head))
                self._stable_end = self._previous_stable_end = 0
                return


#: What :meth:`IncrementalDetokenizer._is_whole` found, by token, of each tokenizer.
_WHOLE_TOKENS: WeakKeyDictionary[PreTrainedTokenizerBase, dict[int, bool]] = WeakKeyDictionary()


def _decoder_of(tokenizer: PreTrainedTokenizerBase) -> Callable[[list[int]], str]:
    """Returns the cheapest decode function: a fast tokenizer's Rust backend, without the Python layers above it."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        return partial(backend.decode, skip_special_tokens=True)
    return lambda ids: str(tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))


class DetokenizedText(NamedTuple):
    """What became certain of a reply, and the stop string or expression that ended it, if one did."""

    text: str = ""  #: of the answer
    stop: str | None = None
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()


class Detokenizer:
    """Converts one reply from tokens to text: detokenizes, splits it into its parts, checks stop strings.

    The token that ends a reply (end of sequence, stop token) is not part of its text and is not pushed.

    Args:
        tokenizer: the model's tokenizer.
        stop: stop strings; the reply ends before the first one.
        min_tokens: text of this many first tokens is not searched for stop strings.
        guard: holds back text that must not end the reply.
        partial_reply: tokens that the reply continues from; their text is not returned again.
        parser: splits the reply into thinking, tool calls and answer; without one, all of it is the answer.
        special_tokens: names of the special tokens that the parser reads, by id; other special tokens add no text.
        stop_in_reasoning: stop strings and the guard act on all of the reply, not on the answer alone.
        stop_regex: regular expressions; the reply also ends before the first match of one.

    Raises:
        ValueError: an expression cannot be used, see :func:`engine.text.automaton.compile_expressions`.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        stop: Sequence[str] = (),
        min_tokens: int = 0,
        guard: WordGuard | None = None,
        partial_reply: Sequence[int] = (),
        *,
        parser: ReplyParser | None = None,
        special_tokens: Mapping[int, str] | None = None,
        stop_in_reasoning: bool = False,
        stop_regex: Sequence[str] = (),
    ) -> None:
        self._guard = guard
        self._detokenizer = IncrementalDetokenizer(tokenizer)
        self._parser = parser
        self._special_tokens = special_tokens or {}
        self._checks_all = stop_in_reasoning or parser is None
        self._checker = RegexStopChecker(stop, stop_regex) if stop_regex else StopChecker(stop)
        self._min_tokens_left = min_tokens
        self.may_stop = bool(stop or stop_regex)  #: whether text may end the reply
        for token in partial_reply:
            text = self._add(token)
            parts = ReplyParts(text) if parser is None else parser.push(text)
            self._checker.skip(text if self._checks_all else parts.text)

    @property
    def is_within_character(self) -> bool:
        """Whether the reply's tokens end within a character."""
        return self._detokenizer.is_within_character

    def push(self, token_ids: Sequence[int]) -> DetokenizedText:
        """Adds tokens. After a stop string everything is ignored."""
        texts: Iterable[str]
        if self.may_stop or not self._special_tokens.keys().isdisjoint(token_ids):
            texts = (self._add(token) for token in token_ids if self._checker.matched is None)
        else:
            texts = [self._detokenizer.push(token_ids)]  # decoded once
        certain, reasoning = "", ""
        calls: tuple[ToolCallDelta, ...] = ()
        for text in texts:
            parts = self._split(text)
            reasoning += parts.reasoning
            calls += parts.tool_calls
            if self._min_tokens_left > 0:
                self._min_tokens_left -= 1
                self._checker.skip(parts.text)
                certain += parts.text
            else:
                certain += self._checker.push(parts.text)
        shown = self._shown(certain, is_end=self._checker.matched is not None)
        return DetokenizedText(shown.text, self._checker.matched, reasoning + shown.reasoning, calls + shown.tool_calls)

    def finish(self) -> DetokenizedText:
        """Returns the rest of the reply when it ended without a stop string; empty after one."""
        if self._checker.matched is not None:
            return DetokenizedText()
        rest = self._split(self._detokenizer.finish(), is_end=True)
        shown = self._shown(self._checker.push(rest.text) + self._checker.release(), is_end=True)
        return DetokenizedText(shown.text, None, rest.reasoning + shown.reasoning, rest.tool_calls + shown.tool_calls)

    def _add(self, token: int) -> str:
        name = self._special_tokens.get(token)
        return self._detokenizer.add(token) if name is None else self._detokenizer.finish() + name

    def _split(self, text: str, *, is_end: bool = False) -> ReplyParts:
        """Splits text before it is checked, where only the answer is checked."""
        if self._parser is None or self._checks_all:
            return ReplyParts(text)
        return self._parsed(self._parser, text, is_end)

    def _shown(self, certain: str, *, is_end: bool) -> ReplyParts:
        """Returns what may be shown of text that was checked, split where all of the reply is checked."""
        text = certain if self._guard is None else self._guard.push(certain)
        if self._parser is None or not self._checks_all:
            return ReplyParts(text)
        return self._parsed(self._parser, text, is_end)

    @staticmethod
    def _parsed(parser: ReplyParser, text: str, is_end: bool) -> ReplyParts:
        parts = parser.push(text)
        if not is_end:
            return parts
        rest = parser.finish()
        return ReplyParts(parts.text + rest.text, parts.reasoning + rest.reasoning, parts.tool_calls + rest.tool_calls)
