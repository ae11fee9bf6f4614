"""Per-request sampling parameters: validated, immutable."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from math import inf
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

from engine.errors import InvalidRequestError, ModelLoadError, UnsupportedParameterError

if TYPE_CHECKING:
    from transformers import GenerationConfig

MAX_WHOLE = 2**31 - 1
"""Upper bound of whole-number fields without a smaller one: fits a 32-bit integer and JavaScript's numbers. A larger
value is refused."""
# Limits per request; a value beyond one is refused with InvalidRequestError. Lengths are in characters.
MAX_STOP_STRINGS = 16
MAX_STOP_LENGTH = 256
MAX_SEED = 2**63 - 1
MAX_REPLIES = 16
MAX_LOGPROBS = 1000
"""Upper bound of ``EngineSettings.max_logprobs``, which is the limit for a request."""
MAX_WORDS = 256
MAX_WORD_LENGTH = 128
MAX_STOP_TOKEN_IDS = 1024
MAX_LOGIT_BIASES = 1024
MAX_PRIORITY = 1000
BACKGROUND_PRIORITY = MAX_PRIORITY
"""Priority of requests that run on what replies leave: they wait for all others and give way to them."""
MAX_DEADLINE_SECONDS = MAX_WHOLE
MAX_SHOWN = 100
"""Characters of a refused value that the error message repeats; the rest is cut."""

NUMBER_BOUNDS: Mapping[str, tuple[float, float]] = {
    "temperature": (0, 10),
    "top_p": (0, 1),
    "min_p": (0, 1),
    "typical_p": (0, 1),
    "repetition_penalty": (0.01, 100),
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2),
}
"""Lowest and highest value of each numeric field that takes fractions."""

WHOLE_BOUNDS: Mapping[str, tuple[int, int]] = {
    "top_k": (-1, MAX_WHOLE),
    "max_tokens": (1, MAX_WHOLE),
    "min_tokens": (0, MAX_WHOLE),
    "n": (1, MAX_REPLIES),
    "seed": (0, MAX_SEED),
    "logprobs": (0, MAX_LOGPROBS),
    "prompt_logprobs": (0, MAX_LOGPROBS),
}
"""Lowest and highest value of each field that takes a whole number. Kernels pack them into 64 bits at most, so each
has an upper bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Sampling parameters of a request. ``None`` is the model's own default (see ``Engine.default_sampling_params``).

    A value out of range is refused, never clamped.

    Args:
        temperature: 0 to 10; 0 always takes the likeliest token, 1 samples from the model's own distribution.
        top_p: 0 to 1; keeps the likeliest tokens that together have this probability, at least one.
        top_k: at most 2**31 - 1; keeps this many of the likeliest tokens (and ties with the last); 0 or -1 keeps all.
        min_p: 0 to 1; drops tokens less likely than this share of the likeliest one's probability.
        typical_p: 0 to 1; after the other filters, keeps the tokens whose surprise is nearest to the expected one and
            that together have this probability, at least one.
        repetition_penalty: 0.01 to 100; above 1, tokens of the prompt and the reply become less likely.
        presence_penalty: -2 to 2; subtracted from the logit of every token in the reply.
        frequency_penalty: -2 to 2; subtracted from a token's logit once for each occurrence in the reply.
        max_tokens: maximum length of the reply, 1 to 2**31 - 1; the context window limits it in any case.
        min_tokens: no end of sequence, stop token or stop string ends the reply before this many tokens.
        stop: one string or up to 16, of at most 256 characters each; the reply ends before the first match.
        stop_token_ids: up to 1024 tokens that end the reply as the model's own end of sequence does.
        ignore_eos: continues after the model's end of sequence.
        n: 1 to 16 replies to the same prompt, which is computed once; each has its own random numbers, the first
            those of the seed itself.
        seed: 0 to 2**63 - 1; makes the reply reproducible. -1 is random, as in vLLM and llama.cpp.
        logprobs: 0 to ``EngineSettings.max_logprobs``; returns each token's log-probability and those of this many
            likeliest tokens, from the model's own distribution, before any of these parameters.
        prompt_logprobs: the same for the prompt's tokens, with the same limit. The whole prompt is then computed, even
            where the prefix cache holds the start of it.
        logit_bias: up to 1024 token ids, each with -100 to 100, added to the logit before everything else.
        bad_words: up to 256 words of at most 128 characters; their usual token sequences, with and without a leading
            space, are never completed. Other casings and other splits into tokens are not caught.
        forbidden_words: up to 256 words of at most 128 characters that the reply's text never contains, in any casing
            and any split into tokens; matches whole words, see ``engine.text.word_matching``.

    ``response_format`` is not supported yet: anything but ``None`` and ``{"type": "text"}`` raises
    :class:`UnsupportedParameterError`.

    Raises:
        InvalidRequestError: a ``ValueError`` that names the field, the value and the allowed range.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    max_tokens: int | None = None
    min_tokens: int = 0
    stop: str | tuple[str, ...] | list[str] = ()
    stop_token_ids: tuple[int, ...] | list[int] = ()
    ignore_eos: bool = False
    seed: int | None = None
    n: int = 1
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logit_bias: Mapping[int, float] | None = None
    bad_words: tuple[str, ...] | list[str] = ()
    forbidden_words: tuple[str, ...] | list[str] = ()
    response_format: Mapping[str, object] | None = None

    def __post_init__(self) -> None:
        self._check_unsupported()
        for name, (low, high) in NUMBER_BOUNDS.items():
            self._set(name, _number(name, getattr(self, name), low, high))
        if self.seed == -1:
            self._set("seed", None)
        for name in WHOLE_BOUNDS:
            self._set(name, _bounded(name, getattr(self, name)))
        for name, default in (("n", 1), ("min_tokens", 0)):
            if getattr(self, name) is None:
                self._set(name, default)
        if self.top_k == -1:
            self._set("top_k", 0)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequestError(
                f"min_tokens must be at most max_tokens (got {self.min_tokens} and {self.max_tokens})"
            )
        self._set("stop", _stop_strings(self.stop))
        self._set("stop_token_ids", _token_ids(self.stop_token_ids))
        if not isinstance(self.ignore_eos, bool):
            raise _wrong("ignore_eos", self.ignore_eos, "true or false")
        self._set("bad_words", _words("bad_words", self.bad_words))
        self._set("forbidden_words", _words("forbidden_words", self.forbidden_words))
        self._set("logit_bias", _logit_bias(self.logit_bias))

    @classmethod
    def from_generation_config(cls, config: GenerationConfig) -> SamplingParams:
        """Returns the model's own defaults, from its ``generation_config.json``.

        Every field that the sampler reads is set. Fields missing in the file are neutral (temperature 1, no filter, no
        penalty), not transformers' defaults (greedy, top-k 50). ``do_sample: false`` means temperature 0.
        ``max_tokens`` stays ``None``, limited by the context window only, unless the file sets ``max_new_tokens``.

        Raises:
            ModelLoadError: the file holds a value out of range.
        """
        temperature = _stated(config, "temperature", 1.0)
        try:
            return cls(
                temperature=0.0 if config.do_sample is False else temperature,
                top_p=_stated(config, "top_p", 1.0),
                top_k=_stated(config, "top_k", 0),
                min_p=_stated(config, "min_p", 0.0),
                typical_p=_stated(config, "typical_p", 1.0),
                repetition_penalty=_stated(config, "repetition_penalty", 1.0),
                presence_penalty=_stated(config, "presence_penalty", 0.0),
                frequency_penalty=_stated(config, "frequency_penalty", 0.0),
                max_tokens=_stated(config, "max_new_tokens", None),
            )
        except InvalidRequestError as error:
            raise ModelLoadError(f"The model's generation_config.json cannot be used: {error}.") from error

    def with_defaults(self, defaults: SamplingParams) -> SamplingParams:
        """Returns these parameters with every ``None`` replaced from ``defaults``."""
        missing = {
            field.name: getattr(defaults, field.name) for field in fields(self) if getattr(self, field.name) is None
        }
        return replace(self, **missing)

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
        for name, asked in (("logprobs", self.logprobs), ("prompt_logprobs", self.prompt_logprobs)):
            if asked is not None and asked > limit:
                raise _wrong(name, asked, f"between 0 and {limit}, the ENGINE_MAX_LOGPROBS of this server")

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def _check_unsupported(self) -> None:
        is_unset = {
            "response_format": self.response_format in (None, {"type": "text"}),
        }
        for name, unset in is_unset.items():
            if not unset:
                raise UnsupportedParameterError(f"{name} is not supported yet (got {getattr(self, name)!r})")


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


