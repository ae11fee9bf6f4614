"""What callers send. Names are OpenAI's; those OpenAI lacks are spelled as vLLM spells them.

A parameter that is not built is refused by name unless its value asks for nothing: ignoring it would
give a reply that is not what was asked for.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from engine import ChatMessage, SamplingParams

MAX_TOP_LOGPROBS = 20


class Strict(BaseModel):
    """Refuses unknown fields, wrong types, and what is not built."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    #: Parameters that exist but are not built, each with the values that ask for nothing.
    not_built: ClassVar[Mapping[str, tuple[object, ...]]] = {}

    @model_validator(mode="before")
    @classmethod
    def _refuse_what_is_not_built(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        kept = dict(data)
        for name in (name for name in data if name in cls.not_built):
            value = kept.pop(name)
            if value is not None and not any(
                type(value) is type(neutral) and value == neutral for neutral in cls.not_built[name]
            ):
                raise PydanticCustomError(
                    "unsupported_parameter",
                    "The parameter '{param}' is not built yet. Leave it out.",
                    {"param": name},
                )
        return kept


class StreamOptions(Strict):
    not_built = {"continuous_usage_stats": (False,), "include_obfuscation": (False,)}

    include_usage: bool = False


class CommonRequest(Strict):
    """What both kinds of completion take."""

    not_built = {
        "audio": (),
        "best_of": (1,),
        "function_call": ("none",),
        "functions": ([],),
        "modalities": (["text"],),
        "parallel_tool_calls": (True, False),  # without tools it asks for nothing
        "prediction": (),
        "reasoning_effort": ("none",),
        "response_format": ({"type": "text"},),
        "service_tier": ("auto", "default"),
        "store": (False,),
        "suffix": ("",),
        "tool_choice": ("none",),
        "tools": ([],),
        "verbosity": (),
        "web_search_options": (),
    }

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = Field(None, description="Who is asking, for the caller's own records. Changes nothing.")
    metadata: dict[str, str] | None = Field(None, description="For the caller's own records. Changes nothing.")
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    seed: int | None = None
    bad_words: list[str] | None = Field(None, description="Words whose usual tokens are never completed.")
    forbidden_words: list[str] | None = Field(
        None, description="Words the reply never contains, in any casing and however split into tokens."
    )
    n: int | None = Field(None, description="1 to 16 replies to the same prompt, which is read once.")
    logit_bias: dict[str, float] | None = Field(None, description="Token id → bias.")
    deadline: float | None = Field(
        None,
        gt=0,
        description="Seconds. A reply that takes longer ends as at its maximum length, with the stop_reason "
        "'deadline'; one that has not begun by then is an error.",
    )
    priority: int = Field(
        0, ge=-1000, le=1000, description="Lower comes first: each step counts as arriving a minute earlier."
    )
    prompt_logprobs: int | None = Field(None, description="How many likeliest tokens to tell for each of the prompt's.")
    return_token_ids: bool | None = Field(None, description="Also return each choice's token ids.")

    @model_validator(mode="after")
    def _options_need_a_stream(self) -> CommonRequest:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options is for streams: set stream to true, or leave it out")
        return self

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

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


class TextPart(Strict):
    type: Literal["text"]
    text: str


class Message(Strict):
    """One message of the conversation. A reply of ours can be sent back as it came."""

    not_built = {
        "annotations": ([],),
        "audio": (),
        "function_call": (),
        "name": (),
        "reasoning_content": ("",),
        "refusal": (),
        "tool_calls": ([],),
    }

    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[TextPart], Field(min_length=1)]

    def for_engine(self) -> ChatMessage:
        content = self.content if isinstance(self.content, str) else "\n".join(p.text for p in self.content)
        return {"role": "system" if self.role == "developer" else self.role, "content": content}


class Conversation(Strict):
    """What a reply is asked for to, or the rest of one."""

    messages: list[Message] = Field(min_length=1)
    continue_final_message: bool | None = Field(
        None, description="Go on with the last message, which is a reply, and answer with what is new."
    )
    add_generation_prompt: bool | None = Field(None, description="False to continue a reply, true to begin one.")

    @model_validator(mode="after")
    def _begins_or_continues(self) -> Conversation:
        continues = bool(self.continue_final_message)
        if self.add_generation_prompt is continues:
            raise ValueError("add_generation_prompt must be the opposite of continue_final_message, or left out")
        if continues and self.messages[-1].role != "assistant":
            raise ValueError("continue_final_message needs a reply, with the role 'assistant', as the last message")
        return self

    def for_engine(self) -> list[ChatMessage]:
        messages = [message.for_engine() for message in self.messages]
        if self.continue_final_message:
            messages[-1]["unfinished"] = True
        return messages


class TokenizeRequest(Conversation):
    model: str


class ChatRequest(CommonRequest, Conversation):
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, description="0 to 20 likeliest tokens for each of the reply's.")

    @model_validator(mode="after")
    def _one_limit(self) -> ChatRequest:
        if None not in (self.max_tokens, self.max_completion_tokens):
            raise ValueError("max_tokens and max_completion_tokens are the same limit; send one of them")
        return self

    def reply_limit(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    def reply_logprobs(self) -> int | None:
        top = self.top_logprobs or 0
        if not 0 <= top <= MAX_TOP_LOGPROBS:
            raise ValueError(f"top_logprobs must be between 0 and {MAX_TOP_LOGPROBS} (got {top})")
        if top and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs: set logprobs to true, or leave top_logprobs out")
        return top if self.logprobs else None


class TextRequest(CommonRequest):
    prompt: str | list[int] | list[str] = Field(description="One prompt: a text, or token ids.")
    logprobs: int | None = Field(None, description="0 to 20 likeliest tokens for each of the reply's.")
    echo: bool | None = Field(None, description="Begin the text with the prompt; with logprobs, tell the prompt's too.")

    @model_validator(mode="after")
    def _one_prompt(self) -> TextRequest:
        if isinstance(self.prompt, list) and self.prompt and isinstance(self.prompt[0], str) and len(self.prompt) > 1:
            raise ValueError("several prompts in one request are not built yet; send one request for each")
        return self

    def reply_logprobs(self) -> int | None:
        return self.logprobs

    def asked_prompt_logprobs(self) -> int | None:
        if not self.echo:
            return super().asked_prompt_logprobs()
        if self.prompt_logprobs is not None:
            raise ValueError("prompt_logprobs and echo with logprobs ask for the same; send one of them")
        # The text of token ids comes with their log-probabilities.
        return 0 if self.logprobs is None and self.echoed_text() is None else self.logprobs

    def echoed_text(self) -> str | None:
        """The prompt's text, unless it came as token ids."""
        prompt = self.single_prompt()
        return prompt if isinstance(prompt, str) else None

    def single_prompt(self) -> str | list[int]:
        if isinstance(self.prompt, list) and self.prompt and isinstance(self.prompt[0], str):
            return self.prompt[0]
        return self.prompt  # type: ignore[return-value]  # a list of texts was handled above

    def reply_limit(self) -> int | None:
        return 16 if self.max_tokens is None else self.max_tokens  # OpenAI's own default here


def _token_id(key: str) -> int:
    if not (key.isascii() and key.isdecimal()):
        raise ValueError(f"logit_bias takes token ids as keys, such as \"42\"; '{key[:40]}' is none.")
    return int(key)
