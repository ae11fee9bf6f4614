"""Every sampling parameter of the engine's table, through every door that takes it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from app.api.openai.requests import CompletionRequest
from app.domain.chat_settings import CHAT_PARAMETERS, ChatSettings
from app.domain.presets import PRESET_PARAMETERS, Preset
from app.domain.templates import Template, TemplateKind
from app.errors import InvalidInput
from app.services.container import Services
from app.ui.page import build_page
from engine import PARAMETERS, InvalidRequestError, Kind, Parameter, SamplingParams, UnsupportedParameterError
from engine.remote.dialects import DIALECTS, sampling_fields
from tests.app.live_server import RunningApp

pytestmark = pytest.mark.asyncio(loop_scope="module")

ALL = list(PARAMETERS.values())
LOGPROBS = ("logprobs", "prompt_logprobs")
CHAT: dict[str, Any] = {"model": "fake", "messages": [{"role": "user", "content": "hello there"}]}
TEXT: dict[str, Any] = {"model": "fake", "prompt": "hello there"}


def _name(value: object) -> str:
    return value.name if isinstance(value, Parameter) else repr(value)[:30]


def accepted(parameter: Parameter) -> list[Any]:
    """The borders of its range, as JSON has them."""
    if parameter.kind.is_number:
        return [parameter.low, parameter.high, *parameter.aliases]
    text = "x" * parameter.max_chars
    values: dict[Kind, list[Any]] = {
        Kind.FLAG: [True, False],
        Kind.STRINGS: ["x", [text] * parameter.max_items],
        Kind.WORDS: [[], [text] * parameter.max_items],
        Kind.TOKEN_IDS: [[], list(range(parameter.max_items))],
        Kind.TOKEN_BIASES: [{}, {"3": parameter.low}, {"3": parameter.high}],
    }
    return values[parameter.kind]


def refused(parameter: Parameter) -> list[Any]:
    """Values beside its range and of other types."""
    if parameter.kind.is_number:
        below = min([parameter.low, *parameter.aliases]) - 1
        return [
            below,
            parameter.high + 1,
            math.nan,
            math.inf,
            True,
            "1",
            [1],
            *([1.5] * (parameter.kind is Kind.WHOLE)),
        ]
    too_long, too_many = ["x" * (parameter.max_chars + 1)], ["x"] * (parameter.max_items + 1)
    values: dict[Kind, list[Any]] = {
        Kind.FLAG: [1, "true"],
        Kind.STRINGS: [5, [5], [""], too_long, too_many],
        Kind.WORDS: [5, "x", [5], [""], too_long, too_many],
        Kind.TOKEN_IDS: [5, [-1], [True], ["1"], list(range(parameter.max_items + 1))],
        Kind.TOKEN_BIASES: [5, {"x": 1}, {"3": parameter.high + 1}, {"3": True}],
    }
    return values[parameter.kind]


def some(parameter: Parameter) -> Any:
    """A valid value that is neither the default nor neutral."""
    values = [parameter.low + 1, parameter.low, parameter.high] if parameter.kind.is_number else accepted(parameter)
    if parameter.kind is Kind.NUMBER:
        values = [parameter.low + (parameter.high - parameter.low) / 3]
    kept = [checked(parameter, value) for value in values]
    return next(one for one in kept if one not in (parameter.default, parameter.neutral, (), {}))


def checked(parameter: Parameter, value: Any) -> Any:
    """The value as the engine has it."""
    if parameter.kind is Kind.TOKEN_BIASES and isinstance(value, dict):
        value = {int(key) if key.isdigit() else key: bias for key, bias in value.items()}
    return getattr(SamplingParams(**{parameter.name: value}), parameter.name)


def pairs(parameters: list[Parameter], values: Callable[[Parameter], list[Any]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        ("parameter", "value"), [(one, value) for one in parameters for value in values(one)], ids=_name
    )


# -- the engine ------------------------------------------------------------------------------------------------------


@pairs(ALL, accepted)
async def test_the_engine_takes_the_borders_of_every_range(parameter: Parameter, value: Any) -> None:
    kept = checked(parameter, value)
    if parameter.kind.is_number:
        assert kept == parameter.aliases.get(value, value)
        assert type(kept) in (type(None), float if parameter.kind is Kind.NUMBER else int)


@pairs(ALL, refused)
async def test_the_engine_refuses_with_the_name_the_value_and_the_range(parameter: Parameter, value: Any) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        checked(parameter, value)
    message = str(caught.value)
    assert message.startswith(f"{parameter.name}")
    assert "(got " in message
    if parameter.kind.is_number:
        assert repr(value) in message
        assert parameter.range in message or f"at most {parameter.high}" in message


async def test_neutral_values_are_complete_and_change_nothing() -> None:
    neutral = SamplingParams.neutral()
    assert SamplingParams().with_defaults(neutral) == neutral
    for parameter in ALL:
        assert getattr(neutral, parameter.name) == parameter.neutral


# -- a chat's settings, presets and prompts ---------------------------------------------------------------------------


def template(**recommended: Any) -> Template:
    return Template(title="T", description="D", body="B", recommended=ChatSettings(**recommended))


async def post(live: RunningApp, path: str, body: dict[str, Any]) -> Any:
    """As JSON of Python's own, which also writes what is no number."""
    return await live.http.post(path, content=json.dumps(body), headers={"Content-Type": "application/json"})


