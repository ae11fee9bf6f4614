"""A conversation to the token ids a model continues."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateError

from engine.errors import InvalidRequestError, ModelLoadError
from engine.interface import ChatMessage
from engine.text.content_format import ContentFormat, detect_content_format
from engine.text.prompt_cache import RenderedPrompt, RenderedPromptCache
from engine.text.reply_tokens import ReplyMessage, ReplyTokens, TextOnlyTokenizer, make_sentinels, split_at

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

FALLBACK_TEMPLATE = (
    "{{ bos_token or '' }}"
    "{% for message in messages %}{{ message['role'].capitalize() + ': ' + message['content'] + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
"""For models without a chat template: a plain dialogue, which any language model can continue."""

MAX_SHARED = 64
"""Beginnings of conversations whose shared tokens are remembered."""

MAX_SHARED_CHARACTERS = 1 << 22
"""Most characters of the texts by which they are found, all together."""

MAX_INLINE_CHARACTERS = 4000
"""So many characters take a millisecond or two at the most, and less where the conversation was seen before."""


class ChatTemplate:
    """Renders conversations and plain prompts to token ids. Safe to use from several threads.

    What people write cannot forge a control token: ``<|im_end|>`` in a message is encoded as those characters,
    only the template itself ends a turn. This is transformers' ``sanitize_control_tokens``; where the installed
    transformers lacks it, or the tokenizer produces the control token from plain characters in any case (then the
    message is refused), that is what the tokenizer allows.

    A reply that comes with its token ids keeps them, so that the next turn finds it in the prefix cache, wherever the
    template shows it as it was given out; see :class:`~engine.text.reply_tokens.ReplyTokens`. A prompt that begins with one
    of those before is tokenized from there on.

    Args:
        tokenizer: the model's.
        vocab_size: number of token ids the model knows; None is the tokenizer's own.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, vocab_size: int | None = None) -> None:
        from transformers import PreTrainedTokenizerBase

        self._tokenizer = tokenizer
        self._replies = ReplyTokens(tokenizer, vocab_size)
        self._template: str | None = None if tokenizer.chat_template else FALLBACK_TEMPLATE
        self._can_sanitize = "sanitize_control_tokens" in inspect.signature(tokenizer.apply_chat_template).parameters
        # Some have an ``apply_chat_template`` of their own, which may know no text between messages and tokens.
        usual = inspect.getattr_static(PreTrainedTokenizerBase, "apply_chat_template")
        self._shows_text = inspect.getattr_static(type(tokenizer), "apply_chat_template") is usual
        self._text_only = TextOnlyTokenizer(tokenizer)
        self._format = detect_content_format(self._render_text) if self._shows_text else ContentFormat()
        self._prompt_cache = RenderedPromptCache()
        self._shared: dict[tuple[str, ...], list[int]] = {}  # by two texts that begin with them
        # Encoding switches settings of the tokenizer forth and back: one at a time.
        self._lock = threading.Lock()

    def check(self, name: str) -> None:
        """Refuse a template that leaves out what users write.

        Raises:
            ModelLoadError: it does; ``name`` is the model's.
        """
        if "user" in self._format.left_out:
            raise ModelLoadError(
                f"The chat template of {name} leaves out what users write, as text and as a list of parts. Correct "
                "the template in the model's folder (chat_template.jinja, or chat_template in tokenizer_config.json), "
                "or remove it: then conversations are written as plain dialogues."
            )

    def is_fast_to_render(self, messages: Sequence[ChatMessage]) -> bool:
        """It takes less time than having a thread do it; nobody else is at it, either."""
        contents = [message.get("content") for message in messages]
        return (
            sum(len(content) for content in contents if isinstance(content, str)) <= MAX_INLINE_CHARACTERS
            and not self._lock.locked()
        )

    @property
    def is_fallback(self) -> bool:
        """The model has no template of its own."""
        return self._template is not None

    @property
    def stop(self) -> tuple[str, ...]:
        """Strings that end a reply beside the model's own tokens: without a template it would go on as the user."""
        return ("\nUser:",) if self.is_fallback else ()

    def render(self, messages: Sequence[ChatMessage], salt: bytes = b"") -> list[int]:
        """Token ids of a conversation, up to where the reply begins.

        Args:
            salt: what was kept of a conversation serves those with an equal salt.

        Raises:
            InvalidRequestError: there are no messages, one is malformed, or the model's template refuses them.
        """
        check_messages(messages)
        self._refuse_left_out(messages)
        conversation = _plain(messages)
        replies = [
            ReplyMessage(index, tuple(message.get("token_ids", ())))
            for index, message in enumerate(messages)
            if message["role"] == "assistant" and message.get("token_ids")
        ]
        try:
            with self._lock:
                if self._shows_text:
                    text = self._render_text(self._format.convert(conversation))
                    tokens = self._extend_cached_prompt(text, messages, replies, salt)
                    if tokens is None:
                        tokens = self._with_replies(text, conversation, replies) or self._tokenize(text)
                    self._prompt_cache.put(messages, RenderedPrompt(text, tokens), salt)
                else:
                    tokens = self._tokenizer.apply_chat_template(conversation, **self._options)
        except (TemplateError, TypeError, ValueError, KeyError) as error:
            # A template is the model's own program: what it raises is its way to say what it does not take.
            raise InvalidRequestError(
                f"The model's chat template does not accept this conversation: {error}"
            ) from error
        return [int(token) for token in tokens]

    def num_shared(self, messages: Sequence[ChatMessage], token_ids: Sequence[int]) -> int:
        """How many of a conversation's first token ids depend on no user's text.

        They are those of the template and of the messages marked ``shared``, up to the first message that is not: what
        two conversations with nothing else in common both begin with.

        Args:
            messages: the conversation.
            token_ids: what it was rendered to.
        """
        if not self._shows_text:
            return 0
        shared = list(takewhile(lambda message: message.get("shared", False), messages))
        role = messages[len(shared)]["role"] if len(shared) < len(messages) else "user"
        with self._lock:
            # Rendered each time, for a template may tell the date; only tokenizing takes long.
            texts = self._render_shared(shared, role)
            known = self._shared.get(texts)
            if known is None:
                known = self._tokenize_common(texts)
                self._keep_shared(texts, known)
        return _num_common(known, token_ids)

    def _keep_shared(self, texts: tuple[str, ...], token_ids: list[int]) -> None:
        """Keep them in the place of the oldest, within the bounds of number and size."""
        self._shared[texts] = token_ids
        size = sum(len(text) for kept in self._shared for text in kept)
        while self._shared and (len(self._shared) > MAX_SHARED or size > MAX_SHARED_CHARACTERS):
            oldest = next(iter(self._shared))
            size -= sum(map(len, oldest))
            del self._shared[oldest]

    def _render_shared(self, shared: Sequence[ChatMessage], role: str) -> tuple[str, ...]:
        """Two conversations with these first messages that differ by the next one; none where they are refused."""
        texts: list[str] = []
        for content in ("0", "a"):
            conversation = [*_plain(shared), {"role": role, "content": content}]
            try:
                texts.append(self._render_text(self._format.convert(conversation)))
            except (TemplateError, TypeError, ValueError, KeyError):
                return ()
        return tuple(texts)

    def _tokenize_common(self, texts: Sequence[str]) -> list[int]:
        """Token ids that texts begin with, whatever follows what they have in common."""
        if not texts:
            return []
        # Tokens reach over the end of what is common, and differ by what follows: those that never do are shared.
        common = self._tokenize(texts[0][: _num_common(*texts)])
        return common[: min(_num_common(common, self._tokenize(text)) for text in texts)]

    def encode_partial_reply(self, reply: ChatMessage) -> list[int]:
        """Token ids of a reply that goes on, to stand behind a rendered conversation: its own where they spell it."""
        own = self._replies.trim_to_text(reply.get("token_ids", ()), reply["content"])
        if own:
            return list(own)
        with self._lock:
            # What looks like a control token in it is text.
            tokens = self._tokenizer.encode(reply["content"], add_special_tokens=False, split_special_tokens=True)
        return [int(token) for token in tokens]

    def reply_tokens(self, text: str, token_ids: Sequence[int]) -> tuple[int, ...]:
        """Of the ids sampled for a reply, those that spell exactly its ``text``; empty when none do."""
        return self._replies.trim_to_text(token_ids, text)

    @property
    def _options(self) -> dict[str, Any]:
        sanitize = {"sanitize_control_tokens": True} if self._can_sanitize else {}
        return {
            "chat_template": self._template,
            "add_generation_prompt": True,
            "tokenize": True,
            "return_dict": False,
            **sanitize,
        }

    def _render_text(self, conversation: list[dict[str, Any]]) -> str:
        return self._text_only.render(conversation, **self._options)

    def _refuse_left_out(self, messages: Sequence[ChatMessage]) -> None:
        left_out = [message["role"] for message in messages if message["role"] in self._format.left_out]
        if "system" in left_out:
            raise InvalidRequestError(
                "The model's chat template leaves out system messages, so that the model would never see this one. "
                "Write it into the first user message instead."
            )
        if left_out:
            raise InvalidRequestError(
                "The model's chat template leaves out earlier replies, so that the model cannot go on with a "
                "conversation. Start a new one for each question."
            )

    def _extend_cached_prompt(
        self, rendered: str, messages: Sequence[ChatMessage], replies: Sequence[ReplyMessage], salt: bytes
    ) -> list[int] | None:
        """Token ids of a prompt from those of the turn before; None where it is not that with the reply behind it."""
        if not replies or replies[-1].index != len(messages) - 2:
            return None
        known = self._prompt_cache.get(messages[:-2], salt)
        if known is None:
            return None
        start, reply = len(known.text), messages[-2]["content"]
        if not (rendered.startswith(known.text) and rendered.startswith(reply, start)):
            return None
        around = known.text, rendered[start + len(reply) :]
        for span in self._replies.find_spans(rendered, around, replies[-1:]):
            if span.start == start:
                return [*known.token_ids, *span.token_ids, *self._tokenize(rendered[span.end :])]
        return None

    def _with_replies(
        self, rendered: str, conversation: list[dict[str, Any]], replies: Sequence[ReplyMessage]
    ) -> list[int] | None:
        """Token ids of a conversation, replies in their own; None where no reply can have them."""
        if not replies:
            return None
        words = make_sentinels(replies)
        masked = list(conversation)
        for reply, word in zip(replies, words, strict=True):
            masked[reply.index] = {**conversation[reply.index], "content": word}
        segments = split_at(self._render_text(self._format.convert(masked)), words)
        spans = list(self._replies.find_spans(rendered, segments, replies)) if segments else []
        if not spans:
            return None
        tokens: list[int] = []
        end = 0
        for span in spans:
            tokens += self._tokenize(rendered[end : span.start])
            tokens += span.token_ids
            end = span.end
        return tokens + self._tokenize(rendered[end:])

    def _tokenize(self, rendered: str) -> list[int]:
        """Token ids of rendered text that begins the conversation, or begins with a control token."""
        if self._can_sanitize and self._replies.is_marked(rendered):
            marked: list[int] = self._tokenizer(rendered, add_special_tokens=False, sanitize_control_tokens=True)[
                "input_ids"
            ]
            return marked
        tokens: list[int] = self._tokenizer.encode(rendered, add_special_tokens=False)
        return tokens

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a plain prompt.

        Args:
            add_special_tokens: put those around it that the model expects there (such as BOS).
        """
        try:
            with self._lock:
                return [int(token) for token in self._tokenizer.encode(text, add_special_tokens=add_special_tokens)]
        except (TypeError, ValueError) as error:  # such as half of a surrogate pair
            raise InvalidRequestError(f"The tokenizer cannot read this text: {error}") from error

    def encode_plain(self, text: str) -> list[int]:
        """Token ids of a piece of text, without special tokens around it."""
        return self.encode(text, add_special_tokens=False)

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of token ids, special tokens included: what :meth:`encode` made them of."""
        return str(
            self._tokenizer.decode(list(token_ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        )

    def token_strings(self, token_ids: Sequence[int]) -> list[str]:
        """Each token as the vocabulary spells it, empty where only the model knows it."""
        return [str(token or "") for token in self._tokenizer.convert_ids_to_tokens(list(token_ids))]


def _plain(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """The messages as templates take them, without what only this engine knows."""
    extra = ("token_ids", "unfinished", "shared")
    return [{key: value for key, value in message.items() if key not in extra} for message in messages]


def _num_common(one: Sequence[object], other: Sequence[object]) -> int:
    """How many of their first items are equal."""
    differing = (index for index, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1])
    return next(differing, min(len(one), len(other)))


def check_messages(messages: Sequence[ChatMessage]) -> None:
    """Raises InvalidRequestError for what no template could render."""
    if not messages:
        raise InvalidRequestError("A conversation needs at least one message.")
    for number, message in enumerate(messages, start=1):
        if not isinstance(message.get("role"), str) or not isinstance(message.get("content"), str):
            raise InvalidRequestError(f"Message {number} needs a role and a content, both text.")
        if message.get("unfinished") and (message["role"] != "assistant" or number < len(messages)):
            raise InvalidRequestError(f"Message {number} cannot be unfinished: only a reply at the end can go on.")
