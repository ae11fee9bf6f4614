"""The reply formats that are known, by the names that vLLM gives them where it has one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from engine.text.reply_formats.reply_format import CallSyntax, Notation, Tags

HARMONY_NAME = "harmony"
"""Thinking, calls and answer as messages to channels."""

REASONING: Mapping[str, Tags] = MappingProxyType(
    {
        "think": Tags("<think>", "</think>"),
        "mistral-think": Tags("[THINK]", "[/THINK]"),
        "gemma4-thought": Tags("<|channel>thought\n", "<channel|>"),
    }
)
"""Tags around thinking, by name."""

_DEEPSEEK = CallSyntax(
    notation=Notation.NAMED_JSON,
    section=Tags("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
    tags=Tags("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"),
    name=Tags("", "<｜tool▁sep｜>"),
)
_TOOL_CALL = Tags("<tool_call>", "</tool_call>")

CALLS: Mapping[str, CallSyntax] = MappingProxyType(
    {
        "hermes": CallSyntax(notation=Notation.JSON_OBJECT, tags=_TOOL_CALL, space="\n"),
        "qwen3_coder": CallSyntax(
            notation=Notation.PARAMETERS,
            tags=_TOOL_CALL,
            space="\n",
            name=Tags("<function=", ">"),
            key=Tags("<parameter=", ">"),
            value=Tags("", "</parameter>"),
            arguments_close="</function>",
        ),
        "glm45": CallSyntax(
            notation=Notation.PARAMETERS,
            tags=_TOOL_CALL,
            space="\n",
            key=Tags("<arg_key>", "</arg_key>"),
            value=Tags("<arg_value>", "</arg_value>"),
        ),
        "deepseek_v31": _DEEPSEEK,
        "deepseek_v3": CallSyntax(
            notation=Notation.NAMED_JSON,
            section=_DEEPSEEK.section,
            tags=_DEEPSEEK.tags,
            name=Tags("function<｜tool▁sep｜>", "```json"),
            arguments_close="```",
            space="\n",
        ),
        "mistral": CallSyntax(notation=Notation.NAMED_JSON, tags=Tags("[TOOL_CALLS]"), name=Tags("", "[ARGS]")),
        "llama3_json": CallSyntax(
            notation=Notation.JSON_OBJECT,
            tags=Tags("<|python_tag|>"),
            starts_with="{",
            arguments_key="parameters",
        ),
        "pythonic": CallSyntax(
            notation=Notation.PYTHONIC, tags=Tags("<|python_start|>", "<|python_end|>"), starts_with="["
        ),
        "functiongemma": CallSyntax(
            notation=Notation.BRACES,
            tags=Tags("<start_function_call>", "<end_function_call>"),
            name=Tags("call:"),
            string="<escape>",
        ),
        "gemma4": CallSyntax(
            notation=Notation.BRACES, tags=Tags("<|tool_call>", "<tool_call|>"), name=Tags("call:"), string='<|"|>'
        ),
    }
)
"""How tool calls are written, by name."""

FINGERPRINTS: Sequence[tuple[str, Sequence[str]]] = (
    ("qwen3_coder", ("<tool_call>", "<function=", "<parameter=")),
    ("glm45", ("<tool_call>", "<arg_key>")),
    ("hermes", ("<tool_call>",)),
    ("deepseek_v3", ("<｜tool▁calls▁begin｜>", "```json")),
    ("deepseek_v31", ("<｜tool▁calls▁begin｜>",)),
    ("mistral", ("[TOOL_CALLS]",)),
    ("gemma4", ("<|tool_call>",)),
    ("functiongemma", ("<start_function_call>",)),
    ("pythonic", ("[func_name1(",)),
    ("llama3_json", ("<|start_header_id|>", '"parameters"')),
)
"""Texts that a chat template contains if its model writes calls in this way. The first one that fits is taken."""
