"""The library of system prompts: ``prompts/*.md``, YAML front matter above a Jinja2 body."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from jinja2 import StrictUndefined, Template, TemplateError
from jinja2.sandbox import SandboxedEnvironment
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from app.domain.chat_settings import ChatSettings
from app.errors import InvalidInput, StartupError

PROMPTS = Path(__file__).parents[1] / "prompts"
_FENCE = "---"


class _FrontMatter(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")
    title: str = Field(min_length=1, max_length=60)
    description: str = Field(min_length=1, max_length=200)
    recommended: ChatSettings = ChatSettings()


class Prompt:
    """One prompt of the library."""

    def __init__(self, about: _FrontMatter, template: Template) -> None:
        self.name = about.name
        self.title = about.title
        self.description = about.description
        self.recommended = about.recommended  #: sampling that suits it; unset fields are left to the model
        self._template = template

    def render(self, **variables: object) -> str:
        """The text for the model.

        Raises:
            InvalidInput: a variable without a default was not given.
        """
        try:
            return self._template.render(variables).strip()
        except TemplateError as error:
            raise InvalidInput(f"The system prompt '{self.name}' cannot be used: {error}.") from error


class PromptLibrary:
    """All prompts by name."""

    def __init__(self, prompts: Mapping[str, Prompt]) -> None:
        self._prompts = dict(prompts)

    @classmethod
    def load(cls, folder: Path = PROMPTS) -> PromptLibrary:
        """Read every ``*.md`` of ``folder``.

        Raises:
            StartupError: a file is not a prompt; the message names it and says what is wrong.
        """
        environment = SandboxedEnvironment(undefined=StrictUndefined, autoescape=False, keep_trailing_newline=False)
        prompts = [_read(file, environment) for file in sorted(folder.glob("*.md"))]
        return cls({prompt.name: prompt for prompt in prompts})

    def all(self) -> tuple[Prompt, ...]:
        """Sorted by title."""
        return tuple(sorted(self._prompts.values(), key=lambda prompt: prompt.title.casefold()))

    def get(self, name: str) -> Prompt:
        """Raises:
        InvalidInput: there is no prompt of this name.
        """
        try:
            return self._prompts[name]
        except KeyError:
            known = ", ".join(sorted(self._prompts)) or "none"
            raise InvalidInput(f"There is no system prompt '{name}'. There are: {known}.") from None


def _read(file: Path, environment: SandboxedEnvironment) -> Prompt:
    try:
        about, body = _split(file.read_text(encoding="utf-8"))
        front_matter = _FrontMatter.model_validate(about)
        if front_matter.name != file.stem:
            raise ValueError(f"name is '{front_matter.name}', which differs from the file's")
        prompt = Prompt(front_matter, environment.from_string(body))
        # What needs a variable to make sense would fail in the middle of a chat.
        if not prompt.render():
            raise ValueError("there is no text below the front matter")
        prompt.recommended.sampling_params()
    except ValidationError as error:
        first = error.errors()[0]
        raise _refused(file, f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    except yaml.YAMLError as error:
        raise _refused(file, f"the front matter is not YAML: {' '.join(str(error).split())}") from error
    except InvalidInput as error:
        raise _refused(file, error.message) from error
    except TemplateError as error:
        raise _refused(file, f"the text is not a Jinja2 template: {error}") from error
    except (OSError, ValueError) as error:
        raise _refused(file, str(error)) from error
    return prompt


def _split(text: str) -> tuple[Any, str]:
    """Front matter and body."""
    lines = text.splitlines()
    if not lines or lines[0].strip() != _FENCE:
        raise ValueError("it does not begin with front matter (a line ---, fields, a line ---)")
    for number, line in enumerate(lines[1:], start=1):
        if line.strip() == _FENCE:
            return yaml.safe_load("\n".join(lines[1:number])), "\n".join(lines[number + 1 :])
    raise ValueError("its front matter has no end (a second line ---)")


def _refused(file: Path, why: str) -> StartupError:
    return StartupError(f"The prompt file {file} cannot be used: {why}. Correct it or remove it.")
