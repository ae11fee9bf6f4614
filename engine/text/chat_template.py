"""Renders a conversation to the token ids that the model continues."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from jinja2 import TemplateError

from engine.chat_options import ChatOptions, Tool
from engine.errors import InvalidRequestError, ModelLoadError
from engine.interface import ChatMessage
from engine.text.content_format import ContentFormat, detect_content_format
from engine.text.reply_formats.reply_format import Tags
from engine.text.reply_tokens import ReplyMessage, ReplyTokens, TextOnlyTokenizer, make_sentinels, split_at
from engine.text.shared_openings import SharedOpenings
from engine.text.template_inputs import (
    check_messages,
    check_names,
    check_tools,
    clock_formats,
    reasoning_fields,
    template_messages,
    template_tools,
    template_variables,
    wants_short_ids,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

FALLBACK_TEMPLATE = (
    "{{ bos_token or '' }}"
    "{% for message in messages %}{{ message['role'].capitalize() + ': ' + message['content'] + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
"""For models without a chat template: a plain dialogue, which any language model can continue."""

MAX_INLINE_CHARACTERS = 4000
"""Characters of a conversation that is rendered without a thread, with its calls and thinking.

Rendering that many takes one or two milliseconds at most.
"""

MESSAGE_CHARACTERS = 20
"""A message counts as so many characters, beside its texts."""


class RenderedPrompt(NamedTuple):
    """A rendered conversation, up to where the reply begins."""

    text: str  #: the text that the chat template rendered; empty if the tokenizer never produces it
    token_ids: list[int]  #: token ids of the whole text
    num_messages: int  #: of the conversation


class ChatTemplate:
    """Renders conversations and plain prompts to token ids. Safe to use from several threads.

    Users cannot forge a control token: ``<|im_end|>`` in a message is encoded as those characters, and only the
    template itself ends a turn. This is transformers' ``sanitize_control_tokens``. Two cases depend on the tokenizer:
    the installed transformers lacks that option, or the tokenizer produces the control token from plain characters
    anyway (then the message is refused).

    A reply that comes with its token ids keeps them wherever the template shows its text unchanged, so that the next
    turn finds it in the prefix cache; see :class:`~engine.text.reply_tokens.ReplyTokens`. A conversation that
    continues that of a previous prompt is tokenized only from the end of that prompt on.

    Args:
        tokenizer: the model's tokenizer.
        vocab_size: number of token ids the model knows; None uses the tokenizer's vocabulary size.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, vocab_size: int | None = None) -> None:
        from transformers import PreTrainedTokenizerBase

        self._tokenizer = tokenizer
        self._replies = ReplyTokens(tokenizer, vocab_size)
        self._template: str | None = None if tokenizer.chat_template else FALLBACK_TEMPLATE
        self._can_sanitize = "sanitize_control_tokens" in inspect.signature(tokenizer.apply_chat_template).parameters
        # Some tokenizers override ``apply_chat_template`` and may never produce a text between messages and tokens.
        usual = inspect.getattr_static(PreTrainedTokenizerBase, "apply_chat_template")
        self._shows_text = inspect.getattr_static(type(tokenizer), "apply_chat_template") is usual
        self._text_only = TextOnlyTokenizer(tokenizer)
        self._format = detect_content_format(self._render_text) if self._shows_text else ContentFormat()
        self._reasoning_fields = reasoning_fields(self.source)
        self._wants_short_ids = wants_short_ids(self.source)
        self._control_tokens = {str(token) for token in tokenizer.added_tokens_decoder.values() if token.special} | {
            *tokenizer.all_special_tokens
        }
        self._control_ids = frozenset(
            {id for id, token in tokenizer.added_tokens_decoder.items() if token.special} | {*tokenizer.all_special_ids}
        )
        # Encoding changes settings of the tokenizer temporarily, so only one thread may encode at a time.
        self._lock = threading.Lock()
        self._openings = SharedOpenings(self._render_plain, self._tokenize, self._lock, clock_formats(self.source))

    def check(self, name: str) -> None:
        """Refuses a template that leaves out user messages.

        Args:
            name: the model's name, for the error message.

        Raises:
            ModelLoadError: the template leaves out user messages.
        """
        if "user" in self._format.left_out:
            raise ModelLoadError(
                f"The chat template of {name} leaves out what users write, as text and as a list of parts. Correct "
                "the template in the model's folder (chat_template.jinja, or chat_template in tokenizer_config.json), "
                "or remove it: then conversations are written as plain dialogues."
            )

    def is_fast_to_render(self, messages: Sequence[ChatMessage]) -> bool:
        """Whether rendering takes less time than handing it to a thread, and no other thread holds the tokenizer."""
        size = sum(map(_num_characters, messages)) + MESSAGE_CHARACTERS * len(messages)
        return size <= MAX_INLINE_CHARACTERS and not self._lock.locked()

    @property
    def source(self) -> str:
        """The text of the model's own chat template, with the one for tools if it is another; empty without any."""
        template = self._tokenizer.chat_template
        texts = template.values() if isinstance(template, dict) else [template or ""]
        return "\n".join(texts)

    @property
    def is_fallback(self) -> bool:
        """Whether the model has no chat template and the plain dialogue is used."""
        return self._template is not None

    @property
    def stop(self) -> tuple[str, ...]:
        """Stop strings beside the model's stop tokens: in a plain dialogue the model would continue as the user."""
        return ("\nUser:",) if self.is_fallback else ()

    def render(
        self,
        messages: Sequence[ChatMessage],
        previous: RenderedPrompt | None = None,
        options: ChatOptions | None = None,
    ) -> RenderedPrompt:
        """Renders a conversation, up to where the reply begins.

        Args:
            messages: the conversation.
            previous: the prompt of its previous turn, by this template. Used as far as the text really starts with it.
            options: tools and thinking.

        Raises:
            InvalidRequestError: there are no messages, one is malformed, or the model's template refuses them; or it
                cannot render the tools.
        """
        check_messages(messages)
        self._refuse_left_out(messages)
        conversation = template_messages(messages, self._reasoning_fields, short_ids=self._wants_short_ids)
        variables = self._variables(options) if options is not None else {}
        for message in conversation:
            check_names("messages", message.get("tool_calls"), self._control_tokens)
        check_names("tools", variables.get("tools"), self._control_tokens)
        check_names("chat_template_kwargs", variables, self._control_tokens)
        replies = [
            ReplyMessage(index, tuple(message.get("token_ids", ())))
            for index, message in enumerate(messages)
            if message["role"] == "assistant" and message.get("token_ids")
        ]
        text = ""
        try:
            with self._lock:
                if self._shows_text:
                    text = self._render_text(self._format.convert(conversation), variables)
                    tokens = self._extend(previous, text, messages, replies) if previous is not None else None
                    if tokens is None:
                        tokens = self._with_replies(text, conversation, replies, variables) or self._tokenize(text)
                else:
                    tokens = [
                        int(token)
                        for token in self._tokenizer.apply_chat_template(conversation, **{**variables, **self._options})
                    ]
        except (TemplateError, TypeError, ValueError, KeyError) as error:
            # The template is the model's own program; its exceptions say which conversations it does not accept.
            raise InvalidRequestError(
                f"The model's chat template does not accept this conversation: {error}"
            ) from error
        return RenderedPrompt(text, tokens, len(messages))

    def num_shared(self, messages: Sequence[ChatMessage], token_ids: Sequence[int]) -> int:
        """Counts the first token ids of a rendered conversation that depend on no user's text.

        See :meth:`SharedOpenings.count`; 0 if the tokenizer never produces the text.
        """
        return self._openings.count(messages, token_ids) if self._shows_text else 0

    def encode_partial_reply(
        self, reply: ChatMessage, reasoning: Tags | None = None, *, is_open: bool = False
    ) -> list[int]:
        """Returns the token ids of a reply to be continued, to append to a rendered conversation.

        These are the reply's own ids where they spell its text; otherwise the text is tokenized.

        Args:
            reasoning: tags around the reply's thinking; None leaves thinking out.
            is_open: the rendered conversation ends with thinking that is open.
        """
        thoughts = reply.get("reasoning", "") if reasoning is not None else ""
        if reasoning is None or not (thoughts or is_open):
            own = self._replies.trim_to_text(reply.get("token_ids", ()), reply["content"])
            return list(own) if own else self._encode_text(reply["content"])
        tokens = [] if is_open else self.encode_plain(reasoning.open + "\n")
        tokens += self._encode_text(thoughts)
        if reply["content"]:
            tokens += [*self.encode_plain(f"\n{reasoning.close}\n\n"), *self._encode_text(reply["content"])]
        return tokens

    def _encode_text(self, text: str) -> list[int]:
        with self._lock:
            # Anything in it that looks like a control token is text.
            tokens = self._tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
        return [int(token) for token in tokens]

    def reply_tokens(self, text: str, token_ids: Sequence[int]) -> tuple[int, ...]:
        """Returns the sampled ids that spell exactly the reply's ``text``; empty if none do."""
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

    def _render_text(self, conversation: list[dict[str, Any]], variables: Mapping[str, Any] | None = None) -> str:
        return self._text_only.render(conversation, **{**(variables or {}), **self._options})

    def _render_plain(self, conversation: list[dict[str, Any]]) -> str:
        return self._render_text(self._format.convert(conversation))

    def _variables(self, options: ChatOptions) -> dict[str, Any]:
        """Returns the template's variables for a request. Raises :class:`InvalidRequestError`."""
        check_tools(options)
        variables = template_variables(options, self.source)
        if "tools" in variables and not self._renders_tools:
            raise InvalidRequestError(
                "tools are not shown by the model's chat template, so that the model would never see them. Use a model "
                "that was trained to call tools, or leave them out."
            )
        return variables

    @cached_property
    def _renders_tools(self) -> bool:
        """Whether the template shows tools."""
        if not self._shows_text:
            return True  # unknown
        tools = template_tools([Tool("sentineltool", "sentineltool", {"type": "object", "properties": {}})])
        user = {"role": "user", "content": "a"}
        for conversation in ([user], [{"role": "system", "content": "a"}, user]):
            try:
                with self._lock:
                    text = self._render_text(self._format.convert(conversation), {"tools": tools})
            except Exception:
                continue
            if "sentineltool" in text:
                return True
        return False

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

    def _extend(
        self,
        previous: RenderedPrompt,
        rendered: str,
        messages: Sequence[ChatMessage],
        replies: Sequence[ReplyMessage],
    ) -> list[int] | None:
        """Returns the token ids of a prompt by extending the previous turn's.

        None if the prompt is neither the previous one again nor the previous one followed by its reply.
        """
        if rendered == previous.text and rendered:
            return previous.token_ids
        if previous.num_messages != len(messages) - 2 or not replies or replies[-1].index != len(messages) - 2:
            return None
        start, reply = len(previous.text), messages[-2]["content"]
        if not (start and rendered.startswith(previous.text) and rendered.startswith(reply, start)):
            return None
        around = previous.text, rendered[start + len(reply) :]
        for span in self._replies.find_spans(rendered, around, replies[-1:]):
            if span.start == start:
                return [*previous.token_ids, *map(int, span.token_ids), *self._tokenize(rendered[span.end :])]
        return None

    def _with_replies(
        self,
        rendered: str,
        conversation: list[dict[str, Any]],
        replies: Sequence[ReplyMessage],
        variables: Mapping[str, Any],
    ) -> list[int] | None:
        """Returns the token ids of a conversation, replies in their own ids; None if no reply can keep them."""
        if not replies:
            return None
        words = make_sentinels(replies)
        masked = list(conversation)
        for reply, word in zip(replies, words, strict=True):
            masked[reply.index] = {**conversation[reply.index], "content": word}
        segments = split_at(self._render_text(self._format.convert(masked), variables), words)
        spans = list(self._replies.find_spans(rendered, segments, replies)) if segments else []
        if not spans:
            return None
        tokens: list[int] = []
        end = 0
        for span in spans:
            tokens += self._tokenize(rendered[end : span.start])
            tokens += map(int, span.token_ids)
            end = span.end
        return tokens + self._tokenize(rendered[end:])

    def _tokenize(self, rendered: str) -> list[int]:
        """Tokenizes rendered text that is the start of the conversation or starts with a control token."""
        if self._can_sanitize and self._replies.is_marked(rendered):
            marked: list[int] = self._tokenizer(rendered, add_special_tokens=False, sanitize_control_tokens=True)[
                "input_ids"
            ]
            return marked
        tokens: list[int] = self._tokenizer.encode(rendered, add_special_tokens=False)
        return tokens

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Returns the token ids of a plain prompt.

        Args:
            text: the prompt.
            add_special_tokens: add the special tokens that the model expects around a prompt (such as BOS).

        Raises:
            InvalidRequestError: the tokenizer cannot encode the text.
        """
        try:
            with self._lock:
                return [int(token) for token in self._tokenizer.encode(text, add_special_tokens=add_special_tokens)]
        except (TypeError, ValueError) as error:  # for example half of a surrogate pair
            raise InvalidRequestError(f"The tokenizer cannot read this text: {error}") from error

    def encode_plain(self, text: str) -> list[int]:
        """Returns the token ids of a text without special tokens around it."""
        return self.encode(text, add_special_tokens=False)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Decodes token ids to text, special tokens included: the inverse of :meth:`encode`."""
        return str(
            self._tokenizer.decode(list(token_ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        )

    def pieces(self, token_ids: Sequence[int]) -> list[tuple[str, int, bool]]:
        """Returns text, number of tokens and whether it is a special one: each of these, and what is between them."""
        pieces: list[tuple[str, int, bool]] = []
        for is_special, group in groupby(token_ids, self._control_ids.__contains__):
            ids = list(group)
            pieces += (
                [(self.decode([id]), 1, True) for id in ids] if is_special else [(self.decode(ids), len(ids), False)]
            )
        return pieces

    def token_strings(self, token_ids: Sequence[int]) -> list[str]:
        """Returns each token as the vocabulary spells it; empty for ids that the tokenizer does not know."""
        return [str(token or "") for token in self._tokenizer.convert_ids_to_tokens(list(token_ids))]


def _num_characters(message: ChatMessage) -> int:
    """Counts the characters that rendering a message has to look at; 0 for a malformed one, which it refuses."""
    arguments = sum(len(call.arguments) for call in message.get("tool_calls", ()))
    texts = (message.get("content"), message.get("reasoning"))
    return arguments + sum(len(text) for text in texts if isinstance(text, str))