@pytest.mark.parametrize("parameter", CHAT_PARAMETERS, ids=_name)
async def test_a_chat_s_settings_reach_the_engine_and_are_kept(live: RunningApp, parameter: Parameter) -> None:
    value = some(parameter)
    answer = await post(live, "/api/turns", {"text": "hello", "settings": {parameter.name: value}})
    assert answer.status_code == 201, answer.text
    await live.http.get(f"/api/turns/{answer.json()['turn_id']}/events")
    (_, params), *_ = live.engine.calls
    assert getattr(params, parameter.name) == value
    kept = (await live.http.get(f"/api/conversations/{answer.json()['conversation_id']}")).json()["settings"]
    assert kept[parameter.name] == (list(value) if isinstance(value, tuple) else value)
    assert {name for name, set_to in kept.items() if set_to} == {parameter.name}


@pairs(list(CHAT_PARAMETERS), refused)
async def test_a_chat_s_settings_are_refused_by_name(live: RunningApp, parameter: Parameter, value: Any) -> None:
    answer = await post(live, "/api/turns", {"text": "hello", "settings": {parameter.name: value}})
    assert answer.status_code == 422, answer.text
    message = answer.json()["error"]["message"]
    assert parameter.name in message
    if isinstance(value, bool | str) or (parameter.kind is Kind.NUMBER and isinstance(value, float | int)):
        assert parameter.range in message
    assert live.engine.calls == []


@pytest.mark.parametrize("parameter", ALL, ids=_name)
async def test_prompts_recommend_and_presets_set_what_the_panel_has(parameter: Parameter) -> None:
    value = some(parameter)
    if parameter not in CHAT_PARAMETERS:
        with pytest.raises(ValidationError, match=parameter.name):
            template(**{parameter.name: value})
    else:
        recommended = template(**{parameter.name: value}).checked(TemplateKind.PROMPT).recommended
        assert recommended.sampling() == {parameter.name: value}
        for wrong in refused(parameter):
            with pytest.raises((InvalidInput, ValidationError), match=parameter.name):
                template(**{parameter.name: wrong}).checked(TemplateKind.PROMPT)
    if parameter not in PRESET_PARAMETERS:
        with pytest.raises(InvalidInput, match=f"A preset cannot set '{parameter.name}'"):
            Preset(name="p", title="P", description="", values={parameter.name: value})
    else:
        preset = Preset(name="p", title="P", description="", values={parameter.name: value})
        assert preset.options()[parameter.name] == value
        with pytest.raises((InvalidInput, ValidationError), match=parameter.name):
            Preset(name="p", title="P", description="", values={parameter.name: math.nan})


HALF = "\ud800"  #: half of a surrogate pair, which JSON can express but UTF-8 cannot encode
HALVES: list[dict[str, Any]] = [
    {"stop": [f"a{HALF}b"]},
    {"preset": HALF},
    {"system_prompt_name": HALF},
    {"system_prompt": HALF},
]


@pytest.mark.parametrize(
    "settings", [*HALVES, {"system_prompt_variables": {"topic": HALF}}], ids=lambda settings: next(iter(settings))
)
async def test_text_that_is_not_valid_breaks_no_chat(live: RunningApp, settings: dict[str, Any]) -> None:
    answer = await post(live, "/api/turns", {"text": "hello", "settings": settings})
    assert answer.status_code in (201, 422), answer.text
    begun = (await post(live, "/api/turns", {"text": "hello"})).json()
    await live.http.get(f"/api/turns/{begun['turn_id']}/events")
    chat = f"/api/conversations/{begun['conversation_id']}"
    changed = await live.http.patch(
        chat, content=json.dumps({"settings": settings}), headers={"Content-Type": "application/json"}
    )
    assert changed.status_code in (204, 422), changed.text
    for path in (chat, f"{chat}/export", "/api/export"):
        assert (await live.http.get(path)).status_code == 200


@pytest.mark.parametrize("settings", HALVES, ids=lambda settings: next(iter(settings)))
async def test_stored_settings_with_text_that_is_not_valid_load(settings: dict[str, Any]) -> None:
    loaded = ChatSettings.model_validate(settings)
    loaded.model_dump_json()
    assert "\N{REPLACEMENT CHARACTER}" in str(loaded.model_dump())


async def test_no_zero_byte_is_left_that_postgresql_refuses() -> None:
    settings = ChatSettings(
        preset="a\0b", stop=("a\0b",), system_prompt="a\0b", system_prompt_variables={"a\0b": "c\0d"}
    )
    assert "\\u0000" not in settings.model_dump_json()


