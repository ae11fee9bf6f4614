"""The table of sampling parameters: what each is called, takes, does, and which engines know it.

Everything that names parameters reads it: the validation in :mod:`engine.sampling_params`, the dialects of model
servers, the row of the C++ sampler, and in the application the fields of ``/v1``, a chat's settings, the presets and
the settings panel; ``docs/sampling.md`` is written from it. A new parameter is an entry here, its typed field in
:class:`engine.sampling_params.SamplingParams`, and what computes it in ``sampling/``: its value in ``SamplingRow`` and
the kernels of each device. ``app.api.openai.fields`` may list its name as unsupported, which then goes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

MAX_WHOLE = 2**31 - 1
"""Upper bound of whole-number parameters without a smaller one: fits a 32-bit integer and JavaScript's numbers. A
larger value is refused."""
MAX_SEED = 2**63 - 1
MAX_LOGPROBS = 1000
"""Upper bound of ``EngineSettings.max_logprobs``, which is the limit for a request."""


class Kind(StrEnum):
    """The types of values."""

    NUMBER = "number"  #: a number, with fractions
    WHOLE = "whole number"
    FLAG = "true or false"
    STRINGS = "strings"  #: one string or several
    WORDS = "words"
    TOKEN_IDS = "token ids"
    TOKEN_BIASES = "token ids with a number each"

    @property
    def is_number(self) -> bool:
        """Whether values are single numbers."""
        return self in (Kind.NUMBER, Kind.WHOLE)


class Group(StrEnum):
    """What a parameter acts on, as the headings of ``docs/sampling.md``."""

    FILTERS = "Choice of the next token"  #: temperature and filters, applied to the final scores
    SCORES = "Penalties, biases and banned words"  #: adjust the model's scores
    END = "Length and end of a reply"
    OUTPUT = "Replies and log-probabilities"


@dataclass(frozen=True, slots=True, kw_only=True)
class Slider:
    """A parameter's slider in the settings panel, which may cover less than the engine accepts.

    Args:
        low: lowest value.
        high: highest value.
        step: distance between neighbouring values.
    """

    low: float
    high: float
    step: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One sampling parameter.

    Args:
        name: the field of :class:`engine.sampling_params.SamplingParams`, of ``/v1`` and of a chat's settings.
        kind: type of its values.
        group: what it acts on.
        label: its name in the page.
        help: one sentence for users, shown below the label.
        description: what it does, for those who write programs; starts in lower case, ends without a full stop.
        low: lowest value of a number, and of each bias.
        high: highest one. Kernels pack numbers into 64 bits at most, so each has a bound.
        max_items: most items of a collection; more are refused.
        max_chars: most characters of each string; a longer one is refused.
        unit: unit of the values; empty if they have none.
        default: value of a request that does not set it. None is the model's own default.
        neutral: the value that changes nothing; None where there is none.
        aliases: values out of range that other programs write for a valid one.
        range_note: replaces the range in error messages where the range alone would mislead.
        config_name: name in ``generation_config.json``; empty if it is not read from there.
        engines: the kinds of engines that know it, by the names of :data:`engine.remote.dialects.DIALECTS`.
        spellings: an engine's name for it where it differs from ours.
        is_native: part of the row that the C++ sampler takes. Rows with another filter are sampled in NumPy.
        in_chat: a setting of chats, shown in the settings panel; for numbers, strings and words.
        is_advanced: shown there only below "Advanced".
        slider: its slider there; None shows a field to type into. The parameters with sliders are those that presets
            set.
        paper: the publication that introduced it.
    """

    name: str
    kind: Kind
    group: Group
    label: str
    help: str
    description: str
    low: float = 0
    high: float = MAX_WHOLE
    max_items: int = 0
    max_chars: int = 0
    unit: str = ""
    default: Any = None
    neutral: Any = None
    aliases: Mapping[float, Any] = field(default_factory=dict)
    range_note: str = ""
    config_name: str = ""
    engines: frozenset[str]
    spellings: Mapping[str, str] = field(default_factory=dict)
    is_native: bool = False
    in_chat: bool = False
    is_advanced: bool = False
    slider: Slider | None = None
    paper: str = ""

    @property
    def sentence(self) -> str:
        """The description as a sentence."""
        return f"{self.description[0].upper()}{self.description[1:]}."

    def spelling(self, engine: str) -> str | None:
        """Returns the engine's name for the parameter, or None if it does not know it."""
        return self.spellings.get(engine, self.name) if engine in self.engines else None

    @property
    def range(self) -> str:
        """The accepted values, as in "between 0 and 1" or "at most 256 words of 1 to 128 characters"."""
        if self.range_note:
            return self.range_note
        if self.kind is Kind.FLAG:
            return "true or false"
        bounds = f"at least {self.low}" if self.high == MAX_WHOLE else f"between {self.low} and {self.high}"
        if self.kind.is_number:
            return bounds
        if self.kind is Kind.TOKEN_BIASES:
            return f"at most {self.max_items} token ids, each with a number {bounds}"
        items = f"at most {self.max_items} {self.kind}"
        return f"{items} of 1 to {self.max_chars} characters" if self.max_chars else items


