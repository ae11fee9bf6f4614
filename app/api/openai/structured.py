"""The fields of ``/v1`` that hold a reply to a form: OpenAI's ``response_format`` and vLLM's ``structured_outputs``."""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import Field

from app.api.openai.fields import Lenient
from engine import StructuredOutput, StructureKind


class JsonSchemaFormat(Lenient):
    name: str | None = None
    description: str | None = None
    json_schema: dict[str, Any] | bool | None = Field(None, alias="schema")
    strict: bool | None = Field(None, description="The reply is held to the schema in any case.")


class ResponseFormat(Lenient):
    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: JsonSchemaFormat | None = None
    format: dict[str, Any] | None = Field(None, description="Of a structural tag, as XGrammar describes it.")
    structures: list[dict[str, Any]] | None = Field(None, description="Of a structural tag: begin, schema and end.")
    triggers: list[str] | None = Field(None, description="Of a structural tag: texts with which structures begin.")


class StructuredOutputs(Lenient):
    json_: dict[str, Any] | bool | str | None = Field(None, alias="json", description="A schema, or its JSON text.")
    json_object: bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = Field(None, description="Lark, or GBNF as llama.cpp writes it.")
    structural_tag: str | dict[str, Any] | None = Field(None, description="A structural tag, or its JSON text.")
    whitespace_pattern: str | None = Field(
        None,
        description="Regular expression of the white space in JSON. Default: a space after commas and colons.",
    )


def structured_output(
    response_format: ResponseFormat | None, structured_outputs: StructuredOutputs | None
) -> StructuredOutput | None:
    """Returns the form that a request asks for; None for free text.

    Raises:
        ValueError: the fields contradict each other, or lack a schema; the message begins with the engine's name for
            them, ``structured``.
    """
    by_format = None if response_format is None else _of_format(response_format)
    by_vllm = None if structured_outputs is None else _of_structured_outputs(structured_outputs)
    if by_format is not None and by_vllm is not None:
        raise ValueError("structured must be asked for once: send response_format or structured_outputs, not both")
    return by_format or by_vllm


def _of_format(asked: ResponseFormat) -> StructuredOutput | None:
    if asked.type == "text":
        return None
    if asked.type == "json_object":
        return StructuredOutput(StructureKind.JSON_OBJECT)
    if asked.type == "structural_tag":
        parts = {"format": asked.format, "structures": asked.structures, "triggers": asked.triggers}
        given = {name: value for name, value in parts.items() if value is not None}
        return StructuredOutput(StructureKind.STRUCTURAL_TAG, _text(given))
    if asked.json_schema is None or asked.json_schema.json_schema is None:
        raise ValueError("structured needs a schema for the type json_schema, as json_schema.schema")
    return StructuredOutput(StructureKind.JSON_SCHEMA, _text(asked.json_schema.json_schema))


def _of_structured_outputs(asked: StructuredOutputs) -> StructuredOutput | None:
    forms = {
        StructureKind.JSON_SCHEMA: None if asked.json_ is None else _text(asked.json_),
        StructureKind.JSON_OBJECT: "" if asked.json_object else None,
        StructureKind.REGEX: asked.regex,
        StructureKind.CHOICE: None if asked.choice is None else json.dumps(asked.choice),
        StructureKind.GRAMMAR: asked.grammar,
        StructureKind.STRUCTURAL_TAG: (None if asked.structural_tag is None else _text(asked.structural_tag)),
    }
    given = [(kind, definition) for kind, definition in forms.items() if definition is not None]
    if not given:
        return None
    if len(given) > 1:
        raise ValueError(f"structured takes one form (got {', '.join(kind for kind, _ in given)})")
    kind, definition = given[0]
    return StructuredOutput(kind, definition, asked.whitespace_pattern)


def _text(value: dict[str, Any] | bool | str) -> str:
    if isinstance(value, str):
        return value
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode()
    except RecursionError:
        raise ValueError("structured holds a schema that is nested too deep to read") from None
    except UnicodeEncodeError:
        raise ValueError("structured holds a schema with half of a surrogate pair, which is no valid text") from None
    except ValueError:
        raise ValueError("structured holds a schema with NaN or an infinite number, which JSON lacks") from None
    return text
