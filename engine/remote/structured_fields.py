"""The field with which a model server elsewhere is asked to hold a reply to a form."""

from __future__ import annotations

import json
from typing import Any

from engine.errors import InvalidRequestError, UnsupportedParameterError
from engine.structured_output import StructuredOutput, StructureKind


def structured_fields(structure: StructuredOutput | None, server: str) -> dict[str, Any]:
    """Returns ``response_format``, which OpenAI's, vLLM's, SGLang's and llama.cpp's servers take.

    Args:
        server: the server's kind, for the message.

    Raises:
        UnsupportedParameterError: the form is none that every server takes.
        InvalidRequestError: the schema is not JSON.
    """
    if structure is None:
        return {}
    if structure.kind is StructureKind.JSON_OBJECT and structure.whitespace_pattern is None:
        return {"response_format": {"type": "json_object"}}
    if structure.kind is StructureKind.JSON_SCHEMA and structure.whitespace_pattern is None:
        try:
            schema = json.loads(structure.definition)
        except (RecursionError, ValueError) as error:
            raise InvalidRequestError(f"structured holds a JSON schema that is not JSON: {error}.") from error
        form = {"name": "reply", "schema": schema, "strict": True}
        return {"response_format": {"type": "json_schema", "json_schema": form}}
    raise UnsupportedParameterError(
        f"structured of the kind {structure.kind.value}, or with a whitespace_pattern, is not sent to the model "
        f"server ({server}). Send a JSON schema, or leave it out."
    )
