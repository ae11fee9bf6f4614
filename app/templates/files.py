"""Reads template files: ``prompts/*.md`` and ``prompts/canned/*.md``, with YAML front matter.

``prompts/knowledge/*.md`` are texts around passages of documents, without front matter. ``prompts/examples.yaml`` is
what an empty chat shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

from app.domain.sources import SourcesPrompt
from app.domain.templates import Template, TemplateKind
from app.domain.welcome import WelcomeGroup, WelcomeTexts
from app.errors import InvalidInput, StartupError

PROMPTS = Path(__file__).parents[2] / "prompts"
_FOLDERS = {TemplateKind.PROMPT: ".", TemplateKind.CANNED: "canned"}
_FENCE = "---"

Made = TypeVar("Made")
Files = Mapping[TemplateKind, Mapping[str, Template]]


def read_templates(folder: Path = PROMPTS) -> Files:
    """All templates below ``folder``, by kind and name.

    Raises:
        StartupError: a file is not a template; the message names it and says what is wrong.
    """
    return {
        kind: {file.stem: _read(file, kind) for file in sorted((folder / within).glob("*.md"))}
        for kind, within in _FOLDERS.items()
    }


def read_sources_prompt(folder: Path = PROMPTS) -> SourcesPrompt:
    """The text around sources in a prompt.

    Raises:
        StartupError: the file is missing, or is not such a text.
    """
    return read_knowledge_prompt("sources", SourcesPrompt, folder)


def read_knowledge_prompt(name: str, make: Callable[[str], Made], folder: Path = PROMPTS) -> Made:
    """What ``make`` makes of the text of ``prompts/knowledge/NAME.md``.

    Raises:
        StartupError: the file is missing, or ``make`` raises a ``ValueError``.
    """
    file = folder / "knowledge" / f"{name}.md"
    try:
        return make(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _refused(file, str(error)) from error


def read_welcome(folder: Path = PROMPTS) -> WelcomeTexts:
    """What an empty chat shows: ``prompts/examples.yaml``.

    Raises:
        StartupError: the file is missing or is not such a list; the message names it and says what is wrong.
    """
    file = folder / "examples.yaml"
    try:
        groups = yaml.safe_load(file.read_text(encoding="utf-8"))
        if not isinstance(groups, list):
            raise ValueError("it is not a list of groups, each of which begins with a hyphen")
        return WelcomeTexts([_read_group(number, group) for number, group in enumerate(groups, start=1)])
    except FileNotFoundError as error:
        raise StartupError(f"The file {file} is missing. Restore it.") from error
    except yaml.YAMLError as error:
        raise _not_usable(file, f"it is not YAML: {' '.join(str(error).split())}") from error
    except RecursionError as error:
        raise _not_usable(file, "it is nested too deeply") from error
    except (OSError, ValueError) as error:
        raise _not_usable(file, str(error)) from error


def _read_group(number: int, group: object) -> WelcomeGroup:
    try:
        return WelcomeGroup.model_validate(group)
    except ValidationError as error:
        errors = error.errors()
        # A misspelt field is missing under its right name, too: the one that is there says more.
        first = next((each for each in errors if each["type"] == "extra_forbidden"), errors[0])
        place = ".".join(map(str, first["loc"]))
        raise ValueError(f"group {number}{f', {place}' if place else ''}: {first['msg']}") from error


def _read(file: Path, kind: TemplateKind) -> Template:
    try:
        about, body = _split(file.read_text(encoding="utf-8"))
        if not isinstance(about, dict):
            raise ValueError("the front matter has no fields")
        name = about.pop("name", None)
        if name != file.stem:
            raise ValueError(f"name is '{name}', which differs from the file's")
        return Template.model_validate({**about, "body": body}).checked(kind)
    except ValidationError as error:
        first = error.errors()[0]
        raise _refused(file, f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    except yaml.YAMLError as error:
        raise _refused(file, f"the front matter is not YAML: {' '.join(str(error).split())}") from error
    except RecursionError as error:
        raise _refused(file, "the front matter is nested too deeply") from error
    except InvalidInput as error:
        raise _refused(file, error.message.rstrip(".")) from error
    except (OSError, ValueError) as error:
        raise _refused(file, str(error)) from error


def _split(text: str) -> tuple[Any, str]:
    """Splits a file into front matter and body."""
    lines = text.splitlines()
    if not lines or lines[0].strip() != _FENCE:
        raise ValueError("it does not begin with front matter (a line ---, fields, a line ---)")
    for number, line in enumerate(lines[1:], start=1):
        if line.strip() == _FENCE:
            return yaml.safe_load("\n".join(lines[1:number])), "\n".join(lines[number + 1 :])
    raise ValueError("its front matter has no end (a second line ---)")


def _not_usable(file: Path, why: str) -> StartupError:
    """As :func:`_refused`, of a file that there has to be."""
    return StartupError(f"The file {file} cannot be used: {why}. Correct it.")


def _refused(file: Path, why: str) -> StartupError:
    return StartupError(f"The file {file} cannot be used: {why}. Correct it or remove it.")