async def test_a_stored_stop_string_of_which_nothing_is_left_refuses_no_message() -> None:
    assert ChatSettings.model_validate({"stop": ["\0", "a\0b"]}).sampling_params().stop == ("ab",)
    with pytest.raises(InvalidInput, match="stop must be strings of 1 to 256 characters"):
        ChatSettings.model_validate({"stop": [""]}).sampling_params()


async def test_settings_of_an_older_version_load(live: RunningApp) -> None:
    assert ChatSettings.model_validate({"preset": "precise", "temperature": 0.2, "stop": ["x"]}).sampling() == {
        "temperature": 0.2,
        "stop": ("x",),
    }


# -- the page ---------------------------------------------------------------------------------------------------------


async def test_the_page_s_options_describe_every_parameter_of_the_panel(live: RunningApp) -> None:
    options = (await live.http.get("/ui/options")).json()
    assert [each["name"] for each in options["parameters"]] == [each.name for each in CHAT_PARAMETERS]
    for said, parameter in zip(options["parameters"], CHAT_PARAMETERS, strict=True):
        assert (said["label"], said["is_slider"]) == (parameter.label, parameter.slider is not None)
    sliders = {each.name for each in PRESET_PARAMETERS}
    assert options["defaults"].keys() == sliders
    assert None not in options["defaults"].values()
    for preset in options["presets"]:
        assert preset.keys() == {"name", "title", "description"} | sliders


def _no_services() -> Services:
    raise AssertionError("the page is only built")


async def test_the_panel_has_a_control_for_every_parameter() -> None:
    components = build_page(_no_services).config["components"]
    controls = {name: each for each in components for name in each["props"].get("elem_classes") or ()}
    for parameter in CHAT_PARAMETERS:
        control = controls[f"dm-control-{parameter.name}"]
        props = control["props"]
        assert (props["label"], props["info"]) == (parameter.label, parameter.help)
        if (slider := parameter.slider) is not None:
            assert control["type"] == "slider"
            assert (props["minimum"], props["maximum"], props["step"]) == (slider.low, slider.high, slider.step)
            assert parameter.low <= slider.low < slider.high <= parameter.high
            # The model's default, where nothing is set, has a place on the slider.
            assert slider.low <= parameter.neutral <= slider.high


# -- /v1 --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parameter", ALL, ids=_name)
async def test_v1_hands_every_parameter_to_the_engine(live: RunningApp, parameter: Parameter) -> None:
    value = some(parameter)
    sent: Any = {str(key): bias for key, bias in value.items()} if isinstance(value, dict) else value
    for_text = fields = {parameter.name: sent}
    if parameter.name == "logprobs":
        fields = {"logprobs": True, "top_logprobs": sent}
    answer = await post(live, "/v1/chat/completions", CHAT | fields)
    assert answer.status_code == 200, answer.text
    assert "x-ignored-fields" not in answer.headers
    (_, params), *_ = live.engine.calls
    assert getattr(params, parameter.name) == value
    request = CompletionRequest.model_validate(json.loads(json.dumps(TEXT | for_text)))
    assert getattr(request.sampling_params(), parameter.name) == value
    assert list(request.unknown_fields()) == []


@pytest.mark.parametrize("body", [CHAT, TEXT], ids=["chat", "text"])
@pairs(ALL, refused)
async def test_v1_refuses_by_name(live: RunningApp, body: dict[str, Any], parameter: Parameter, value: Any) -> None:
    fields = {parameter.name: value}
    name = parameter.name
    if name == "logprobs" and "messages" in body:
        fields, name = {"logprobs": True, "top_logprobs": value}, "top_logprobs"
    answer = await post(live, "/v1/chat/completions" if "messages" in body else "/v1/completions", body | fields)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert name in error["message"]
    assert live.engine.calls == []


# -- model servers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", DIALECTS)
@pytest.mark.parametrize("parameter", [each for each in ALL if each.name not in LOGPROBS], ids=_name)
async def test_a_model_server_gets_its_own_spelling_or_the_value_is_refused(parameter: Parameter, kind: str) -> None:
    params, dialect = SamplingParams(**{parameter.name: some(parameter)}), DIALECTS[kind]
    spelling = parameter.spelling(kind)
    if spelling is None:
        with pytest.raises(UnsupportedParameterError, match=f"^{parameter.name} is not supported by the model server"):
            sampling_fields(params, dialect)
        neutral = SamplingParams(**{parameter.name: parameter.neutral})
        assert sampling_fields(neutral, dialect) == {}
    else:
        sent = sampling_fields(params, dialect)[spelling]
        expected = getattr(params, parameter.name)
        if isinstance(expected, tuple):
            expected = list(expected)
        if isinstance(expected, dict):
            expected = {str(key): bias for key, bias in expected.items()}
        assert sent == expected


@pytest.mark.parametrize("kind", DIALECTS)
async def test_parameters_that_are_not_set_are_not_sent(kind: str) -> None:
    assert sampling_fields(SamplingParams(), DIALECTS[kind]) == {}