def _bounded(name: str, value: object) -> int | None:
    try:
        return _integer(name, value, *WHOLE_BOUNDS[name])
    except InvalidRequestError:
        if name != "top_k" or (isinstance(value, Integral) and int(value) > MAX_WHOLE):
            raise
        raise _wrong("top_k", value, "a whole number, at least 1, or 0 or -1 for off") from None


def _stop_strings(value: object) -> tuple[str, ...]:
    strings = (value,) if isinstance(value, str) else _items("stop", value, "a string or a list of strings")
    if len(strings) > MAX_STOP_STRINGS:
        raise _wrong("stop", f"{len(strings)} strings", f"at most {MAX_STOP_STRINGS} strings")
    for string in strings:
        if not isinstance(string, str) or not 1 <= len(string) <= MAX_STOP_LENGTH:
            raise _wrong("stop", string, f"strings of 1 to {MAX_STOP_LENGTH} characters")
    return strings


def _words(name: str, value: object) -> tuple[str, ...]:
    words = _items(name, value, "a list of words")
    if len(words) > MAX_WORDS:
        raise _wrong(name, f"{len(words)} words", f"at most {MAX_WORDS} words")
    for word in words:
        if not isinstance(word, str) or not word.strip() or len(word) > MAX_WORD_LENGTH:
            raise _wrong(name, word, f"words of 1 to {MAX_WORD_LENGTH} characters, not only white space")
    return words


