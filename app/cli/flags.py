"""Command-line flags generated from the settings classes, so that flags, variables and ``.env`` always agree."""

from __future__ import annotations

import inspect
import os
import types
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import typer
from pydantic import SecretStr, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, SettingsError

from app.cli.env_file import find_problems
from app.errors import StartupError
from app.settings import AppSettings
from engine import EngineSettings

Settings = TypeVar("Settings", bound=BaseSettings)
Command = TypeVar("Command", bound=Callable[..., None])


def with_flags(*settings: type[BaseSettings]) -> Callable[[Command], Command]:
    """Adds one flag for each field of the settings classes to a command that takes ``**flags``.

    Values stay text: the settings class parses and validates them as it does environment variables.
    """

    def decorate(command: Command) -> Command:
        own = inspect.signature(command, eval_str=True).parameters.values()
        parameters = [parameter for parameter in own if parameter.kind is not inspect.Parameter.VAR_KEYWORD]
        parameters += [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_flag(cls, name, field))
            for cls in settings
            for name, field in cls.model_fields.items()
        ]
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return command

    return decorate


def flag_name(field: str) -> str:
    return "--" + field.replace("_", "-")


def variable_name(settings: type[BaseSettings], field: str) -> str:
    return f"{settings.model_config.get('env_prefix', '')}{field}".upper()


def read_settings(settings: type[Settings], flags: Mapping[str, Any]) -> Settings:
    """Reads the settings. Flags take precedence over the environment, then ``.env``, then defaults.

    The first call of a command warns on stderr of lines and variables that have no effect.

    Raises:
        StartupError: a value is invalid; the message names the flag, the variable and the reason. Or ``.env`` cannot be
            read.
    """
    warn_of_lost_settings()
    given: dict[str, Any] = {
        name: ",".join(value) if isinstance(value, list) else value
        for name in settings.model_fields
        if (value := flags.get(name)) is not None and value != []
    }
    try:
        return settings(**given)
    except ValidationError as error:
        first = error.errors()[0]
        named = (
            f"{flag_name(str(first['loc'][0]))} ({variable_name(settings, str(first['loc'][0]))}) "
            if first["loc"]
            else ""
        )
        reason = str(first["msg"]).removeprefix("Value error, ").removeprefix("Input ").partition(", unable")[0]
        shown = "" if not first["loc"] or _is_secret(settings, str(first["loc"][0])) else f", not '{first['input']}'"
        raise StartupError(f"{named}{reason}{shown}.") from error
    except SettingsError as error:
        raise StartupError(f"The settings cannot be read: {error}.") from error


@cache
def warn_of_lost_settings() -> None:
    """Prints a warning for each line of ``.env`` and each variable that has no effect. Only once: a command reads the
    settings of several classes.

    Raises:
        StartupError: ``.env`` cannot be read.
    """
    sources = (AppSettings, EngineSettings)
    known = [variable_name(settings, field) for settings in sources for field in settings.model_fields]
    prefixes = tuple(settings.model_config["env_prefix"] for settings in sources)
    for problem in find_problems(Path(".env"), os.environ, known, prefixes):
        typer.echo(f"deskmate: warning: {problem}", err=True)


def _is_secret(settings: type[BaseSettings], name: str) -> bool:
    field = settings.model_fields.get(name)
    return field is not None and SecretStr in _members(field.annotation)


def _flag(settings: type[BaseSettings], name: str, field: FieldInfo) -> Any:
    flag = flag_name(name)
    boolean = field.annotation is bool
    default = "" if field.default is None or _is_list(field.annotation) else f" Default: {field.default}."
    option = typer.Option(
        f"{flag}/--no-{flag[2:]}" if boolean else flag,
        help=f"{field.description or ''}{default} [{variable_name(settings, name)}]",
        metavar=None if boolean else _metavar(field.annotation),
        show_default=False,
        rich_help_panel="Engine" if variable_name(settings, name).startswith("ENGINE_") else "Application",
    )
    if boolean:
        return Annotated[bool | None, option]
    return Annotated[list[str] | None if _is_list(field.annotation) else str | None, option]


def _metavar(annotation: Any) -> str:
    choices = _members(annotation)
    if get_origin(annotation) is Literal:
        return "|".join(str(choice) for choice in get_args(annotation))
    if _is_list(annotation):
        return "A,B,..."
    names = {int: "NUMBER", float: "NUMBER", str: "TEXT", SecretStr: "SECRET"}
    return next((names[choice] for choice in choices if choice in names), "PATH")


def _members(annotation: Any) -> tuple[Any, ...]:
    if get_origin(annotation) in (Union, types.UnionType):
        return get_args(annotation)
    return (annotation,)


def _is_list(annotation: Any) -> bool:
    return any(get_origin(member) in (tuple, list) for member in _members(annotation))
