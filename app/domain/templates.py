"""Templates: system prompts and canned replies with variables, in a small subset of Jinja2.

The subset has no loops, calls or arithmetic, so that a template cannot make the server compute forever: rendering
takes time proportional to the text.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from functools import lru_cache
from typing import Annotated

from jinja2 import StrictUndefined, TemplateError, TemplateSyntaxError, meta, nodes
from jinja2 import Template as CompiledTemplate
from jinja2.sandbox import SandboxedEnvironment
from pydantic import BaseModel, ConfigDict, Field

from app.domain.chat_settings import CHAT_PARAMETERS, ChatSettings
from app.domain.text import clean_text
from app.errors import InvalidInput

MAX_BODY_CHARS = 20_000
MAX_VALUE_CHARS = 2000
MAX_VARIABLES = 20
MAX_SERVERS, MAX_SERVER_CHARS = 20, 32
MAX_PARAMETERS = 10**15  #: of a model that a prompt asks for; page scripts count no further exactly
#: Names, operators, filters and tags in a body. Compiling takes about 0.1 ms for each, and more if nested.
MAX_TOKENS = 2000
#: Nesting depth of filters, operators and conditions. Compiling 300 filters in a row takes eleven seconds.
MAX_DEPTH = 30
NAME_PATTERN = r"^[a-z0-9]+(-[a-z0-9]+)*$"

_ALLOWED = (
    *(nodes.Template, nodes.Output, nodes.TemplateData, nodes.Const, nodes.Name, nodes.Concat),
    *(nodes.If, nodes.CondExpr, nodes.Compare, nodes.Operand, nodes.And, nodes.Or, nodes.Not),
    *(nodes.Filter, nodes.Test, nodes.Keyword),
)
_FILTERS = ("capitalize", "d", "default", "lower", "title", "trim", "upper")
_TESTS = ("defined", "undefined")
_RECOMMENDED = frozenset(parameter.name for parameter in CHAT_PARAMETERS)

#: Token types of Jinja2's lexer that cost nothing to compile.
_NO_TOKENS = frozenset({"data", "whitespace", "comment", "comment_begin", "comment_end", "linecomment"})

_environment = SandboxedEnvironment(undefined=StrictUndefined, autoescape=False, keep_trailing_newline=False)


class TemplateKind(StrEnum):
    """The kinds of templates."""

    PROMPT = "prompt"  #: a system prompt
    CANNED = "canned"  #: a canned reply, which users insert into the message box

    @property
    def noun(self) -> str:
        """The kind as a noun, for error texts."""
        return "system prompt" if self is TemplateKind.PROMPT else "canned reply"


class Variable(BaseModel):
    """A variable of a template."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=40, description="As used in the text: {{ name }}.")
    description: str = Field(min_length=1, max_length=200, description="Asks the user for the value.")
    default: str | None = Field(None, max_length=MAX_VALUE_CHARS, description="None if a value is required.")


