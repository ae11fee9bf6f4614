"""Each field of ``/v1`` with wrong values: one plain sentence that names the field, in the shape of OpenAI's errors."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from app.api.errors import describe_in_v1
from app.api.openai.fields import MAX_ENTRIES
from app.api.openai.requests import MAX_CHOICES, ChatCompletionRequest, CompletionRequest
from app.api.openai.responses.requests import ResponseRequest
from tests.app.live_server import RunningApp

pytestmark = pytest.mark.asyncio(loop_scope="module")

MESSAGE = {"role": "user", "content": "a"}
DOORS: dict[str, tuple[type, dict[str, Any]]] = {
    "/v1/chat/completions": (ChatCompletionRequest, {"messages": [MESSAGE]}),
    "/v1/completions": (CompletionRequest, {"prompt": "a", "max_tokens": 1}),
    "/v1/responses": (ResponseRequest, {"input": "a", "max_output_tokens": 1}),
}
#: As JSON, since Python's own values do not hold all of them.
VALUES = [
    *("true", '""', '"x"', "-1", "0", "1.5", "1e308", "NaN", "-Infinity", "9" * 400, str(2**63)),
    *("[]", "[1]", '["x"]', "[[]]", "[null]", "[{}]", "{}", '{"a": 1}', '{"1": "x"}', '{"type": "x"}'),
    *('{"type": "function"}', '{"include_usage": 1}', '{"effort": 1}', '{"format": 1}', '{"format": {"type": "x"}}'),
    *('{"json": 1}', '{"choice": 1}', '{"choice": ["a", 1]}', '{"regex": 1}', '{"regex": "("}', '{"grammar": "start"}'),
    *('{"structural_tag": "{}"}', '{"type": "json_schema", "json_schema": 1}', '{"type": "structural_tag"}'),
    *('{"type": "json_schema", "json_schema": {"schema": 1}}', '[{"role": "x", "content": "a"}]'),
    *('[{"role": "user", "content": 1}]', '[{"role": "user", "content": [{"type": "text"}]}]'),
    *('[{"role": "assistant", "tool_calls": 1}]', '[{"role": "assistant", "tool_calls": [{"id": 1}]}]'),
    *('[{"type": "function", "function": {"name": "!"}}]', '[{"type": "function", "name": 1}]'),
    *('[{"type": "reasoning", "summary": [1]}]', '[{"type": "function_call", "call_id": 1}]'),
]
#: What Pydantic, Python and the libraries say, and nobody who calls over HTTP should read.
FOREIGN = re.compile(
    r"Input should|should have|should match|Value error|Traceback|panick|<class|NoneType|\bNone\b|\bTrue\b|\bFalse\b|"
    r"dict\[|list\[|\.str\b|\.bool\b|validat|instance of|is not valid: ",
)


def fault_of(answer: Any, field: str) -> str | None:
    """Returns what is wrong with a refusal; None if nothing is."""
    if answer.status_code not in range(400, 500):
        return "status"
    error = answer.json()["error"]
    if set(error) != {"message", "type", "param", "code"} or error["type"] != "invalid_request_error":
        return "shape"
    return fault_in(error["message"], error["param"], field)


def fault_in(message: str, param: str | None, field: str) -> str | None:
    """The same of its words."""
    if FOREIGN.search(message) or "\n" in message or not message.endswith(".") or len(message) > 500:
        return "words"
    return None if field in f"{message} {param}" else "field"


@pytest.mark.slow
@pytest.mark.parametrize("path", DOORS)
async def test_every_field_is_refused_in_one_plain_sentence(live: RunningApp, path: str) -> None:
    """What the model of the body refuses is described here as the server does, of which one value for each field
    assures; the others are sent."""
    kind, body = DOORS[path]
    model: TypeAdapter[Any] = TypeAdapter(kind)
    faults, refused = [], 0
    for name, field in kind.model_fields.items():  # type: ignore[attr-defined]
        sent_as = field.alias or name
        described = False  # by the server, too
        for value in VALUES:
            start = json.dumps({key: one for key, one in body.items() if key != sent_as})
            content = f'{start[:-1]}{", " if len(start) > 2 else ""}"{sent_as}": {value}}}'
            sentence = _refusal_by(model, content)
            if sentence is not None and described:
                refused += 1
                if fault := fault_in(*sentence, sent_as):
                    faults.append(f"{fault}: {sent_as}={value[:60]}: {sentence}")
                continue
            answer = await live.http.post(path, content=content, headers={"Content-Type": "application/json"})
            if sentence is not None:
                error = answer.json()["error"]
                assert (answer.status_code, error["message"], error["param"]) == (400, *sentence)
                described = True
            if answer.status_code == 200:
                continue
            refused += 1
            if fault := fault_of(answer, sent_as):
                faults.append(f"{fault}: {sent_as}={value[:60]}: {answer.status_code} {answer.text[:300]}")
    assert faults == []
    assert refused > 500


def _refusal_by(model: TypeAdapter[Any], content: str) -> tuple[str, str | None] | None:
    """The sentence and the field with which a body is refused before the route sees it; None if it is not."""
    try:
        model.validate_python(json.loads(content))
    except ValidationError as error:
        return describe_in_v1(error.errors())
    return None


@pytest.mark.parametrize(
    ("path", "field", "value", "sentence"),
    [
        ("/v1/chat/completions", "best_of", 17, "The field 'best_of' must be at most 16."),
        ("/v1/completions", "beam_width", 65, "The field 'beam_width' must be at most 64."),
        ("/v1/completions", "deadline", 0, "The field 'deadline' must be greater than 0."),
        ("/v1/completions", "stop", 1, "The field 'stop' must be a string or a list of strings."),
        ("/v1/completions", "stop", ["a", 1], "The field 'stop' must be a string or a list of strings."),
        ("/v1/completions", "bad_words", ["a", 1], "The field 'bad_words[1]' must be a string."),
        ("/v1/completions", "early_stopping", 1, "The field 'early_stopping' must be true or false or \"never\"."),
        ("/v1/chat/completions", "messages", [], "The field 'messages' must have at least 1 entry."),
        ("/v1/chat/completions", "max_completion_tokens", 0, "max_completion_tokens must be at least 1 (got 0)."),
        ("/v1/responses", "metadata", {"str": 1}, "The field 'metadata.str' must be a string."),
        ("/v1/responses", "top_p", "x", "The field 'top_p' must be a number."),
    ],
)
async def test_the_sentence_says_what_is_allowed(
    live: RunningApp, path: str, field: str, value: Any, sentence: str
) -> None:
    answer = await live.http.post(path, json=DOORS[path][1] | {field: value})
    assert (answer.status_code, answer.json()["error"]["message"]) == (400, sentence)


MANY = MAX_ENTRIES + 1
PART = {"type": "text", "text": "a"}
CALL = {"id": "a", "function": {"name": "a", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("path", "sent", "param"),
    [
        ("/v1/chat/completions", {"messages": [MESSAGE] * MANY}, "messages"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": [PART] * MANY}]}, "messages"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": ["a"] * 101}] * 100}, "messages"),
        ("/v1/chat/completions", {"messages": [{"role": "assistant", "tool_calls": [CALL] * MANY}]}, "messages"),
        ("/v1/responses", {"input": [{"role": "user", "content": [PART] * MANY}]}, "input"),
        ("/v1/completions", {"prompt": ["a"] * (MAX_CHOICES + 1)}, "prompt"),
        ("/v1/completions", {"stop": [1] * MANY}, "stop"),
        ("/v1/completions", {"logit_bias": {str(key): "" for key in range(MANY)}}, "logit_bias"),
        ("/v1/completions", {"structured_outputs": {"choice": [1] * MANY}}, "structured_outputs.choice"),
        ("/v1/completions", {str(key): 1 for key in range(MANY)}, None),
    ],
)
async def test_long_lists_are_refused_before_each_entry_is_looked_at(
    path: str, sent: dict[str, Any], param: str | None
) -> None:
    """Pydantic makes an error of each wrong entry, which takes seconds for a body of 4 MiB."""
    kind, body = DOORS[path]
    with pytest.raises(ValidationError) as refused:
        TypeAdapter(kind).validate_python(body | sent)
    assert refused.value.error_count() == 1
    message, named = describe_in_v1(refused.value.errors())
    assert named == param
    assert re.search(r"(\d+) (entries|fields|prompts); the maximum is (\d+)\.", message), message


async def test_a_prompt_of_many_tokens_is_taken() -> None:
    assert len(CompletionRequest.model_validate({"prompt": [1] * (MANY * 10)}).prompt[0]) == MANY * 10


async def test_the_first_wrong_token_ends_the_check(live: RunningApp) -> None:
    answer = await live.http.post("/detokenize", json={"tokens": [1, "x"] * MANY})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tokens[1]")


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b'{"prompt": "a"', "The body is not valid JSON."),
        (b'{"prompt": "\xff"}', "The body is not valid UTF-8."),
        (b'{"prompt": "a", "seed": ' + b"9" * 5000 + b"}", "The body holds a number with too many digits."),
        (b'{"prompt": "a", "x": ' + b"[" * 9000 + b"]" * 9000 + b"}", "The body is nested too deep. Flatten it."),
        (b"[]", "The body must be an object."),
        (b"null", "The body must be an object."),
    ],
    ids=["cut off", "encoding", "digits", "nesting", "a list", "null"],
)
async def test_a_body_that_cannot_be_read_is_refused_with_the_reason(
    live: RunningApp, body: bytes, sentence: str
) -> None:
    answer = await live.http.post("/v1/completions", content=body, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["error"]["message"]) == (400, sentence)
