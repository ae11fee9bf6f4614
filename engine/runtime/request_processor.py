"""Turns calls into submissions: renders and tokenizes prompts, completes and checks parameters, builds requests.

Callable from any thread, so that replies in flight do not wait for this work.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import replace
from time import monotonic
from weakref import ref

from engine.chat_options import ChatOptions
from engine.errors import ContextLengthError, InvalidRequestError, ModelLoadError
from engine.execution.submission import Submission, make_submission
from engine.interface import Caller, ChatMessage, PreparedPrompt
from engine.model.loaded_model import LoadedModel
from engine.outputs import TokenLogprobs
from engine.parameter_values import shown
from engine.runtime.rendered_chat import RenderedChat, ReplySyntax, TokenizedPrompt
from engine.runtime.reply_factory import ReplyFactory
from engine.runtime.reply_syntax_factory import ReplySyntaxFactory
from engine.sampling.inspection import RowInspector
from engine.sampling.logprobs import named
from engine.sampling_params import SamplingParams, check_deadline, check_priority
from engine.scheduling.adapter import Adapter
from engine.settings import EngineSettings
from engine.text.chat_template import ChatTemplate, RenderedPrompt
from engine.text.reply_formats.detection import detect_reply_format, named_reply_format
from engine.text.reply_formats.reply_format import ReplyFormat
from engine.text.stop_regex import compile_stop
from engine.text.template_inputs import check_messages, has_thinking_switch, reads_tools
from engine.text.truncation import ContextBudget
from engine.text.vocabulary import Vocabulary


class RequestProcessor:
    """Turns callers' prompts and parameters into submissions to the core.

    Args:
        model: supplies tokenizer, chat template and default parameters; the weights are not used.
        settings: supplies the forbidden words and the limit of log-probabilities.
        max_model_len: maximum tokens of a sequence, prompt and reply together.
    """

    def __init__(self, model: LoadedModel, settings: EngineSettings, max_model_len: int) -> None:
        self.max_model_len = max_model_len
        self.vocabulary = Vocabulary(model.tokenizer, model.vocab_size)
        self.default_params = SamplingParams.from_generation_config(model.generation_config)
        self._tokenizer = model.tokenizer
        self._adapters = model.adapters
        self._vocab_size = model.vocab_size
        self._max_logprobs = settings.max_logprobs
        self._eos_token_ids = model.eos_token_ids
        self._rotary = model.rotary
        self._template = ChatTemplate(model.tokenizer, model.vocab_size)
        self._reply_format = _reply_format(settings, self._template.source)
        self.replies = ReplyFactory(model, settings, self.vocabulary, self._template, self._reply_format)
        self._syntaxes = ReplySyntaxFactory(self._template, self._reply_format, self.replies)

    @property
    def can_think(self) -> bool:
        """Whether the model thinks or not as a request asks."""
        return has_thinking_switch(self._template.source)

    @property
    def can_call_tools(self) -> bool:
        """Whether the chat template renders tools, and the model's calls of them can be read."""
        return self._reply_format.calls is not None and reads_tools(self._template.source)

    def render_chat(
        self,
        messages: Sequence[ChatMessage],
        params: SamplingParams | None,
        caller: Caller | None = None,
        previous: PreparedPrompt | None = None,
        options: ChatOptions | None = None,
    ) -> RenderedChat:
        """Renders a conversation into prompt tokens, and resolves the parameters of its reply.

        Args:
            previous: the prompt of the conversation's previous turn; one of another model is ignored.
            options: tools and thinking.

        Raises:
            InvalidRequestError: the template or :meth:`resolve` refuses it.
        """
        extended = previous.rendered if isinstance(previous, RenderedChat) and previous.is_by(self) else None
        options = options or ChatOptions()
        self.find_adapter(options.adapter)
        rendered, partial_reply = self._render(messages, extended, options)
        token_ids = [*rendered.token_ids, *partial_reply] if partial_reply else rendered.token_ids
        num_shared = self._template.num_shared(messages, token_ids) if caller is not None else 0
        resolved = self.resolve(token_ids, params)
        if (grammar := self._syntaxes.make_call_grammar(options, rendered.token_ids)) is not None:
            if resolved.structured is not None:
                raise InvalidRequestError(
                    "A reply that must call a tool cannot be held to another form. Leave out tool_choice or the form."
                )
            self._syntaxes.check_call_grammar(grammar)
            resolved = resolved.replace_valid(structured=grammar)
        syntax = self._syntaxes.make_syntax(rendered.token_ids, options, is_structure_of_answer=grammar is None)
        if resolved.structured is not None and syntax is not None and syntax.thinking_format is not None:
            # Refuses it here, before anything is scheduled.
            self.replies.grammars.compile(resolved.structured, syntax.thinking_format)
        with_stop = replace(resolved, stop=(*resolved.stop, *self._template.stop)) if self._template.stop else resolved
        return RenderedChat(
            messages=tuple(message.copy() for message in messages),
            caller=caller,
            requested_params=params,
            params=resolved,
            num_prompt_tokens=len(token_ids),
            max_model_len=self.max_model_len,
            prompt=TokenizedPrompt(token_ids, with_stop, partial_reply, num_shared, syntax),
            rendered=rendered,
            renderer=ref(self),
            options=options,
        )

    def _render(
        self, messages: Sequence[ChatMessage], previous: RenderedPrompt | None, options: ChatOptions
    ) -> tuple[RenderedPrompt, list[int]]:
        """Returns a conversation as a prompt, and the token ids to append of a partial reply to continue."""
        if not (messages and messages[-1].get("unfinished")):
            return self._template.render(messages, previous, options), []
        check_messages(messages)
        *messages, reply = messages
        rendered = self._template.render(messages, previous, options)
        is_open = self._syntaxes.ends_in_thinking(rendered.token_ids)
        return rendered, self._template.encode_partial_reply(reply, self._reply_format.reasoning, is_open=is_open)

    def tokenize(
        self,
        prompt: str | Sequence[ChatMessage],
        *,
        add_special_tokens: bool = True,
        options: ChatOptions | None = None,
    ) -> list[int]:
        """Returns the token ids of a text or a conversation of any length.

        Raises:
            InvalidRequestError: the tokenizer or the template refuses the prompt.
        """
        if isinstance(prompt, str):
            return self._template.encode(prompt, add_special_tokens=add_special_tokens)
        rendered, partial_reply = self._render(prompt, None, options or ChatOptions())
        return [*rendered.token_ids, *partial_reply]

    def detokenize(self, token_ids: Sequence[int]) -> str:
        """Returns the text of token ids, special tokens included.

        Raises:
            InvalidRequestError: the model has no token of one of the ids.
        """
        self._check_token_ids(token_ids, "tokens holds")
        return self._template.decode(token_ids)

    def pieces(self, token_ids: Sequence[int]) -> list[tuple[str, int, bool]]:
        """Returns a prompt as text; see :meth:`engine.text.chat_template.ChatTemplate.pieces`."""
        return self._template.pieces(token_ids)

    def token_strings(self, token_ids: Sequence[int]) -> list[str]:
        """Returns each token as the vocabulary spells it."""
        return self._template.token_strings(token_ids)

    def budget(self, params: SamplingParams | None) -> ContextBudget:
        """Returns the tokens that a prompt may have beside its reply."""
        max_tokens = (params.max_tokens if params is not None else None) or self.default_params.max_tokens
        return ContextBudget(self.max_model_len, max_tokens)

    def is_fast_to_render(
        self, messages: Sequence[ChatMessage], params: SamplingParams | None, options: ChatOptions | None
    ) -> bool:
        """Whether :meth:`render_chat` takes less time than handing it to a thread."""
        # New lists of words, expressions and grammars take a while to build.
        if params and (params.forbidden_words or params.stop_regex or params.structured):
            return False
        if options and options.tools:
            return False
        return self._template.is_fast_to_render(messages)

    def reply_tokens(self, text: str, token_ids: Sequence[int]) -> tuple[int, ...]:
        """Returns the part of a reply's sampled ``token_ids`` that spells exactly its ``text``; empty if none does."""
        return self._template.reply_tokens(text, token_ids)

    def encode(self, prompt: str | Sequence[int], params: SamplingParams | None) -> TokenizedPrompt:
        """Returns the token ids of a prompt without a chat template, and the resolved parameters of its reply."""
        tokens = self._template.encode(prompt) if isinstance(prompt, str) else _token_ids(prompt)
        return TokenizedPrompt(tokens, self.resolve(tokens, params))

    def resolve(self, prompt: Sequence[int], params: SamplingParams | None) -> SamplingParams:
        """Completes the parameters with the model's defaults, and checks that the request can be served.

        ``max_tokens`` is an upper bound: a reply also ends, with ``length``, where the context window does.

        Raises:
            ContextLengthError: the prompt leaves no room for a reply.
            InvalidRequestError: a parameter names a token that the model does not have, or exceeds a limit.
        """
        resolved = self._complete(params or SamplingParams())
        resolved.check_vocabulary(self._vocab_size)
        resolved.check_logprobs(self._max_logprobs)
        try:
            # Builds the list here rather than in the worker's thread.
            self.replies.word_lists.get(resolved.forbidden_words)
        except ValueError as error:
            raise InvalidRequestError(f"forbidden_words cannot be used: {error}") from error
        try:
            compile_stop((), tuple(resolved.stop_regex))
        except ValueError as error:
            raise InvalidRequestError(f"stop_regex {error}") from error
        if resolved.structured is not None:
            self.replies.grammars.compile(resolved.structured)  # refuses it here, before anything is scheduled
        if not prompt:
            raise InvalidRequestError("The prompt is empty: send at least one token.")
        self._check_token_ids(prompt, "The prompt holds")
        max_reply_tokens = self.max_model_len - len(prompt)
        if max_reply_tokens < 1:
            raise ContextLengthError(
                f"The prompt is {len(prompt)} tokens long; the model reads at most {self.max_model_len}, and at "
                "least one must be left for the reply. Shorten it.",
                prompt_tokens=len(prompt),
                max_model_len=self.max_model_len,
            )
        if resolved.min_tokens > max_reply_tokens:
            raise InvalidRequestError(
                f"min_tokens={resolved.min_tokens} is more than the {max_reply_tokens} tokens that fit after the "
                "prompt. Lower it."
            )
        return resolved

    def _complete(self, params: SamplingParams) -> SamplingParams:
        """Completes parameters with the model's defaults; beam search searches the model's own distribution."""
        if params.beam_search is None:
            return params.with_defaults(self.default_params)
        params.check_beam_search()
        if self.replies.word_lists.get(()) is not None:
            raise InvalidRequestError("beam_search is not available on this server, which forbids words.")
        return replace(
            params, temperature=0.0, max_tokens=params.max_tokens or self.default_params.max_tokens
        ).with_defaults(SamplingParams.neutral())

    def _check_token_ids(self, token_ids: Sequence[int], holder: str) -> None:
        for token in (min(token_ids, default=0), max(token_ids, default=0)):
            if not 0 <= token < self._vocab_size:  # a tokenizer may have more tokens than its model
                raise InvalidRequestError(
                    f"{holder} token id {shown(token)}, but the model's ids end at {self._vocab_size - 1}."
                )

    def process(
        self,
        request_id: str,
        prompt: Sequence[int],
        params: SamplingParams,
        deadline: float | None = None,
        priority: int = 0,
        partial_reply: Sequence[int] = (),
        *,
        num_shared: int = 0,
        caller: Caller | None = None,
        syntax: ReplySyntax | None = None,
        adapter: str | None = None,
    ) -> Submission:
        """Builds the submission of a request whose parameters went through :meth:`resolve`.

        Args:
            partial_reply: last token ids of the prompt, where they belong to a reply to continue.
            deadline: seconds from now after which the reply ends with the text it has.
            priority: lower is served first, see ``Request.rank``.
            num_shared: number of the prompt's first tokens that depend on no user's text.
            syntax: how the reply is split; None leaves it as it is.
            adapter: name of the adapter to apply.

        Raises:
            InvalidRequestError: the deadline or the priority is out of range, or there is no such adapter.
        """
        deadline, priority = check_deadline(deadline), check_priority(priority)
        chosen = self.find_adapter(adapter)
        arrival = monotonic()
        max_reply_tokens = self.max_model_len - len(prompt)
        stop_token_ids = frozenset(params.stop_token_ids)
        if not params.ignore_eos:
            stop_token_ids |= self._eos_token_ids
        max_tokens = min(params.max_tokens or max_reply_tokens, max_reply_tokens)
        submission = make_submission(
            request_id,
            prompt,
            params,
            bans=lambda request: self.replies.make_bans(request, partial_reply, syntax),
            make_grammar=lambda request: self.replies.make_grammar(request, partial_reply, syntax),
            make_detokenizer=lambda: self.replies.make_detokenizer(params, partial_reply, syntax),
            max_tokens=max_tokens,
            stop_token_ids=stop_token_ids,
            arrival=arrival,
            deadline=None if deadline is None else arrival + deadline,
            priority=priority,
            cache_salt=(self._rotary.cache_salt(len(prompt)) if self._rotary is not None else b"")
            + (chosen.content_id if chosen is not None else b""),
            num_shared_tokens=num_shared,
            caller=caller,
            beams=self.replies.make_beams(params, max_tokens, stop_token_ids, syntax),
            adapter=chosen,
        )
        if params.prompt_logprobs is not None:
            submission.prompt_logprobs.append(TokenLogprobs(named(self.vocabulary, prompt[0], None), None, ()))
        return submission

    def process_inspection(
        self, request_id: str, chat: RenderedChat, position: int | None, deadline: float | None, priority: int
    ) -> Submission:
        """Builds the submission that inspects the reply with which a conversation ends.

        It reads the reply as a part of its prompt, scored from ``position`` on, and samples one token, greedily.

        Args:
            position: of the only token to inspect, with its row; None inspects all.

        Raises:
            InvalidRequestError: there is no such token; or as :meth:`process`.
        """
        prompt = chat.prompt
        reply = list(prompt.partial_reply)
        if not reply:
            raise InvalidRequestError("There is no reply to inspect: it has no tokens.")
        if position is not None and not 0 <= position < len(reply):
            raise InvalidRequestError(
                f"The reply has {len(reply)} tokens, so there is none at {shown(position)}. Count from 0."
            )
        num_before = len(prompt.token_ids) - len(reply)
        first, end = (0, len(reply)) if position is None else (position, position + 1)
        params = replace(prompt.params, n=1, beam_search=None, max_tokens=None, prompt_logprobs=None, logprobs=None)
        adapter = chat.options.adapter
        # A submission of its own: the reply's bans and grammar follow its tokens from the first one on.
        sampled = self.process(request_id, prompt.token_ids[:num_before], params, syntax=prompt.syntax, adapter=adapter)
        sampled.request.token_ids.extend(reply[:first])
        neutral = SamplingParams.neutral(temperature=0.0, max_tokens=1, ignore_eos=True, prompt_logprobs=0)
        submission = self.process(
            request_id,
            prompt.token_ids[: num_before + end],
            neutral,
            deadline,
            priority,
            num_shared=prompt.num_shared,
            caller=chat.caller,
            adapter=adapter,
        )
        submission.prompt_logprobs.clear()  # of the prompt's first token
        submission.request.num_scored_tokens = num_before + first
        submission.request.is_inspected = True
        submission.inspector = RowInspector(
            sampled.sampling, sampled.request.token_ids, self.vocabulary, keeps_rows=position is not None
        )
        return submission

    def find_adapter(self, name: str | None) -> Adapter | None:
        """Returns the loaded adapter of this name; None for no name.

        Raises:
            InvalidRequestError: there is none.
        """
        if name is None:
            return None
        found = self._adapters.get(name)
        if found is None:
            raise InvalidRequestError(f"No adapter is loaded under the name {shown(name)}.")
        return found


def _token_ids(prompt: Sequence[int]) -> list[int]:
    """Returns the prompt as plain integers; a caller may pass other integer types, such as NumPy's."""
    try:
        return [operator.index(token) for token in prompt]
    except TypeError as error:
        raise InvalidRequestError(
            f"The prompt must be a text or a list of token ids, whole numbers: {error}."
        ) from error


def _reply_format(settings: EngineSettings, template: str) -> ReplyFormat:
    if settings.reply_format == "auto":
        return detect_reply_format(template)
    try:
        return named_reply_format(settings.reply_format)
    except ValueError as error:
        raise ModelLoadError(f"ENGINE_REPLY_FORMAT cannot be used: {error}.") from error
