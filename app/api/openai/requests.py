"""What callers ask for. Names are OpenAI's; those OpenAI lacks are spelled as vLLM spells them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field, PlainValidator, StringConstraints, model_validator

from app.api.openai.fields import REQUEST_FIELDS, STREAM_FIELDS, Lenient, checked_text, unsupported
from app.api.openai.messages import ChatInput
from engine import BACKGROUND_PRIORITY, MAX_PRIORITY, SamplingParams

MAX_CHOICES = 128
"""Upper bound of the replies to one request, which are its prompts times ``n``."""


def _as_whole(value: object) -> object:
    """JSON has one kind of number, and some clients write 8 as 8.0."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = Annotated[int, BeforeValidator(_as_whole)]


class StreamOptions(Lenient):
    no_ops = STREAM_FIELDS

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = Field(
        None, description="With include_usage: every chunk says the usage so far."
    )


class BaseCompletionRequest(Lenient):
    """What both kinds of completion take."""

    no_ops = REQUEST_FIELDS
    #: What callers call a parameter of the engine, where that is another name.
    spelling: ClassVar[Mapping[str, str]] = {}

    model: str | None = Field(None, description="Default: the one that is loaded.")
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Whole | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    max_tokens: Whole | None = None
    min_tokens: Whole | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    seed: Whole | None = Field(None, description="Makes the reply's noise reproducible; -1 is random.")
    bad_words: list[str] | None = Field(None, description="Words whose usual tokens are never completed.")
    forbidden_words: list[str] | None = Field(
        None, description="Words the reply never contains, in any casing and however split into tokens."
    )
    n: Whole | None = Field(None, description="1 to 16 replies to the same prompt, which is read once.")
    logit_bias: dict[str, float] | None = Field(None, description="Token id → bias.")
    deadline: float | None = Field(
        None,
        gt=0,
        description="Seconds. A reply that takes longer ends as at its maximum length, with the stop_reason "
        "'deadline'; one that has not begun by then is an error.",
    )
    priority: Whole = Field(
        0,
        ge=-MAX_PRIORITY,
        le=MAX_PRIORITY,
        description="Lower comes first: each step counts as arriving a minute earlier. Below 0 is for admins. "
        f"{BACKGROUND_PRIORITY} is the background: such a request gives way to every other.",
    )
    cache_salt: str | None = Field(
        None,
        max_length=256,
        description="Only requests with an equal salt find this one's text in the prefix cache. With accounts, another "
        "user's never do, not even the same system message's.",
    )
    prompt_logprobs: Whole | None = Field(
        None, description="How many likeliest tokens to tell for each of the prompt's."
    )
    return_token_ids: bool | None = Field(None, description="Also return each choice's token ids.")
    request_id: Annotated[str, StringConstraints(pattern=r"^[\w.:-]{1,128}$")] | None = Field(
        None, description="What the answer's id ends with; default: a number of ours."
    )

    @model_validator(mode="after")
    def _options_need_a_stream(self) -> BaseCompletionRequest:
        options = self.stream_options
        if options is not None and (options.include_usage or options.continuous_usage_stats) and not self.stream:
            raise ValueError("stream_options is for streams: set stream to true, or leave it out")
        return self

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options is not None and self.stream_options.include_usage)

    @property
    def continuous_usage(self) -> bool:
        return bool(self.include_usage and self.stream_options and self.stream_options.continuous_usage_stats)

    def sampling_params(self) -> SamplingParams:
        """As the engine takes them; what was not sent is the model's default.

        Raises:
            ValueError: a value is out of range; names the parameter, the value and the range.
        """
        names = (
            "temperature",
            "top_p",
            "top_k",
            "min_p",
            "typical_p",
            "repetition_penalty",
            "presence_penalty",
            "frequency_penalty",
            "min_tokens",
            "stop",
            "stop_token_ids",
            "ignore_eos",
            "seed",
            "bad_words",
            "forbidden_words",
            "n",
        )
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        if self.logit_bias is not None:
            given["logit_bias"] = {_token_id(key): bias for key, bias in self.logit_bias.items()}
        return SamplingParams(
            max_tokens=self.reply_limit(),
            logprobs=self.reply_logprobs(),
            prompt_logprobs=self.asked_prompt_logprobs(),
            **given,
        )

    def reply_limit(self) -> int | None:
        """The longest reply in tokens, or None for the model's default."""
        return self.max_tokens

    @abstractmethod
    def reply_logprobs(self) -> int | None:
        """How many likeliest tokens to tell for each of the reply's; None for no log-probabilities."""

    def asked_prompt_logprobs(self) -> int | None:
        """The same for the prompt's."""
        if self.prompt_logprobs is not None and self.stream:
            raise ValueError("prompt_logprobs is for whole answers: set stream to false, or leave it out")
        return self.prompt_logprobs


