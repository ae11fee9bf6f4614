"""Per-request sampling parameters: validated, immutable."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import inf
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

from engine.beam_search_params import BeamSearchParams
from engine.errors import InvalidRequestError, ModelLoadError
from engine.parameter_table import MAX_WHOLE, PARAMETERS, Kind, Parameter
from engine.structured_output import StructuredOutput

if TYPE_CHECKING:
    from transformers import GenerationConfig

MAX_PRIORITY = 1000
BACKGROUND_PRIORITY = MAX_PRIORITY
"""Priority of requests that run on what replies leave: they wait for all others and give way to them."""
MAX_DEADLINE_SECONDS = MAX_WHOLE
MAX_SHOWN = 100
"""Characters of a refused value that the error message repeats; the rest is cut."""


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
            raise _wrong("structured", self.structured, "a StructuredOutput")
        if self.beam_search is not None and not isinstance(self.beam_search, BeamSearchParams):
            raise _wrong("beam_search", self.beam_search, "BeamSearchParams")
        for name, parameter in PARAMETERS.items():
            value = getattr(self, name)
            if value is not parameter.default:  # as most are
                object.__setattr__(self, name, _check(parameter, value))
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
                    raise _wrong(name, token_id, f"token ids below the model's vocabulary size, {vocab_size}")

    def check_logprobs(self, limit: int) -> None:
        """Refuses more log-probabilities than the engine's settings allow.

        Raises:
            InvalidRequestError: naming the field, the limit and the setting.
        """
        for name, count in (("logprobs", self.logprobs), ("prompt_logprobs", self.prompt_logprobs)):
            if count is not None and count > limit:
                raise _wrong(name, count, f"between 0 and {limit}, the ENGINE_MAX_LOGPROBS of this server")


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
        number = _number("deadline", seconds, 0, MAX_DEADLINE_SECONDS)
    except InvalidRequestError:
        number = 0
    if number == 0:
        raise _wrong("deadline", seconds, f"a number of seconds greater than 0, at most {MAX_DEADLINE_SECONDS}")
    return number


def check_priority(priority: object) -> int:
    """Returns a request's priority; lower is served first.

    Raises:
        InvalidRequestError: the value is not a whole number between -1000 and 1000.
    """
    number = _integer("priority", priority, -MAX_PRIORITY, MAX_PRIORITY)
    return 0 if number is None else number


def _wrong(name: str, value: object, allowed: str) -> InvalidRequestError:
    return InvalidRequestError(f"{name} must be {allowed} (got {shown(value)})")


def shown(value: object) -> str:
    """Returns a refused value for an error message, cut to :data:`MAX_SHOWN` characters."""
    try:
        text = repr(value)
    except ValueError:  # Python refuses to print integers of more than 4,300 digits
        return "a number of thousands of digits"
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"


def _number(name: str, value: object, low: float, high: float) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, Real):
        raise _wrong(name, value, f"a number between {low} and {high}")
    try:
        number = float(value)
    except OverflowError:
        number = inf
    if not low <= number <= high:  # also refuses NaN, for which every comparison is false
        raise _wrong(name, value, f"between {low} and {high}")
    return number


def _integer(name: str, value: object, low: int, high: int) -> int | None:
    if value is None:
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # JSON has one kind of number, and some clients write 8 as 8.0
    allowed = f"between {low} and {high}"
    if high == MAX_WHOLE:
        above = isinstance(value, Integral) and int(value) > high
        allowed = f"at most {high}" if above else f"at least {low}"
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise _wrong(name, value, f"a whole number, {allowed}")
    number = int(value)
    if not low <= number <= high:
        raise _wrong(name, value, allowed)
    return number


def _check(parameter: Parameter, value: object) -> Any:
    """Returns a parameter's value in its own type: a float, an int, a tuple of strings and so on.

    None is a number's default.

    Raises:
        InvalidRequestError: the value is out of range; names the parameter, the value and the range.
    """
    if value is None and (parameter.kind.is_number or parameter.default is None):
        return parameter.default
    if isinstance(value, Real) and not isinstance(value, bool):
        for alias, meant in parameter.aliases.items():
            if value == alias:
                return meant
    return _CHECKS[parameter.kind](parameter, value)


def _check_number(parameter: Parameter, value: object) -> float | None:
    return _number(parameter.name, value, parameter.low, parameter.high)


def _check_whole(parameter: Parameter, value: object) -> int | None:
    try:
        return _integer(parameter.name, value, int(parameter.low), int(parameter.high))
    except InvalidRequestError:
        if not parameter.range_note or (isinstance(value, Integral) and int(value) > parameter.high):
            raise
        raise _wrong(parameter.name, value, f"a whole number, {parameter.range_note}") from None


def _check_flag(parameter: Parameter, value: object) -> bool:
    if not isinstance(value, bool):
        raise _wrong(parameter.name, value, "true or false")
    return value


def _check_strings(parameter: Parameter, value: object) -> tuple[str, ...]:
    name, limit = parameter.name, parameter.max_chars
    strings = (value,) if isinstance(value, str) else _items(name, value, "a string or a list of strings")
    _check_length(parameter, strings)
    for string in strings:
        if not isinstance(string, str) or not 1 <= len(string) <= limit:
            raise _wrong(name, string, f"strings of 1 to {limit} characters")
    return strings


def _check_words(parameter: Parameter, value: object) -> tuple[str, ...]:
    name, limit = parameter.name, parameter.max_chars
    words = _items(name, value, f"a list of {parameter.range}")
    _check_length(parameter, words)
    for word in words:
        if not isinstance(word, str) or not word.strip() or len(word) > limit:
            raise _wrong(name, word, f"words of 1 to {limit} characters, not only white space")
    return words


def _check_token_ids(parameter: Parameter, value: object) -> tuple[int, ...]:
    allowed = "a list of token ids, whole numbers of at least 0"
    items = _items(parameter.name, value, allowed)
    _check_length(parameter, items)
    return tuple(_token_id(parameter.name, item, allowed) for item in items)


def _check_token_biases(parameter: Parameter, value: object) -> dict[int, float]:
    name, low, high = parameter.name, parameter.low, parameter.high
    allowed = f"a mapping of token ids to numbers between {low} and {high}"
    if not isinstance(value, Mapping):
        raise _wrong(name, value, allowed)
    if len(value) > parameter.max_items:
        raise _wrong(name, f"{len(value)} token ids", f"for at most {parameter.max_items} token ids")
    biases: dict[int, float] = {}
    for token_id, bias in value.items():
        number = _number(f"{name}[{token_id!r}]", bias, low, high)
        if number is None:
            raise _wrong(f"{name}[{token_id!r}]", bias, f"a number between {low} and {high}")
        biases[_token_id(name, token_id, allowed)] = number
    return biases


_CHECKS: Mapping[Kind, Callable[[Parameter, object], Any]] = {
    Kind.NUMBER: _check_number,
    Kind.WHOLE: _check_whole,
    Kind.FLAG: _check_flag,
    Kind.STRINGS: _check_strings,
    Kind.WORDS: _check_words,
    Kind.TOKEN_IDS: _check_token_ids,
    Kind.TOKEN_BIASES: _check_token_biases,
}


def _check_length(parameter: Parameter, items: tuple[Any, ...]) -> None:
    if len(items) > parameter.max_items:
        kind = parameter.kind
        raise _wrong(parameter.name, f"{len(items)} {kind}", f"at most {parameter.max_items} {kind}")


def _token_id(name: str, value: object, allowed: str) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < 0:
        raise _wrong(name, value, allowed)
    if int(value) > MAX_WHOLE:
        raise _wrong(name, value, f"token ids of at most {MAX_WHOLE}")
    return int(value)


def _items(name: str, value: object, allowed: str) -> tuple[Any, ...]:
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise _wrong(name, value, allowed)
    return tuple(value)