class Template(BaseModel):
    """A text with variables."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    title: str = Field(min_length=1, max_length=60)
    description: str = Field(min_length=1, max_length=200)
    variables: tuple[Variable, ...] = Field((), max_length=MAX_VARIABLES)
    recommended: ChatSettings = Field(
        ChatSettings(), description="Sampling settings that suit a prompt; the others are left open."
    )
    tools: tuple[Annotated[str, Field(max_length=MAX_SERVER_CHARS)], ...] = Field(
        (), max_length=MAX_SERVERS, description="Tool servers of mcp.json whose tools this prompt's chats are offered."
    )
    min_parameters: int | None = Field(
        None,
        ge=1,
        le=MAX_PARAMETERS,
        description="How many parameters a model needs for this prompt; default: any model will do.",
    )
    body: str = Field(max_length=MAX_BODY_CHARS, description="The text, with {{ variables }}.")

    def checked(self, kind: TemplateKind) -> Template:
        """Validates the template and returns it with clean texts.

        Raises:
            InvalidInput: it is not valid; the text says why.
        """
        names = [variable.name for variable in self.variables]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise InvalidInput(f"The variable '{twice}' is declared twice.")
        body = clean_text(self.body).strip()
        used = _variables_of(body)
        if unknown := sorted(used - set(names)):
            raise InvalidInput(f"The text uses '{unknown[0]}', which is not declared as a variable.")
        chosen = self.recommended.model_dump(exclude_defaults=True)
        if kind is TemplateKind.PROMPT:
            if open_one := next((variable.name for variable in self.variables if variable.default is None), None):
                # Otherwise the missing value would surface in the middle of a chat.
                raise InvalidInput(f"The variable '{open_one}' needs a default: not every chat fills it in.")
            if other := sorted(chosen.keys() - _RECOMMENDED):
                raise InvalidInput(f"A prompt cannot recommend '{other[0]}'.")
            self.recommended.sampling_params()
        elif self.tools:
            raise InvalidInput("A canned reply has no tools: it is only a part of a message.")
        elif self.min_parameters is not None:
            raise InvalidInput("A canned reply needs no model: it is inserted as it is.")
        elif chosen:
            raise InvalidInput("A canned reply cannot recommend sampling settings: it is only a part of a message.")
        cleaned = Template(
            title=clean_text(self.title),
            description=clean_text(self.description),
            variables=tuple(_cleaned(variable) for variable in self.variables),
            recommended=self.recommended,
            tools=tuple(dict.fromkeys(map(clean_text, self.tools))),
            min_parameters=self.min_parameters,
            body=body,
        )
        if not cleaned.render(dict.fromkeys(names, "x")):
            raise InvalidInput("The text is empty. Write something first.")
        return cleaned

    def render(self, given: Mapping[str, str] | None = None) -> str:
        """Renders the template; variables without a value in ``given`` have their defaults.

        Raises:
            InvalidInput: a variable without a default was not given, or a value is too long.
        """
        values: dict[str, str] = {}
        for variable in self.variables:
            value = (given or {}).get(variable.name, variable.default)
            if value is None:
                raise InvalidInput(f"'{self.title}' needs a value for '{variable.name}': {variable.description}")
            if len(value) > MAX_VALUE_CHARS:
                raise InvalidInput(
                    f"The value for '{variable.name}' is {len(value):,} characters long; at most "
                    f"{MAX_VALUE_CHARS:,} fit."
                )
            values[variable.name] = clean_text(value)
        try:
            return _compiled(self.body).render(values).strip()
        except TemplateError as error:
            raise InvalidInput(f"'{self.title}' cannot be used: {error}.") from error


def _cleaned(variable: Variable) -> Variable:
    default = clean_text(variable.default) if variable.default is not None else None
    return Variable(name=variable.name, description=clean_text(variable.description), default=default)


@lru_cache(maxsize=128)
def _compiled(body: str) -> CompiledTemplate:
    """Cached: compiling takes many times as long as rendering, and every message renders its system prompt."""
    return _environment.from_string(body)


def _variables_of(body: str) -> set[str]:
    """The variables that a body uses. Checks that it keeps to the Jinja2 subset."""
    try:
        tokens = sum(kind not in _NO_TOKENS for _line, kind, _text in _environment.lex(body))
        if tokens > MAX_TOKENS:
            raise InvalidInput(
                f"The text has {tokens:,} names, operators and marks in its braces; at most {MAX_TOKENS:,} fit. "
                "Write more of it as plain text."
            )
        parsed = _environment.parse(body)
        for node in parsed.find_all(nodes.Node):
            _check(node)
        if _is_deeper(parsed, MAX_DEPTH):
            raise InvalidInput(
                f"The text is not a valid template: it is nested too deeply. At most {MAX_DEPTH} filters, operators "
                "and conditions can be nested."
            )
        _compiled(body)
        return set(meta.find_undeclared_variables(parsed))
    except TemplateSyntaxError as error:
        raise InvalidInput(
            f"Line {error.lineno} of the text is not a valid template: {(error.message or '').rstrip('.')}."
        ) from error
    except (RecursionError, SyntaxError) as error:
        raise InvalidInput("The text is not a valid template: it is nested too deeply.") from error


def _is_deeper(root: nodes.Node, depth: int) -> bool:
    """Whether nodes are nested more than ``depth`` deep."""
    level = [root]
    while level and depth >= 0:
        level = [child for node in level for child in node.iter_child_nodes()]
        depth -= 1
    return bool(level)


def _check(node: nodes.Node) -> None:
    if not isinstance(node, _ALLOWED) or (isinstance(node, nodes.Name) and node.ctx != "load"):
        raise InvalidInput(
            f"The text uses unsupported syntax (line {node.lineno}: {type(node).__name__.lower()}). "
            "Supported are variables in {{ }}, {% if %}, and the filters " + ", ".join(_FILTERS) + "."
        )
    if isinstance(node, nodes.Filter) and node.name not in _FILTERS:
        raise InvalidInput(f"There is no filter '{node.name}' here. There are: {', '.join(_FILTERS)}.")
    if isinstance(node, nodes.Test) and node.name not in _TESTS:
        raise InvalidInput(f"There is no test '{node.name}' here. There are: {', '.join(_TESTS)}.")
