"""Searching by substring, whatever the case, on both databases."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, literal
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.expression import FunctionElement
from sqlalchemy.types import Text

from app.domain.text import one_line

SNIPPET_BEFORE = 40
SNIPPET_AFTER = 80


class _Fold(FunctionElement[str]):
    """A text without its case."""

    type = Text()
    inherit_cache = True


@compiles(_Fold, "sqlite")
def _fold_sqlite(element: _Fold, compiler: Any, **options: Any) -> str:
    return f"casefold({compiler.process(element.clauses, **options)})"


@compiles(_Fold, "postgresql")
def _fold_postgres(element: _Fold, compiler: Any, **options: Any) -> str:
    return f"lower({compiler.process(element.clauses, **options)})"


def contains(column: ColumnElement[str] | Any, query: str) -> ColumnElement[bool]:
    """Whether ``column`` contains ``query``, without regard to case; ``%`` and ``_`` mean themselves."""
    escaped = query.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    # The database folds both sides, so that both are folded by the same rules.
    return _Fold(column).like(_Fold(literal(f"%{escaped}%", Text())), escape="\\")


def snippet(text: str, query: str) -> str:
    """The surroundings of the first hit in ``text``, on one line, with … where something is cut."""
    at = max(text.casefold().find(query.casefold()), 0)
    # Folding can lengthen a text (ß becomes ss), so the place is only near; the margins make up for it.
    start = max(at - SNIPPET_BEFORE, 0)
    end = at + len(query) + SNIPPET_AFTER
    return f"{'…' if start else ''}{one_line(text[start:end])}{'…' if end < len(text) else ''}"
