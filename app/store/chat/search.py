"""Full-text search: which conversations contain some words, and in which messages.

Each user's words are stored with a prefix of that user, so that a search never meets another user's words and its cost
depends on what the user has written, not on what all users have.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Select, Subquery, cast, column, func, literal, select, table, union_all
from sqlalchemy.dialects.postgresql import TSQUERY
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import Session
from sqlalchemy.sql.expression import FunctionElement
from sqlalchemy.types import Text

from app.domain.words import Phrase, SnippetPart, fold_words, literal_snippet, phrases, snippet
from app.store.db.models import Conversation, Message, SearchEntry

SNIPPETS_SECONDS = 1.0
"""Time budget for all snippets of a page: long texts full of near matches would take minutes."""
ENTRY_WORDS = 1000  # PostgreSQL limits an entry to one megabyte and 256 positions per word
ENTRY_OVERLAP = 20  # longest phrase that is found across two entries of one text

_FTS = table("search_entry_fts", column("rowid"), column("words"))


class Query:
    """A user's search query.

    Matches word prefixes regardless of case and accents. A query without any word (``100%`` has one, ``%`` has none)
    is matched literally.
    """

    def __init__(self, user_id: str, text: str) -> None:
        self._user_id = user_id
        self._text = text
        self._phrases = phrases(text)
        self._until: float | None = None  # deadline of the snippets

    def hits(self, session: Session) -> Subquery:
        """Per conversation of the user's with a hit: ``conversation_id``, and ``message_id`` of the latest hit.

        ``message_id`` is null if only the title matches.
        """
        found = self._indexed(session) if self._phrases else self._literal()
        entry = found.subquery()
        return (
            select(entry.c.conversation_id, func.max(entry.c.message_id).label("message_id"))
            .group_by(entry.c.conversation_id)
            .subquery()
        )

    def snippet(self, content: str) -> tuple[SnippetPart, ...]:
        """The text around the first hit in a message; the message's beginning once the time budget is spent."""
        if self._until is None:
            self._until = time.monotonic() + SNIPPETS_SECONDS
        if self._phrases:
            return snippet(content, self._phrases, self._until)
        return literal_snippet(content, self._text, self._until)

    def _indexed(self, session: Session) -> Select[tuple[str, str | None]]:
        found = select(SearchEntry.conversation_id, SearchEntry.message_id)
        if session.get_bind().dialect.name == "sqlite":
            found = found.join(_FTS, _FTS.c.rowid == SearchEntry.id)
            return found.where(_FTS.c.words.op("MATCH")(_fts5_query(self._user_id, self._phrases)))
        return found.where(SearchEntry.words.op("@@")(cast(_ts_query(self._user_id, self._phrases), TSQUERY)))

    def _literal(self) -> Any:
        is_own = Conversation.user_id == self._user_id
        return union_all(
            select(Conversation.id.label("conversation_id"), literal(None, Text()).label("message_id")).where(
                is_own, _contains(Conversation.title, self._text)
            ),
            select(Message.conversation_id, Message.id)
            .join(Conversation, Conversation.id == Message.conversation_id)
            .where(is_own, Message.deletion.is_(None), _contains(Message.content, self._text)),
        )


def entries(dialect: str, user_id: str, text: str) -> Iterator[str]:
    """The words of a text in the form of ``SearchEntry.words``, in as many entries as needed."""
    begins = mark(user_id)
    marked = [begins + word for word in fold_words(text)]
    for start in range(0, len(marked), ENTRY_WORDS):
        piece = marked[max(start - ENTRY_OVERLAP, 0) : start + ENTRY_WORDS]
        yield " ".join(piece) if dialect == "sqlite" else ts_vector(piece)


def mark(user_id: str) -> str:
    """The prefix of the user's words. If two users' prefixes collide, the user filter still separates their results."""
    return hashlib.blake2b(user_id.encode(), digest_size=6).hexdigest()


def ts_vector(piece: Sequence[str]) -> str:
    """A tsvector literal, so that PostgreSQL's parser does not split the words again."""
    places: dict[str, list[str]] = {}
    for place, word in enumerate(piece, start=1):
        places.setdefault(word, []).append(str(place))
    return " ".join(f"'{word}':{','.join(where[:255])}" for word, where in places.items())


def _ts_query(user_id: str, wanted: Sequence[Phrase]) -> str:
    begins = mark(user_id)
    return " & ".join("(" + " <-> ".join(f"'{begins}{word}'" for word in phrase) + ":*)" for phrase in wanted)


def _fts5_query(user_id: str, wanted: Sequence[Phrase]) -> str:
    begins = mark(user_id)
    return " AND ".join('"' + " ".join(begins + word for word in phrase) + '" *' for phrase in wanted)


class _Fold(FunctionElement[str]):
    """Folds the case of a text."""

    type = Text()
    inherit_cache = True


@compiles(_Fold, "sqlite")
def _fold_sqlite(element: _Fold, compiler: Any, **options: Any) -> str:
    return f"casefold({compiler.process(element.clauses, **options)})"


@compiles(_Fold, "postgresql")
def _fold_postgres(element: _Fold, compiler: Any, **options: Any) -> str:
    return f"lower({compiler.process(element.clauses, **options)})"


def _contains(column: ColumnElement[str] | Any, text: str) -> ColumnElement[bool]:
    """Whether ``column`` contains ``text``, regardless of case; ``%`` and ``_`` are literal."""
    escaped = text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    # The database folds both sides, so that both follow the same rules.
    return _Fold(column).like(_Fold(literal(f"%{escaped}%", Text())), escape="\\")