def _token_ids(value: object) -> tuple[int, ...]:
    allowed = "a list of token ids, whole numbers of at least 0"
    items = _items("stop_token_ids", value, allowed)
    if len(items) > MAX_STOP_TOKEN_IDS:
        raise _wrong("stop_token_ids", f"{len(items)} token ids", f"at most {MAX_STOP_TOKEN_IDS} token ids")
    return tuple(_token_id("stop_token_ids", item, allowed) for item in items)


def _token_id(name: str, value: object, allowed: str) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < 0:
        raise _wrong(name, value, allowed)
    if int(value) > MAX_WHOLE:
        raise _wrong(name, value, f"token ids of at most {MAX_WHOLE}")
    return int(value)


def _logit_bias(value: object) -> dict[int, float] | None:
    if value is None:
        return None
    allowed = "a mapping of token ids to numbers between -100 and 100"
    if not isinstance(value, Mapping):
        raise _wrong("logit_bias", value, allowed)
    if len(value) > MAX_LOGIT_BIASES:
        raise _wrong("logit_bias", f"{len(value)} token ids", f"for at most {MAX_LOGIT_BIASES} token ids")
    biases: dict[int, float] = {}
    for token_id, bias in value.items():
        number = _number(f"logit_bias[{token_id!r}]", bias, -100, 100)
        if number is None:
            raise _wrong(f"logit_bias[{token_id!r}]", bias, "a number between -100 and 100")
        biases[_token_id("logit_bias", token_id, allowed)] = number
    return biases


def _items(name: str, value: object, allowed: str) -> tuple[Any, ...]:
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise _wrong(name, value, allowed)
    return tuple(value)


def _stated(config: GenerationConfig, name: str, otherwise: Any) -> Any:
    value = getattr(config, name, None)
    return otherwise if value is None else value