_DESKMATE: Final = frozenset({"deskmate"})
_VLLM: Final = _DESKMATE | {"vllm", "sglang"}
_LLAMA_CPP: Final = frozenset({"llama.cpp", "llama-cpp-python"})
_ALL: Final = _VLLM | _LLAMA_CPP | {"openai", "tgi"}

_PARAMETERS: Final = (
    Parameter(
        name="temperature",
        kind=Kind.NUMBER,
        group=Group.FILTERS,
        label="Temperature",
        help="Lower is more predictable; 0 always picks the likeliest word.",
        description="divides the scores; 0 always takes the likeliest token, 1 samples from the model's own "
        "distribution",
        low=0,
        high=10,
        neutral=1.0,
        config_name="temperature",
        engines=_ALL,
        is_native=True,
        in_chat=True,
        slider=Slider(low=0, high=2, step=0.05),
    ),
    Parameter(
        name="top_p",
        kind=Kind.NUMBER,
        group=Group.FILTERS,
        label="Top-p",
        help="Keeps the likeliest words until they add up to this share.",
        description="keeps the likeliest tokens that together have this probability, at least one",
        low=0,
        high=1,
        neutral=1.0,
        config_name="top_p",
        engines=_ALL,
        is_native=True,
        in_chat=True,
        slider=Slider(low=0.01, high=1, step=0.01),
        paper='Holtzman et al., "The Curious Case of Neural Text Degeneration" (ICLR 2020, arXiv 1904.09751)',
    ),
    Parameter(
        name="top_k",
        kind=Kind.WHOLE,
        group=Group.FILTERS,
        label="Top-k",
        help="Keeps only this many likeliest words; 0 keeps all.",
        description="keeps this many of the likeliest tokens (and ties with the last); 0 or -1 keeps all",
        low=0,
        unit="tokens",
        neutral=0,
        aliases={-1: 0},  # vLLM's value for off
        range_note="at least 1, or 0 or -1 for off",
        config_name="top_k",
        engines=_VLLM | _LLAMA_CPP,
        is_native=True,
        in_chat=True,
        slider=Slider(low=0, high=200, step=1),
        paper='Fan, Lewis and Dauphin, "Hierarchical Neural Story Generation" (ACL 2018, arXiv 1805.04833)',
    ),
    Parameter(
        name="min_p",
        kind=Kind.NUMBER,
        group=Group.FILTERS,
        label="Min-p",
        help="Drops words less likely than this share of the likeliest one.",
        description="drops tokens less likely than this share of the likeliest one's probability",
        low=0,
        high=1,
        neutral=0.0,
        config_name="min_p",
        engines=_VLLM | _LLAMA_CPP,
        is_native=True,
        in_chat=True,
        slider=Slider(low=0, high=1, step=0.01),
        paper='Nguyen et al., "Turning Up the Heat: Min-p Sampling for Creative and Coherent LLM Outputs" '
        "(ICLR 2025, arXiv 2407.01082)",
    ),
    Parameter(
        name="typical_p",
        kind=Kind.NUMBER,
        group=Group.FILTERS,
        label="Typical-p",
        help="Keeps the words about as likely as expected, up to this share; 1 keeps all.",
        description="after the other filters, keeps the tokens whose surprise is nearest to the expected one and that "
        "together have this probability, at least one",
        low=0,
        high=1,
        neutral=1.0,
        config_name="typical_p",
        engines=_DESKMATE | {"llama.cpp"},
        in_chat=True,
        is_advanced=True,
        slider=Slider(low=0, high=1, step=0.01),
        paper='Meister, Pimentel, Wiher and Cotterell, "Locally Typical Sampling" (TACL 2023, arXiv 2202.00666)',
    ),
    Parameter(
        name="top_n_sigma",
        kind=Kind.NUMBER,
        group=Group.FILTERS,
        label="Top-n-sigma",
        help="Keeps words within this many standard deviations of the best score; 0 keeps all.",
        description="before the other filters, keeps the tokens whose score is at most this many standard deviations "
        "of all scores below the highest, whatever the temperature; banned tokens do not count, and 0 or -1 keeps all",
        low=0,
        high=100,
        neutral=0.0,
        aliases={-1: 0.0},  # llama.cpp's value for off
        config_name="top_n_sigma",
        engines=_DESKMATE | {"llama.cpp"},
        is_native=True,
        in_chat=True,
        is_advanced=True,
        slider=Slider(low=0, high=5, step=0.1),
        paper='Tang, Liu, Xu and Huang, "Top-nσ: Not All Logits Are You Need" (arXiv 2411.07641)',
    ),
    Parameter(
        name="repetition_penalty",
        kind=Kind.NUMBER,
        group=Group.SCORES,
        label="Repetition penalty",
        help="Above 1, words already used become less likely.",
        description="above 1, tokens of the prompt and the reply become less likely",
        low=0.01,
        high=100,
        neutral=1.0,
        config_name="repetition_penalty",
        engines=_VLLM | _LLAMA_CPP,
        spellings=dict.fromkeys(_LLAMA_CPP, "repeat_penalty"),
        in_chat=True,
        slider=Slider(low=1, high=2, step=0.01),
        paper='Keskar et al., "CTRL: A Conditional Transformer Language Model for Controllable Generation" '
        "(arXiv 1909.05858)",
    ),
    Parameter(
        name="presence_penalty",
        kind=Kind.NUMBER,
        group=Group.SCORES,
        label="Presence penalty",
        help="Above 0, words in the reply become less likely; below 0, likelier.",
        description="subtracted from the score of every token in the reply",
        low=-2,
        high=2,
        neutral=0.0,
        config_name="presence_penalty",
        engines=_ALL - {"tgi"},  # TGI gives it another meaning
        in_chat=True,
        is_advanced=True,
        slider=Slider(low=-2, high=2, step=0.05),
    ),
    Parameter(
        name="frequency_penalty",
        kind=Kind.NUMBER,
        group=Group.SCORES,
        label="Frequency penalty",
        help="Above 0, each use of a word in the reply makes it less likely; below 0, likelier.",
        description="subtracted from a token's score once for each occurrence in the reply",
        low=-2,
        high=2,
        neutral=0.0,
        config_name="frequency_penalty",
        engines=_ALL,
        in_chat=True,
        is_advanced=True,
        slider=Slider(low=-2, high=2, step=0.05),
    ),
    Parameter(
        name="max_tokens",
        kind=Kind.WHOLE,
        group=Group.END,
        label="Maximum length",
        help="Maximum tokens in a reply. Leave empty to let the model decide.",
        description="maximum length of the reply; the context window limits it in any case",
        low=1,
        unit="tokens",
        config_name="max_new_tokens",
        engines=_ALL,
        in_chat=True,
    ),
    Parameter(
        name="min_tokens",
        kind=Kind.WHOLE,
        group=Group.END,
        label="Minimum length",
        help="A reply does not end before this many tokens.",
        description="no end of sequence, stop token or stop string ends the reply before this many tokens",
        low=0,
        unit="tokens",
        default=0,
        neutral=0,
        engines=_VLLM | {"llama-cpp-python"},
    ),
    Parameter(
        name="stop",
        kind=Kind.STRINGS,
        group=Group.END,
        label="Stop strings",
        help="The reply stops before any of these. One per line.",
        description="one string or several; the reply ends before the first match",
        max_items=16,
        max_chars=256,
        default=(),
        neutral=(),
        engines=_ALL,
        in_chat=True,
    ),
    Parameter(
        name="stop_regex",
        kind=Kind.STRINGS,
        group=Group.END,
        label="Stop expressions",
        help="The reply stops before a match of any of these regular expressions. One per line.",
        description="one regular expression or several, in Python's syntax; the reply ends before the match that is "
        "complete first. Backreferences, look-around and `$` without `(?m)` are refused, and so is what matches the "
        "empty text or reads more than 1,024 characters with its repetition written out",
        max_items=4,
        max_chars=256,
        default=(),
        neutral=(),
        engines=_DESKMATE | {"sglang"},
        in_chat=True,
        is_advanced=True,
    ),
    Parameter(
        name="stop_token_ids",
        kind=Kind.TOKEN_IDS,
        group=Group.END,
        label="Stop token ids",
        help="Tokens that end the reply.",
        description="tokens that end the reply as the model's own end of sequence does",
        max_items=1024,
        default=(),
        neutral=(),
        engines=_VLLM,
    ),
    Parameter(
        name="ignore_eos",
        kind=Kind.FLAG,
        group=Group.END,
        label="Ignore the end of sequence",
        help="The reply continues after the model's end of sequence.",
        description="continues after the model's end of sequence",
        default=False,
        neutral=False,
        engines=_VLLM | {"llama.cpp"},
    ),
    Parameter(
        name="seed",
        kind=Kind.WHOLE,
        group=Group.OUTPUT,
        label="Seed",
        help="The same seed repeats a reply (exactly, in float32). Leave empty for a random seed.",
        description="makes sampling reproducible; without a seed, or with -1 as in vLLM and llama.cpp, it is random",
        low=0,
        high=MAX_SEED,
        aliases={-1: None},
        engines=_ALL,
        in_chat=True,
    ),
    Parameter(
        name="n",
        kind=Kind.WHOLE,
        group=Group.OUTPUT,
        label="Number of replies",
        help="How many replies to generate to the same prompt.",
        description="number of replies to the same prompt, which is computed once; each has its own random numbers, "
        "the first those of the seed itself",
        low=1,
        high=16,
        default=1,
        neutral=1,
        engines=_ALL - {"tgi", "llama-cpp-python"},  # they accept it and ignore it
    ),
    Parameter(
        name="logprobs",
        kind=Kind.WHOLE,
        group=Group.OUTPUT,
        label="Log-probabilities",
        help="How many of the likeliest tokens to return for each token of the reply.",
        description="returns each token's log-probability and those of this many likeliest tokens, from the model's "
        "own distribution, before any of these parameters; at most ENGINE_MAX_LOGPROBS",
        low=0,
        high=MAX_LOGPROBS,
        unit="tokens",
        engines=_ALL,
    ),
    Parameter(
        name="prompt_logprobs",
        kind=Kind.WHOLE,
        group=Group.OUTPUT,
        label="Log-probabilities of the prompt",
        help="How many of the likeliest tokens to return for each token of the prompt.",
        description="the same for the prompt's tokens, with the same limit; the whole prompt is then computed, even "
        "where the prefix cache holds the start of it; not available from a remote model server",
        low=0,
        high=MAX_LOGPROBS,
        unit="tokens",
        engines=_DESKMATE | {"vllm"},
    ),
    Parameter(
        name="logit_bias",
        kind=Kind.TOKEN_BIASES,
        group=Group.SCORES,
        label="Logit bias",
        help="Numbers that are added to the scores of single tokens.",
        description="token ids, each with a number that is added to its score before everything else",
        low=-100,
        high=100,
        max_items=1024,
        engines=_ALL - {"tgi"},  # it accepts it and ignores it
    ),
    Parameter(
        name="bad_words",
        kind=Kind.WORDS,
        group=Group.SCORES,
        label="Bad words",
        help="Words whose usual spelling in tokens is never completed.",
        description="words whose usual token sequences, with and without a leading space, are never completed; other "
        "casings and other splits into tokens are not caught",
        max_items=256,
        max_chars=128,
        default=(),
        neutral=(),
        engines=_DESKMATE | {"vllm"},
    ),
    Parameter(
        name="forbidden_words",
        kind=Kind.WORDS,
        group=Group.SCORES,
        label="Forbidden words",
        help="Words that the reply never contains, in any casing. One per line.",
        description="words that the reply's text never contains, in any casing and any split into tokens; matches "
        "whole words",
        max_items=256,
        max_chars=128,
        default=(),
        neutral=(),
        engines=_DESKMATE,
        in_chat=True,
        is_advanced=True,
    ),
)

PARAMETERS: Final[Mapping[str, Parameter]] = MappingProxyType({one.name: one for one in _PARAMETERS})
"""The table, by name. Its order is that of the settings panel and of the C++ sampler's row."""
