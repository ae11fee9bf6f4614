"""The form that a reply is held to: a JSON schema, a regular expression, choices, or a grammar."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


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
