"""The form that a reply is held to: a JSON schema, a regular expression, choices, or a grammar."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypedDict


class JsonSpacing(TypedDict):
    """llguidance's options for the white space in JSON."""

    whitespace_flexible: bool
    item_separator: str
    key_separator: str


def json_spacing() -> JsonSpacing:
    """Returns the options for JSON as ``json.dumps`` writes it, which models have read most of.

    Free white space would let a model go on writing blanks for ever.
    """
    return JsonSpacing(whitespace_flexible=False, item_separator=", ", key_separator=": ")


class StructureKind(StrEnum):
    """The language that a structure is described in."""

    JSON_OBJECT = "json_object"  #: any JSON object
    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    CHOICE = "choice"
    GRAMMAR = "grammar"  #: Lark, or GBNF as llama.cpp writes it
    STRUCTURAL_TAG = "structural_tag"  #: free text with constrained parts between tags, as vLLM and SGLang write it


@dataclass(frozen=True, slots=True)
class StructuredOutput:
    """The form that a reply is held to, token by token. Equal structures share one compiled grammar.

    Args:
        kind: the language of ``definition``.
        definition: JSON text of a schema or structural tag, a regular expression, a grammar, or a JSON list of choices;
            empty for any JSON object.
        whitespace_pattern: regular expression of the white space between JSON tokens; None is the compiler's default.
    """

    kind: StructureKind
    definition: str = ""
    whitespace_pattern: str | None = None
