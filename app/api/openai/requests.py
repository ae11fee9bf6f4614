"""Request models of ``/v1``. Field names are OpenAI's, or vLLM's where OpenAI has none."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, PlainValidator, StringConstraints, create_model, model_validator

from app.api.openai.chat_options import OPTION_SPELLING
from app.api.openai.fields import REQUEST_FIELDS, STREAM_FIELDS, Lenient, checked_text, unsupported
from app.api.openai.messages import ChatInput
from app.api.openai.structured import ResponseFormat, StructuredOutputs, structured_output
from engine import (
    BACKGROUND_PRIORITY,
    MAX_BEAM_WIDTH,
    MAX_PRIORITY,
    PARAMETERS,
    BeamSearchParams,
    Kind,
    SamplingParams,
)

MAX_CHOICES = 128
"""Maximum replies to one request: its prompts times ``n``, ``best_of`` or ``beam_width``; more are refused."""
MAX_BEST_OF = int(PARAMETERS["n"].high)


def _as_whole(value: object) -> object:
    """Converts a whole float to int: JSON has one number type, and some clients send 8 as 8.0."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = Annotated[int, BeforeValidator(_as_whole)]


class StreamOptions(Lenient):
    no_ops = STREAM_FIELDS

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = Field(
        None, description="With include_usage: every chunk holds the usage so far."
    )


_TYPES: Mapping[Kind, Any] = {
    Kind.NUMBER: float,
    Kind.WHOLE: Whole,
    Kind.FLAG: bool,
    Kind.STRINGS: str | list[str],
    Kind.WORDS: list[str],
    Kind.TOKEN_IDS: list[int],
    Kind.TOKEN_BIASES: dict[str, float],
}


def model_with_parameters(*omitted: str) -> type[Lenient]:
    """Returns a model that has the sampling parameters of the engine's table as fields, but for those ``omitted``."""
    fields: dict[str, Any] = {
        parameter.name: (_TYPES[parameter.kind] | None, Field(None, description=parameter.sentence))
        for parameter in PARAMETERS.values()
        if parameter.name not in omitted
    }
    return create_model("SamplingFields", __base__=Lenient, **fields)


def requested_parameters(request: Lenient) -> dict[str, Any]:
    """Returns the engine's parameters that a request of :func:`model_with_parameters` sets.

    Raises:
        ValueError: a key of ``logit_bias`` is no token id.
    """
    fields = type(request).model_fields
    given = {name: value for name in PARAMETERS if name in fields and (value := getattr(request, name)) is not None}
    if "logit_bias" in given:
        given["logit_bias"] = {_token_id(key): bias for key, bias in given["logit_bias"].items()}
    return given


class GenerationRequest(Lenient):
    """The fields that every request for a reply has, beside its sampling parameters."""

    model: str | None = Field(None, description="Default: the loaded model.")
    stream: bool | None = None
    deadline: float | None = Field(
        None,
        gt=0,
        description="Seconds. A reply that takes longer ends with the finish_reason 'length' and the stop_reason "
        "'deadline'; one that has not started by then is an error.",
    )
    priority: Whole = Field(
        0,
        ge=-MAX_PRIORITY,
        le=MAX_PRIORITY,
        description="Lower runs first: each unit counts as arriving a minute earlier. Below 0 is for admins. "
        f"{BACKGROUND_PRIORITY} runs in the background: such a request gives way to every other.",
    )
    cache_salt: str | None = Field(
        None,
        max_length=256,
        description="Only requests with an equal salt share this one's prefix cache. With accounts, users never share "
        "it, not even where their system messages are equal.",
    )
    structured_outputs: StructuredOutputs | None = Field(
        None,
        description="vLLM's field: one of json, json_object, regex, choice, grammar (Lark or GBNF) and structural_tag.",
    )

    @property
    @abstractmethod
    def names(self) -> Mapping[str, str]:
        """Maps the engine's parameter names to this request's fields where they differ."""

    @abstractmethod
    def sampling_params(self) -> SamplingParams:
        """Converts the request to the engine's parameters; omitted fields get the model's defaults.

        Raises:
            ValueError: a value is out of range; the message names the parameter, the value and the range.
        """


if TYPE_CHECKING:
    _SamplingFields = Lenient
else:  # the two endpoints ask for log-probabilities in different ways
    _SamplingFields = model_with_parameters("logprobs")


