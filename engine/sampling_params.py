"""Per-request sampling parameters: validated, immutable."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from engine.beam_search_params import BeamSearchParams
from engine.errors import InvalidRequestError, ModelLoadError
from engine.parameter_table import MAX_WHOLE, PARAMETERS
from engine.parameter_values import checked_integer, checked_number, checked_value, refusal, shown
from engine.structured_output import StructuredOutput

if TYPE_CHECKING:
    from transformers import GenerationConfig

MAX_PRIORITY = 1000
BACKGROUND_PRIORITY = MAX_PRIORITY
"""Priority of requests that run on what replies leave: they wait for all others and give way to them."""
MAX_DEADLINE_SECONDS = MAX_WHOLE


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Sampling parameters of a request. ``None`` is the model's own default (see ``Engine.default_sampling_params``).

    A value out of range is refused, never clamped. :mod:`engine.parameter_table` says what each field takes and does;
    ``help(SamplingParams)`` and ``docs/sampling.md`` show it.

    ``structured`` holds the reply to a form: a JSON schema, a regular expression, choices, or a grammar.

    ``beam_search`` searches for the ``n`` likeliest replies instead of sampling. They come whole, best first. What
    alters probabilities, or ends a reply by its text, cannot be combined with it, see :meth:`check_beam_search`.

    Raises:
        InvalidRequestError: a ``ValueError`` that names the field, the value and the allowed range.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    top_n_sigma: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    max_tokens: int | None = None
    min_tokens: int = 0
    stop: str | tuple[str, ...] | list[str] = ()
    stop_regex: str | tuple[str, ...] | list[str] = ()
    stop_token_ids: tuple[int, ...] | list[int] = ()
    ignore_eos: bool = False
    seed: int | None = None
    n: int = 1
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logit_bias: Mapping[int, float] | None = None
    bad_words: tuple[str, ...] | list[str] = ()
    forbidden_words: tuple[str, ...] | list[str] = ()
    structured: StructuredOutput | None = None
    beam_search: BeamSearchParams | None = None

    def __post_init__(self) -> None:
        if self.structured is not None and not isinstance(self.structured, StructuredOutput):
            raise refusal("structured", self.structured, "a StructuredOutput")
        if self.beam_search is not None and not isinstance(self.beam_search, BeamSearchParams):
            raise refusal("beam_search", self.beam_search, "BeamSearchParams")
        for name, parameter in PARAMETERS.items():
            value = getattr(self, name)
            if value is not parameter.default:  # as most are
                object.__setattr__(self, name, checked_value(parameter, value))
        self._check_together()

    def _check_together(self) -> None:
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequestError(
                f"min_tokens must be at most max_tokens (got {self.min_tokens} and {self.max_tokens})"
            )
        if self.beam_search is not None and self.n > self.beam_search.width:
            raise InvalidRequestError(f"n must be at most beam_width (got {self.n} and {self.beam_search.width})")

    @classmethod
    def neutral(cls, **changed: Any) -> SamplingParams:
        """Returns parameters that sample from the model's own distribution, and are complete for the sampler.

        Args:
            **changed: fields with other values.
        """
        return cls(**{name: parameter.neutral for name, parameter in PARAMETERS.items()} | changed)

    @classmethod
    def from_generation_config(cls, config: GenerationConfig) -> SamplingParams:
        """Returns the model's own defaults, from its ``generation_config.json``.

        Every field that the sampler reads is set. Fields missing in the file are neutral (temperature 1, no filter, no
        penalty), not transformers' defaults (greedy, top-k 50). ``do_sample: false`` means temperature 0.
        ``max_tokens`` stays ``None``, limited by the context window only, unless the file sets ``max_new_tokens``.

        Raises:
            ModelLoadError: the file holds a value out of range.
        """
        stated = {
            name: value
            for name, parameter in PARAMETERS.items()
            if parameter.config_name and (value := getattr(config, parameter.config_name, None)) is not None
        }
        if config.do_sample is False:
            stated["temperature"] = 0.0
        try:
            return cls.neutral(**stated)
        except InvalidRequestError as error:
            raise ModelLoadError(f"The model's generation_config.json cannot be used: {error}.") from error

    def with_defaults(self, defaults: SamplingParams) -> SamplingParams:
        """Returns these parameters with every ``None`` replaced from ``defaults``."""
        return self.replace_valid(
            **{name: getattr(defaults, name) for name in self.__slots__ if getattr(self, name) is None}
        )

    def replace_valid(self, **values: Any) -> SamplingParams:
        """Returns a copy with these values, which are not validated; only whether they go together with the others is.

        For values that were validated before, or that the caller made. ``dataclasses.replace`` validates all fields.

        Raises:
            InvalidRequestError: they do not go together.
        """
        copy = object.__new__(type(self))
        for name in self.__slots__:
            object.__setattr__(copy, name, getattr(self, name))
        for name, value in values.items():
            object.__setattr__(copy, name, value)
        copy._check_together()
        return copy

    @property
    def num_sequences(self) -> int:
        """Number of sequences that are computed for a prompt: the beams of a search, or the replies."""
        return self.n if self.beam_search is None else self.beam_search.width

    def check_beam_search(self) -> None:
        """Refuses parameters that beam search does not combine with.

        A temperature of 0 or 1 is accepted, since clients send one by habit, and a seed, since nothing is random.

        Raises:
            InvalidRequestError: naming the first of them.
        """
        for name in PARAMETERS:
            value = getattr(self, name)
            if name in _WITH_BEAMS or value is None or value in (PARAMETERS[name].default, PARAMETERS[name].neutral):
                continue
            if name == "temperature" and value == 0:
                continue
            raise InvalidRequestError(f"{name} cannot be combined with beam search. Leave it out (got {shown(value)})")
        if self.structured is not None:
            raise InvalidRequestError("structured output cannot be combined with beam search. Leave one of them out")

    def check_vocabulary(self, vocab_size: int) -> None:
        """Refuses token ids that the model does not have.

        Raises:
            InvalidRequestError: naming the field and the token id.
        """
        for name, ids in (("stop_token_ids", self.stop_token_ids), ("logit_bias", self.logit_bias or ())):
            for token_id in ids:
                if token_id >= vocab_size:
                    raise refusal(name, token_id, f"token ids below the model's vocabulary size, {vocab_size}")

    def check_logprobs(self, limit: int) -> None:
        """Refuses more log-probabilities than the engine's settings allow.

        Raises:
            InvalidRequestError: naming the field, the limit and the setting.
        """
        for name, count in (("logprobs", self.logprobs), ("prompt_logprobs", self.prompt_logprobs)):
            if count is not None and count > limit:
                raise refusal(name, count, f"between 0 and {limit}, the ENGINE_MAX_LOGPROBS of this server")


_WITH_BEAMS = frozenset({"max_tokens", "stop_token_ids", "ignore_eos", "seed", "n", "logprobs", "prompt_logprobs"})
"""Parameters that beam search combines with."""


def _fields_text() -> str:
    lines = ["Args:"]
    for name, parameter in PARAMETERS.items():
        text = f"{name}: {parameter.range}; {parameter.description}."
        lines += textwrap.wrap(text, 112, initial_indent="    ", subsequent_indent="        ")
    return "\n".join(lines)


# ``help(SamplingParams)`` shows each field's range and meaning.
SamplingParams.__doc__ = f"{inspect.cleandoc(SamplingParams.__doc__ or '')}\n\n{_fields_text()}\n"


def check_deadline(seconds: object) -> float | None:
    """Returns the seconds that a request may take; None for no limit.

    Raises:
        InvalidRequestError: the value is not a number above 0, or is above :data:`MAX_DEADLINE_SECONDS`.
    """
    try:
        number = checked_number("deadline", seconds, 0, MAX_DEADLINE_SECONDS)
    except InvalidRequestError:
        number = 0
    if number == 0:
        raise refusal("deadline", seconds, f"a number of seconds greater than 0, at most {MAX_DEADLINE_SECONDS}")
    return number


def check_priority(priority: object) -> int:
    """Returns a request's priority; lower is served first.

    Raises:
        InvalidRequestError: the value is not a whole number between -1000 and 1000.
    """
    number = checked_integer("priority", priority, -MAX_PRIORITY, MAX_PRIORITY)
    return 0 if number is None else number
