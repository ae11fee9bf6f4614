"""What SamplingParams takes and refuses."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields, replace
from typing import Any, cast

import pytest
from transformers import GenerationConfig

from engine import InvalidRequestError, ModelLoadError, SamplingParams, StructuredOutput, StructureKind, sampling_params
from engine.beam_search_params import BeamSearchParams
from engine.parameter_table import PARAMETERS, Kind
from engine.parameter_values import checked_value

NAN = float("nan")


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("temperature", -0.1, "between 0 and 10"),
        ("temperature", 11, "between 0 and 10"),
        ("temperature", NAN, "between 0 and 10"),
        ("temperature", float("inf"), "between 0 and 10"),
        ("temperature", "0.7", "a number between 0 and 10"),
        ("temperature", True, "a number between 0 and 10"),
        ("top_p", 1.0001, "between 0 and 1"),
        ("top_p", NAN, "between 0 and 1"),
        ("top_k", -2, "at least 1, or 0 or -1 for off"),
        ("top_k", 2.5, "a whole number"),
        ("top_k", True, "a whole number"),
        ("min_p", -1, "between 0 and 1"),
        ("typical_p", 1.5, "between 0 and 1"),
        ("logprobs", 1001, "between 0 and 1000"),
        ("logprobs", -1, "between 0 and 1000"),
        ("logprobs", True, "a whole number"),
        ("prompt_logprobs", 1001, "between 0 and 1000"),
        ("bad_words", "word", "a list of at most 256 words of 1 to 128 characters"),
        ("bad_words", [" "], "1 to 128 characters"),
        ("forbidden_words", ["x" * 129], "1 to 128 characters"),
        ("forbidden_words", [7], "1 to 128 characters"),
        ("forbidden_words", ["x"] * 257, "at most 256"),
        ("repetition_penalty", 0, "between 0.01 and 100"),
        ("presence_penalty", 2.5, "between -2 and 2"),
        ("frequency_penalty", -3, "between -2 and 2"),
        ("max_tokens", 0, "at least 1"),
        ("max_tokens", 1.5, "a whole number"),
        ("max_tokens", float("inf"), "a whole number"),
        ("temperature", 10**400, "between 0 and 10"),
        ("top_k", 2**31, "at most 2147483647"),
        ("top_k", 2**63, "at most 2147483647"),
        ("max_tokens", 2**63, "at most 2147483647"),
        ("min_tokens", 10**400, "at most 2147483647"),
        ("stop_token_ids", [2**63], "at most 2147483647"),
        ("stop_token_ids", range(1025), "at most 1024 token ids"),
        ("logit_bias", {2**64: 1}, "at most 2147483647"),
        ("logit_bias", dict.fromkeys(range(1025), 1), "at most 1024 token ids"),
        ("min_tokens", -1, "at least 0"),
        ("seed", -2, "between 0 and 9223372036854775807"),
        ("seed", 2**63, "between 0 and 9223372036854775807"),
        ("stop", "", "1 to 256 characters"),
        ("stop", ["ok", ""], "1 to 256 characters"),
        ("stop", ["x" * 257], "1 to 256 characters"),
        ("stop", [str(i) for i in range(17)], "at most 16"),
        ("stop", 5, "a string or a list of strings"),
        ("stop", [5], "1 to 256 characters"),
        ("stop_token_ids", [-1], "whole numbers of at least 0"),
        ("stop_token_ids", "12", "a list of token ids"),
        ("stop_token_ids", [True], "whole numbers of at least 0"),
        ("logit_bias", {1: 101}, "between -100 and 100"),
        ("logit_bias", {1: NAN}, "between -100 and 100"),
        ("logit_bias", {1: None}, "between -100 and 100"),
        ("logit_bias", {"1": 1}, "token ids"),
        ("logit_bias", [1], "a mapping"),
        ("ignore_eos", 1, "true or false"),
        ("n", 0, "between 1 and 16"),
        ("n", 17, "between 1 and 16"),
    ],
)
def test_a_wrong_value_is_refused_with_field_value_and_range(field: str, value: object, allowed: str) -> None:
    with pytest.raises(ValueError, match=field) as caught:
        SamplingParams(**cast(Any, {field: value}))
    assert allowed in str(caught.value)
    assert "got" in str(caught.value)


def test_the_form_of_a_reply_is_a_structure() -> None:
    structure = StructuredOutput(StructureKind.JSON_OBJECT)
    assert SamplingParams(structured=structure).structured is structure
    with pytest.raises(InvalidRequestError, match="structured must be a StructuredOutput"):
        SamplingParams(structured=cast(Any, {"type": "object"}))


def test_values_are_normalized_and_cannot_be_changed() -> None:
    bias = {5: 1}
    params = SamplingParams(temperature=1, top_k=-1, stop="x", stop_token_ids=[7], logit_bias=bias)
    bias[5] = 100
    assert params.temperature == 1.0
    assert isinstance(params.temperature, float)
    assert params.top_k == 0
    assert params.stop == ("x",)
    assert params.stop_token_ids == (7,)
    assert params.logit_bias == {5: 1.0}
    with pytest.raises(FrozenInstanceError):
        params.temperature = 2.0  # type: ignore[misc]


def test_the_borders_of_every_range_are_taken() -> None:
    SamplingParams(temperature=0, top_p=0, top_k=0, min_p=0, repetition_penalty=0.01, max_tokens=1, seed=0)
    SamplingParams(temperature=10, top_p=1, min_p=1, repetition_penalty=100, seed=2**63 - 1, stop=["x" * 256] * 16)


def test_whole_numbers_may_be_written_as_floats_and_seed_minus_one_is_random() -> None:
    params = SamplingParams(max_tokens=8.0, top_k=5.0, n=2.0, seed=-1)  # type: ignore[arg-type]
    assert (params.max_tokens, params.top_k, params.n, params.seed) == (8, 5, 2, None)
    assert all(type(value) is int for value in (params.max_tokens, params.top_k, params.n))


def test_log_probabilities_are_limited_by_the_server() -> None:
    SamplingParams(logprobs=25, prompt_logprobs=25).check_logprobs(25)
    for name in ("logprobs", "prompt_logprobs"):
        with pytest.raises(InvalidRequestError, match=f"{name} must be between 0 and 24, the ENGINE_MAX_LOGPROBS"):
            SamplingParams(**cast(Any, {name: 25})).check_logprobs(24)


def test_min_tokens_fit_in_max_tokens() -> None:
    SamplingParams(min_tokens=4, max_tokens=4)
    with pytest.raises(InvalidRequestError, match="min_tokens must be at most max_tokens"):
        SamplingParams(min_tokens=5, max_tokens=4)
    with pytest.raises(InvalidRequestError, match="min_tokens"):
        SamplingParams(min_tokens=5).with_defaults(SamplingParams(max_tokens=4))


def test_defaults_fill_only_what_was_left_open() -> None:
    defaults = SamplingParams(temperature=0.7, top_k=20, max_tokens=99, stop=["never"])
    params = SamplingParams(temperature=0, stop="x").with_defaults(defaults)
    assert (params.temperature, params.top_k, params.max_tokens, params.stop) == (0.0, 20, 99, ("x",))
    assert defaults == replace(defaults)


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        ({}, {"temperature": 1.0, "top_p": 1.0, "top_k": 0}),
        (
            {"do_sample": True, "temperature": 0.6, "top_p": 0.95, "top_k": 20},
            {"temperature": 0.6, "top_k": 20},
        ),
        ({"do_sample": False}, {"temperature": 0.0}),
        ({"temperature": 0.6, "repetition_penalty": 1.05}, {"temperature": 0.6, "repetition_penalty": 1.05}),
        ({"max_new_tokens": 32}, {"max_tokens": 32}),
    ],
)
def test_the_models_own_defaults_are_what_its_file_states(stated: dict[str, Any], expected: dict[str, Any]) -> None:
    params = SamplingParams.from_generation_config(GenerationConfig(**stated))
    for name, value in expected.items():
        assert getattr(params, name) == value
    open_fields = {field.name for field in fields(params) if getattr(params, field.name) is None}
    unset = {"max_tokens", "seed", "logprobs", "prompt_logprobs", "logit_bias", "structured", "beam_search"}
    assert open_fields <= unset


def test_an_impossible_generation_config_is_a_defect_of_the_model() -> None:
    config = GenerationConfig()
    config.temperature = -1.0
    with pytest.raises(ModelLoadError, match=r"generation_config\.json.*temperature must be between 0 and 10"):
        SamplingParams.from_generation_config(config)


def test_token_ids_beyond_the_vocabulary_are_refused() -> None:
    SamplingParams(stop_token_ids=[99], logit_bias={99: 1.0}).check_vocabulary(100)
    for params in (SamplingParams(stop_token_ids=[100]), SamplingParams(logit_bias={100: 1.0})):
        with pytest.raises(InvalidRequestError, match=r"vocabulary size, 100 \(got 100\)"):
            params.check_vocabulary(100)


def test_every_field_is_in_the_table_with_its_type_and_default() -> None:
    kinds = {
        Kind.NUMBER: "float | None",
        Kind.WHOLE: "int | None",
        Kind.FLAG: "bool",
        Kind.STRINGS: "str | tuple[str, ...] | list[str]",
        Kind.WORDS: "tuple[str, ...] | list[str]",
        Kind.TOKEN_IDS: "tuple[int, ...] | list[int]",
        Kind.TOKEN_BIASES: "Mapping[int, float] | None",
    }
    own = {field.name: (field.type, field.default) for field in fields(SamplingParams)}
    del own["structured"], own["beam_search"]  # neither numbers nor lists: not in the table
    assert own.keys() == PARAMETERS.keys()
    for name, parameter in PARAMETERS.items():
        type_, default = own[name]
        if parameter.kind.is_number and parameter.default is not None:
            assert type_ == kinds[parameter.kind].removesuffix(" | None"), name
        else:
            assert type_ == kinds[parameter.kind], name
        assert default == parameter.default, name


def test_every_number_has_a_bound_that_64_bits_hold() -> None:
    numbers = [each for each in PARAMETERS.values() if each.kind in (*(Kind.NUMBER, Kind.WHOLE), Kind.TOKEN_BIASES)]
    assert all(-(2**31) <= each.low < each.high < 2**63 for each in numbers)
    assert all(each.max_items > 0 for each in PARAMETERS.values() if each not in numbers and each.kind is not Kind.FLAG)


def test_help_says_what_every_field_takes_and_does() -> None:
    text = " ".join((SamplingParams.__doc__ or "").split())
    for name, parameter in PARAMETERS.items():
        assert f"{name}: {parameter.range}; {parameter.description}." in text


def test_a_number_too_long_to_be_written_is_refused_with_a_sentence() -> None:
    with pytest.raises(InvalidRequestError, match=r"seed must be .* a number of thousands of digits"):
        SamplingParams(seed=-(10**5000))


def test_values_that_are_known_to_be_valid_are_not_validated_again(monkeypatch: pytest.MonkeyPatch) -> None:
    given, defaults = SamplingParams(temperature=0.5, stop="a", min_tokens=5), SamplingParams.neutral(top_p=0.5)
    expected = replace(given, seed=7), replace(defaults, temperature=0.5, stop="a", min_tokens=5)

    def refuse(*_: object) -> None:
        raise AssertionError("validated again")

    monkeypatch.setattr(sampling_params, "checked_value", refuse)
    assert (given.replace_valid(seed=7), given.with_defaults(defaults)) == expected


def test_defaults_must_go_together_with_what_was_given() -> None:
    given = SamplingParams(min_tokens=5)
    with pytest.raises(InvalidRequestError, match="min_tokens must be at most max_tokens"):
        given.with_defaults(SamplingParams(max_tokens=4))
    with pytest.raises(InvalidRequestError, match="n must be at most beam_width"):
        SamplingParams(n=3).replace_valid(beam_search=BeamSearchParams(width=2))
    with pytest.raises(AttributeError):
        given.replace_valid(heat=1)


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_default_needs_no_validation(name: str) -> None:
    default = PARAMETERS[name].default
    assert default == getattr(SamplingParams(), name) == checked_value(PARAMETERS[name], default)
    assert type(default) is type(checked_value(PARAMETERS[name], default))