class ChatCompletionRequest(BaseCompletionRequest, ChatInput):
    spelling: ClassVar[Mapping[str, str]] = {"logprobs": "top_logprobs"}

    max_completion_tokens: Whole | None = None
    logprobs: bool | None = None
    top_logprobs: Whole | None = Field(None, description="How many likeliest tokens to tell for each of the reply's.")

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
    """One prompt, a text or token ids, or a list of them."""
    prompts: list[Any] = [value] if isinstance(value, str) or _is_token_ids(value) else _list_of_prompts(value)
    for index, prompt in enumerate(prompts):
        if isinstance(prompt, str):
            checked_text(f"prompt[{index}]", prompt)
        elif not _is_token_ids(prompt):
            raise unsupported(f"prompt[{index}]", "The field '{param}' must be a text or a list of token ids.")
    return prompts


def _list_of_prompts(value: object) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise unsupported("prompt", "The field '{param}' must be a text, token ids, or a list of such prompts.")
    return value


def _is_token_ids(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(type(token) is int for token in value)


class CompletionRequest(BaseCompletionRequest):
    prompt: Annotated[
        list[Prompt], PlainValidator(_prompts, json_schema_input_type=str | list[str] | list[int] | list[list[int]])
    ] = Field(
        description="A text or token ids, or several such prompts; each has n choices, one prompt's after another's."
    )
    logprobs: Whole | None = Field(None, description="How many likeliest tokens to tell for each of the reply's.")
    echo: bool | None = Field(None, description="Begin the text with the prompt; with logprobs, tell the prompt's too.")
    add_special_tokens: bool | None = Field(
        None, description="False: a prompt's text is read without the special tokens around it, such as BOS."
    )

    @property
    def scores_only(self) -> bool:
        """Asks for the prompt's own log-probabilities and no reply, as evaluation programs do."""
        return self.max_tokens == 0 and (bool(self.echo) or self.prompt_logprobs is not None)

    def sampling_params(self) -> SamplingParams:
        params = super().sampling_params()
        choices = len(self.prompt) * params.n
        if choices > MAX_CHOICES:
            raise ValueError(
                f"prompt asks for {choices} replies, {len(self.prompt)} prompts with n={params.n}; one request may ask "
                f"for {MAX_CHOICES}. Send several requests"
            )
        return params

    def reply_logprobs(self) -> int | None:
        return self.logprobs

    def asked_prompt_logprobs(self) -> int | None:
        if not self.echo:
            return super().asked_prompt_logprobs()
        if self.prompt_logprobs is not None:
            raise ValueError("prompt_logprobs and echo with logprobs ask for the same; send one of them")
        # The text of token ids comes with their log-probabilities.
        return 0 if self.logprobs is None and None in self.echoed_texts() else self.logprobs

    def echoed_texts(self) -> list[str | None]:
        """Each prompt's text, None for token ids."""
        return [prompt if isinstance(prompt, str) else None for prompt in self.prompt]

    def reply_limit(self) -> int | None:
        if self.scores_only:
            return 1  # the engine writes at least one token, which is not told
        return 16 if self.max_tokens is None else self.max_tokens  # OpenAI's own default here


def _token_id(key: str) -> int:
    if not (key.isascii() and key.isdecimal()):
        raise ValueError(f"logit_bias takes token ids as keys, such as \"42\"; '{key[:40]}' is none.")
    return int(key)