class BaseCompletionRequest(GenerationRequest, _SamplingFields):
    """The fields that chat completions and completions share, with the sampling parameters of the engine's table."""

    no_ops = REQUEST_FIELDS
    #: Maps the engine's parameter names to the request's where they differ.
    spelling: ClassVar[Mapping[str, str]] = {}

    @property
    def names(self) -> Mapping[str, str]:
        form = "response_format" if self.structured_outputs is None else "structured_outputs"
        return {**self.spelling, "structured": form, "beam_search": "use_beam_search"}

    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = Field(
        None, description="The form of the reply: text, json_object, json_schema with a schema, or structural_tag."
    )
    best_of: Whole | None = Field(
        None,
        ge=1,
        le=MAX_BEST_OF,
        description="Generate this many replies and return the n with the highest mean log-probability per token.",
    )
    use_beam_search: bool | None = Field(
        None, description="Search for the n likeliest replies instead of sampling, as transformers' num_beams does."
    )
    beam_width: Whole | None = Field(
        None, ge=1, le=MAX_BEAM_WIDTH, description="Number of beams of beam search; default: n, as in vLLM."
    )
    length_penalty: float | None = Field(
        None, description="Beam search divides a reply's score by its length to the power of this; default: 1."
    )
    early_stopping: bool | Literal["never"] | None = Field(
        None, description="True ends beam search once beam_width replies have ended; default: false."
    )
    return_token_ids: bool | None = Field(None, description="Also return each choice's token ids.")
    request_id: Annotated[str, StringConstraints(pattern=r"^[\w.:-]{1,128}$")] | None = Field(
        None, description="Suffix of the response's id; default: the engine's request id."
    )

    if TYPE_CHECKING:  # the parameters' fields are known at run time only

        def __getattr__(self, name: str) -> Any: ...

    @model_validator(mode="after")
    def _options_need_a_stream(self) -> BaseCompletionRequest:
        options = self.stream_options
        if options is not None and (options.include_usage or options.continuous_usage_stats) and not self.stream:
            raise ValueError("stream_options needs a stream: set stream to true, or leave stream_options out")
        return self

    @model_validator(mode="after")
    def _best_of_exceeds_n(self) -> BaseCompletionRequest:
        if self.best_of is not None and self.best_of < (self.n or 1):
            sentence = f"{{param}} must be at least n (got best_of={self.best_of} and n={self.n})."
            raise unsupported("best_of", sentence)
        if self.chooses_best and self.stream:
            raise unsupported("best_of", "{param} above n cannot be streamed: set stream to false, or leave it out.")
        return self

    @model_validator(mode="after")
    def _beams_are_asked_for(self) -> BaseCompletionRequest:
        if self.use_beam_search:
            if self.stream:
                raise unsupported(
                    "use_beam_search", "{param} cannot be streamed: set stream to false, or leave it out."
                )
            if self.chooses_best:
                raise unsupported("best_of", "{param} chooses among sampled replies: send beam_width for beam search.")
            return self
        neutral: Mapping[str, object] = {"beam_width": None, "length_penalty": 1.0, "early_stopping": False}
        for name, value in neutral.items():
            if getattr(self, name) not in (None, value):
                raise unsupported(name, "{param} is for beam search: set use_beam_search to true, or leave it out.")
        return self

    @property
    def chooses_best(self) -> bool:
        """Whether more replies are generated than the response holds."""
        kept = 1 if self.n is None else self.n  # out of range, the engine's parameters refuse it
        return self.best_of is not None and 1 <= kept < self.best_of

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options is not None and self.stream_options.include_usage)

    @property
    def continuous_usage(self) -> bool:
        return bool(self.include_usage and self.stream_options and self.stream_options.continuous_usage_stats)

    def sampling_params(self) -> SamplingParams:
        given = requested_parameters(self) | {
            "max_tokens": self.reply_limit(),
            "logprobs": self.reply_logprobs(),
            "prompt_logprobs": self.requested_prompt_logprobs(),
            "structured": structured_output(self.response_format, self.structured_outputs),
        }
        if self.use_beam_search:
            given["beam_search"] = BeamSearchParams(
                width=self.beam_width or self.n or 1,
                length_penalty=1.0 if self.length_penalty is None else self.length_penalty,
                early_stopping=self.early_stopping or False,
            )
        if self.chooses_best:
            given |= {"n": self.best_of, "logprobs": given["logprobs"] or 0}
        return SamplingParams(**given)

    def reply_limit(self) -> int | None:
        """Returns the maximum length of the reply in tokens, or None for the model's default."""
        limit: int | None = self.max_tokens
        return limit

    @abstractmethod
    def reply_logprobs(self) -> int | None:
        """Returns how many of the likeliest tokens to return per reply token; None for no log-probabilities."""

    def requested_prompt_logprobs(self) -> int | None:
        """Returns the same for prompt tokens."""
        requested: int | None = self.prompt_logprobs
        if requested is not None and self.stream:
            raise ValueError("prompt_logprobs cannot be streamed: set stream to false, or leave prompt_logprobs out")
        return requested


