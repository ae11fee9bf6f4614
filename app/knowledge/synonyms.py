"""Reads the files of words that stand for one another."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

import yaml

from app.errors import StartupError
from app.store.knowledge.concepts import Thesaurus

MAX_GROUPS = 20_000
#: libyaml's, where it was built with it: ten times as fast.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_EXPECTED = "It is a YAML list of groups such as [refund, money back]."


def read_thesaurus(*files: Path) -> Thesaurus:
    """Joins the groups of files. Unchanged files are not read again.

    Raises:
        StartupError: a file cannot be read, or is no list of groups.
    """
    return _join(tuple(map(_version, files)))


def _version(file: Path) -> tuple[Path, int, int]:
    """Returns the file, when it was written, and its size."""
    try:
        status = file.stat()
    except OSError as error:
        raise _unreadable(file, error) from error
    return file, status.st_mtime_ns, status.st_size


@lru_cache(maxsize=4)
def _join(files: tuple[tuple[Path, int, int], ...]) -> Thesaurus:
    return Thesaurus(group for file, _, _ in files for group in _read(file))


def _unreadable(file: Path, error: Exception) -> StartupError:
    return StartupError(f"The synonyms in {file} cannot be read: {error}. {_EXPECTED}")


def _read(file: Path) -> Iterable[list[str]]:
    try:
        groups = yaml.load(file.read_text(encoding="utf-8"), Loader=_LOADER) or []
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise _unreadable(file, error) from error
    if not isinstance(groups, list) or len(groups) > MAX_GROUPS:
        raise StartupError(f"The synonyms in {file} are no list of at most {MAX_GROUPS} groups. {_EXPECTED}")
    for number, group in enumerate(groups, start=1):
        if not isinstance(group, list) or not all(isinstance(word, str | int | float) for word in group):
            raise StartupError(f"Group {number} of the synonyms in {file} is no list of words. {_EXPECTED}")
        yield [str(word) for word in group]
