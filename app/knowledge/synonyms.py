"""Reads the files of words that stand for one another."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import yaml

from app.errors import StartupError
from app.store.knowledge.concepts import Thesaurus

MAX_GROUPS = 20_000
_EXPECTED = "It is a YAML list of groups such as [refund, money back]."


def read_thesaurus(*files: Path) -> Thesaurus:
    """Joins the groups of files.

    Raises:
        StartupError: a file cannot be read, or is no list of groups.
    """
    return Thesaurus(group for file in files for group in _read(file))


def _read(file: Path) -> Iterable[list[str]]:
    try:
        groups = yaml.safe_load(file.read_text(encoding="utf-8")) or []
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise StartupError(f"The synonyms in {file} cannot be read: {error}. {_EXPECTED}") from error
    if not isinstance(groups, list) or len(groups) > MAX_GROUPS:
        raise StartupError(f"The synonyms in {file} are no list of at most {MAX_GROUPS} groups. {_EXPECTED}")
    for number, group in enumerate(groups, start=1):
        if not isinstance(group, list) or not all(isinstance(word, str | int | float) for word in group):
            raise StartupError(f"Group {number} of the synonyms in {file} is no list of words. {_EXPECTED}")
        yield [str(word) for word in group]