class ChatCompletionRequest(BaseCompletionRequest, ChatInput):
    spelling: ClassVar[Mapping[str, str]] = {"logprobs": "top_logprobs", **OPTION_SPELLING}

    max_completion_tokens: Whole | None = None
    logprobs: bool | None = None
    top_logprobs: Whole | None = Field(
        None, description="How many of the likeliest tokens to return for each reply token."
    )

    @property
    def names(self) -> Mapping[str, str]:
        limit = "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"
        return {**super().names, "max_tokens": limit}

    @model_validator(mode="after")
    def _one_limit(self) -> ChatCompletionRequest:
        if None not in (self.max_tokens, self.max_completion_tokens) and self.max_tokens != self.max_completion_tokens:
            raise ValueError("max_tokens and max_completion_tokens are the same limit; send one of them")
        return self

    def reply_limit(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    def reply_logprobs(self) -> int | None:
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs: set logprobs to true, or leave top_logprobs out")
        return (self.top_logprobs or 0) if self.logprobs else None


Prompt = str | list[int]


def _prompts(value: object) -> list[Prompt]:
    """Parses one prompt, a string or token ids, or a list of prompts."""
    prompts: list[Any] = [value] if isinstance(value, str) or _is_token_ids(value) else _list_of_prompts(value)
    for index, prompt in enumerate(prompts):
        if isinstance(prompt, str):
            checked_text(f"prompt[{index}]", prompt)
        elif not _is_token_ids(prompt):
            raise unsupported(f"prompt[{index}]", "The field '{param}' must be a string or a list of token ids.")
    return prompts


def _list_of_prompts(value: object) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise unsupported("prompt", "The field '{param}' must be a string, token ids, or a list of such prompts.")
    if len(value) > MAX_CHOICES:
        raise unsupported("prompt", f"The field '{{param}}' has {len(value)} prompts; the maximum is {MAX_CHOICES}.")
    return value


def _is_token_ids(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(type(token) is int for token in value)


class CompletionRequest(BaseCompletionRequest):
    unlimited = frozenset({"prompt"})

    prompt: Annotated[
        list[Prompt], PlainValidator(_prompts, json_schema_input_type=str | list[str] | list[int] | list[list[int]])
    ] = Field(
        description="A string or token ids, or several such prompts; each has n choices, in the order of the prompts."
    )
    logprobs: Whole | None = Field(None, description="How many of the likeliest tokens to return for each reply token.")
    echo: bool | None = Field(None, description="Start the text with the prompt; with logprobs, include the prompt's.")
    add_special_tokens: bool | None = Field(
        None, description="False tokenizes a prompt's text without special tokens around it, such as BOS."
    )

    @property
    def scores_only(self) -> bool:
        """Whether the request only asks for the prompt's log-probabilities, as evaluation harnesses do."""
        return self.max_tokens == 0 and (bool(self.echo) or self.prompt_logprobs is not None)

    def sampling_params(self) -> SamplingParams:
        params = super().sampling_params()
        choices = len(self.prompt) * params.num_sequences
        if choices > MAX_CHOICES:
            number = "beam_width" if self.use_beam_search else "best_of" if self.chooses_best else "n"
            raise ValueError(
                f"prompt asks for {choices} replies, {len(self.prompt)} prompts with {number}={params.num_sequences}; "
                f"the maximum is {MAX_CHOICES} per request. Send several requests"
            )
        return params

    def reply_logprobs(self) -> int | None:
        return self.logprobs

    def requested_prompt_logprobs(self) -> int | None:
        if not self.echo:
            return super().requested_prompt_logprobs()
        if self.prompt_logprobs is not None:
            raise ValueError("prompt_logprobs and echo with logprobs ask for the same; send one of them")
        # To echo token ids as text, the prompt's log-probabilities are needed: they carry each token's text.
        return 0 if self.logprobs is None and None in self.echoed_texts() else self.logprobs

    def echoed_texts(self) -> list[str | None]:
        """Returns each prompt's text, or None for token ids."""
        return [prompt if isinstance(prompt, str) else None for prompt in self.prompt]

    def reply_limit(self) -> int | None:
        if self.scores_only:
            return 1  # the engine generates at least one token, which drop_replies removes
        return 16 if self.max_tokens is None else self.max_tokens  # OpenAI's own default here


def _token_id(key: str) -> int:
    if not (key.isascii() and key.isdecimal()):
        raise ValueError(f"logit_bias takes token ids as keys, such as \"42\"; '{key[:40]}' is not one.")
    return int(key)
