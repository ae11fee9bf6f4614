"""Checks ``.env`` and the environment before the settings are read: a setting that is lost goes unnoticed otherwise."""

from __future__ import annotations

import difflib
import io
import logging
import os
import re
import stat
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from dotenv.parser import parse_stream

from app.errors import StartupError

#: Minimum similarity (0 to 1) of a name to the setting that it is taken for. A name in ``.env`` with a prefix of ours
#: is meant for us. In the environment (APP_KEY) and without a prefix (DATABASE_URL) it may be another program's.
_MIN_SIMILARITY_OF_OURS = 0.75
_MIN_SIMILARITY_IN_ENVIRONMENT = 0.85
_MIN_SIMILARITY_WITHOUT_PREFIX = 0.9
_NAME = re.compile(r"\s*(?:export\s+)?(\w+)")


def find_problems(
    file: Path, environment: Mapping[str, str], known: Collection[str], prefixes: tuple[str, ...]
) -> Iterator[str]:
    """Yields a sentence for each line of ``file`` and each variable that looks like a setting and has no effect.

    The sentences contain no values, which may be secrets.

    Args:
        file: ``.env``; need not exist.
        known: the names of the settings' variables, in upper case.
        prefixes: what these names begin with.

    Raises:
        StartupError: the file cannot be read.
    """
    # It reports broken lines each time the file is read, without the file's name.
    logging.getLogger("dotenv.main").setLevel(logging.ERROR)
    names = set()
    text = _read(file)
    if text is None:
        yield f"{file} is {'a folder' if file.is_dir() else 'a broken link'}, so no settings are read from it."
        text = ""
    for binding in parse_stream(io.StringIO(text)):
        source = binding.original.string
        line = binding.original.line + source[: len(source) - len(source.lstrip())].count("\n")
        found = _NAME.match(source)
        name = binding.key or (found[1] if found else "")
        ours = name.upper().startswith(prefixes)
        if binding.error or (ours and binding.value is None):
            named = f" ({name})" if ours else ""
            yield (
                f"{file}, line {line}{named} cannot be read, so it has no effect. A line is NAME=value; a value in "
                "quotes ends with the same quote."
            )
        elif name:
            names.add(name.upper())
            least = _MIN_SIMILARITY_OF_OURS if ours else _MIN_SIMILARITY_WITHOUT_PREFIX
            guess = _similar(name, known, least)
            if name.upper() not in known and (ours or guess):
                yield f"{file}, line {line}: {_no_setting(name, guess)}"
    for name in sorted(environment):
        if name.upper().startswith(prefixes) and name.upper() not in {*known, *names}:
            guess = _similar(name, known, _MIN_SIMILARITY_IN_ENVIRONMENT)
            if guess is not None:
                yield f"In the environment: {_no_setting(name, guess)}"


def _read(file: Path) -> str | None:
    """Returns the file's text, empty if there is no file; None for what pydantic-settings takes for no file."""
    try:
        os.getcwd()  # relative paths, the data folder's too, are below it
    except OSError as error:
        raise StartupError("The working directory no longer exists. Change to another folder.") from error
    try:
        mode = file.stat().st_mode
        if stat.S_ISDIR(mode):
            return None
        # A named pipe, from which a password manager delivers the settings, is read once: by pydantic-settings.
        text = file.read_text("utf-8") if stat.S_ISREG(mode) else ""
    except (FileNotFoundError, NotADirectoryError):
        return None if file.is_symlink() else ""
    except UnicodeDecodeError as error:
        raise StartupError(_NOT_UTF8.format(file=file)) from error
    except OSError as error:
        raise StartupError(
            f"The file {file} cannot be read: {error.strerror or error}. Make it readable, or start Deskmate in "
            "another folder."
        ) from error
    if "\0" in text:  # UTF-16 of ASCII characters is valid UTF-8
        raise StartupError(_NOT_UTF8.format(file=file))
    return text


_NOT_UTF8 = "The file {file} cannot be read: it is not UTF-8 text. Save it as UTF-8."


def _similar(name: str, known: Collection[str], least: float) -> str | None:
    return next(iter(difflib.get_close_matches(name.upper(), known, n=1, cutoff=least)), None)


def _no_setting(name: str, guess: str | None) -> str:
    advice = f"Did you mean {guess}?" if guess else "deskmate serve --help lists the settings."
    return f"{name} is not a setting, so it has no effect. {advice}"
