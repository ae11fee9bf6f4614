"""The text of docs/sampling.md, from the engine's table of sampling parameters."""

from __future__ import annotations

from collections.abc import Iterator

from engine import PARAMETERS, Group, Parameter
from engine.remote.dialects import DIALECTS

_HEAD = """# Sampling parameters

This page is for users who tune replies and for those who write programs: what each parameter does, what it takes, and
where it can be set. It is written from `engine/parameter_table.py` by `make docs`.

A parameter that is not set has the model's own default, from its `generation_config.json`, or else changes nothing. A
value out of range is refused with an error that names the parameter, the value and the range; nothing is clamped.

Parameters are set in three places:

- For a model: in its `generation_config.json`. Everything below takes precedence over it.
- For a chat: in the settings panel, or as `settings` in `POST /api/turns`. A preset fills in the panel's sliders, and a
  system prompt may recommend a value for any parameter of the panel.
- For one request: in `/v1/chat/completions` and `/v1/completions`, or as `SamplingParams` in Python. These take all
  parameters; `/v1/responses` takes all but `n` and `prompt_logprobs`, and calls `max_tokens` `max_output_tokens`.

The engine applies them in this order: logit bias; repetition, presence and frequency penalty; bans (of ending before
`min_tokens`, of words); temperature; `top_k`; `top_p`, as a share of what `top_k` keeps; `min_p`. The section of any
other filter says where it comes. Temperature 0 takes the likeliest token after the bans; the filters have no effect.

"Known to" lists the engines and model servers that take a parameter. A remote model server is not sent a parameter that
it does not know: such a request is refused, unless the value changes nothing.

To start: leave everything at the model's default. For facts and code, lower the temperature to 0.2. For variety, raise
it to 1 or more and set `min_p` to 0.05, which drops the unlikely words that a high temperature would let through. If a
reply repeats itself, raise the repetition penalty to 1.05 or 1.1.
"""


def sampling_page() -> str:
    """Returns the page."""
    lines = [_HEAD, *_overview()]
    for group in Group:
        lines += ["", f"## {group}"]
        for parameter in PARAMETERS.values():
            if parameter.group is group:
                lines += ["", *_section(parameter)]
    return "\n".join(lines) + "\n"


def _overview() -> Iterator[str]:
    yield "| Parameter | In the settings panel | Range | Default | OpenAI's name | vLLM's name |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for parameter in PARAMETERS.values():
        cells = (
            f"[`{parameter.name}`](#{parameter.name})",
            parameter.label if parameter.in_chat else "",
            parameter.range,
            _default(parameter),
            *(_code(parameter.spelling(engine)) for engine in ("openai", "vllm")),
        )
        yield f"| {' | '.join(cells)} |"


def _section(parameter: Parameter) -> Iterator[str]:
    yield f"### `{parameter.name}`"
    yield ""
    yield parameter.sentence
    yield ""
    unit = f", in {parameter.unit}" if parameter.unit else ""
    kind = f"a {parameter.kind}{unit}; " if parameter.kind.is_number else ""
    yield f"- Takes: {kind}{parameter.range}."
    neutral = (
        "" if parameter.neutral in (None, parameter.default) else f" Changes nothing at {_shown(parameter.neutral)}."
    )
    yield f"- Default: {_default(parameter)}.{neutral}"
    yield f"- Set in: {'; '.join(_places(parameter))}."
    yield f"- Known to: {', '.join(_engines(parameter))}."
    if parameter.paper:
        yield f"- Source: {parameter.paper}."


def _places(parameter: Parameter) -> Iterator[str]:
    if slider := parameter.slider:
        section = ' below "Advanced"' if slider.is_advanced else ""
        yield f'the settings panel{section} ("{parameter.label}", {slider.low} to {slider.high}), presets'
    elif parameter.in_chat:
        yield f'the settings panel ("{parameter.label}")'
    name = "`logprobs`, for chats with `top_logprobs`" if parameter.name == "logprobs" else f"`{parameter.name}`"
    yield f"`/v1` as {name}"
    yield f"`SamplingParams({parameter.name}=...)`"
    if parameter.config_name:
        yield f"`generation_config.json` as `{parameter.config_name}`"


def _engines(parameter: Parameter) -> Iterator[str]:
    yield "this engine"
    for kind, dialect in DIALECTS.items():
        if (spelling := parameter.spelling(kind)) is not None:
            title = "other servers of OpenAI's API" if kind == "openai" else dialect.title
            title = "another Deskmate" if kind == "deskmate" else title
            yield title if spelling == parameter.name else f"{title} (as `{spelling}`)"


def _default(parameter: Parameter) -> str:
    if parameter.default is not None:
        return _shown(parameter.default)
    return "the model's own" if parameter.config_name else "none"


def _shown(value: object) -> str:
    return "none" if value == () else f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _code(name: str | None) -> str:
    return "" if name is None else f"`{name}`"
