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

_LENS = """## See how a reply was chosen

Under a reply, **Lens** shows its tokens in place of its text. The less likely a token was, the stronger its tint and
its line; *As a table* lists the numbers. Point at a token, tap it, or move with the arrow keys and press Enter: its
20 likeliest alternatives appear, with the probability that the model gives each, and the one that is left after the
chat's settings, or the setting that removed it. The sliders below show what other settings would have left of the
same choice; they change nothing in the chat. Click an alternative, and another version of the reply is written from
there on; the arrows under the reply lead back.

- The lens is computed when it is opened, with the model that is loaded, in the background of replies. It counts as
  tokens of the day, and as no message.
- The settings are those that the reply was written with. *Approximate* means that another model wrote the reply, or
  that its tokens are not stored, as those of imported replies are not: its text was tokenized again.
- A reply that thought or called tools has a lens, but cannot branch.
- Models behind a remote server do not report these numbers, so there is no button.

Programs get the same from `GET /api/messages/{message_id}/lens`, `GET /api/messages/{message_id}/lens/{index}` and
`POST /api/messages/{message_id}/branch-at` ([routes](api.md#routes)), and without a server from
[`Engine.inspect`](api.md#from-python)."""

_COMPARE = """## Compare settings side by side

The button with two columns beside the message box, and **Compare** under a reply, answer one message two to four times
at once: with other presets, temperatures, top-p, seeds or system prompts. What a column leaves empty is as in the chat,
whose own settings stay as they are. The columns stream together, each under the settings in which it differs, with its
seed; on a phone they are swiped. Once all have ended, the words in which they differ from A are underlined, and in A
those that no other has. *Keep this one* shows a reply and goes on from it.

- All of them are versions of the reply: the arrows under it lead from one to the other, and say in which settings a
  version differs from the one before. *Use these settings* puts those of a version into the panel. A message that is
  sent without keeping one follows A.
- The prompt is computed once, where the system prompt is the same; then all replies are decoded in one batch.
- Each column counts as one message and one reply. If a limit leaves no room for all of them, none is written.
- *Stop* ends all of them. They belong to the server, like any reply: closed or reloaded, the page finds them again.
- The seed of a reply is drawn where none is set, and stored, so that it can be written again. Models behind a remote
  server draw their own.

Programs send `POST /api/comparisons` or `POST /api/messages/{message_id}/compare` with `variants`, follow the turns
through `GET /api/events`, and keep one with `POST /api/messages/{message_id}/show` ([routes](api.md#routes)).

Under a reply, **Edit** changes its text, and the model goes on from the end of it, as another version that is marked
*Edited by you*. **Continue** goes on with a reply that was stopped or reached its maximum length, from its own tokens;
if messages follow it, the longer reply is another version, and they stay with the first."""


def sampling_page() -> str:
    """Returns the page."""
    lines = [_HEAD, *_overview(), "", _LENS, "", _COMPARE]
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
    section = ' below "Advanced"' if parameter.is_advanced else ""
    if slider := parameter.slider:
        yield f'the settings panel{section} ("{parameter.label}", {slider.low} to {slider.high}), presets'
    elif parameter.in_chat:
        yield f'the settings panel{section} ("{parameter.label}")'
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
