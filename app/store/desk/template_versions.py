"""Versions of templates written by admins. A version never changes; an edit creates a new one."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import Select, bindparam, func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from app.domain.audit import AuditAction
from app.domain.chat_settings import ChatSettings
from app.domain.templates import Template, TemplateKind, Variable
from app.errors import Conflict
from app.store.db.database import Database
from app.store.db.desk_models import TemplateVersion
from app.store.db.models import Account
from app.store.db.prepared_statements import PlainRows, Prepared
from app.store.db.rows import shown_name
from app.store.desk.audit import add_event

_CHANGED = {
    TemplateKind.PROMPT: AuditAction.PROMPT_CHANGED,
    TemplateKind.CANNED: AuditAction.CANNED_REPLY_CHANGED,
}
_DELETED = {
    TemplateKind.PROMPT: AuditAction.PROMPT_DELETED,
    TemplateKind.CANNED: AuditAction.CANNED_REPLY_DELETED,
}

_VERSION = PlainRows(TemplateVersion)
# Each reply of the bot asks this.
_LAST = Prepared(
    select(*_VERSION.columns, shown_name(Account))
    .outerjoin(Account, Account.id == TemplateVersion.author_id)
    .where(TemplateVersion.kind == bindparam("kind"), TemplateVersion.name == bindparam("name"))
    .order_by(TemplateVersion.version.desc())
    .limit(1)
)


@dataclass(frozen=True, slots=True)
class StoredTemplate:
    """One version of one template."""

    name: str
    version: int
    template: Template
    removed: bool = False  #: no longer offered
    author: str | None = None  #: None for a file, or if the author's account is deleted
    created_at: datetime | None = None  #: None for a file


class TemplateVersions:
    """The repository of template versions. Takes no user id: templates belong to the desk."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def last(self, kind: TemplateKind, name: str) -> StoredTemplate | None:
        """The latest version of one template, which may be removed; None without any."""
        row = await self._database.read_rows(lambda connection: _LAST.row(connection, {"kind": kind, "name": name}))
        return _stored(_VERSION.read(row[:-1]), row[-1]) if row is not None else None

    async def current(self, kind: TemplateKind) -> list[StoredTemplate]:
        """The latest version of every template; includes removed ones."""

        def work(session: Session) -> list[StoredTemplate]:
            latest = (
                select(TemplateVersion.name, func.max(TemplateVersion.version).label("version"))
                .where(TemplateVersion.kind == kind)
                .group_by(TemplateVersion.name)
            )
            last = latest.subquery()
            return _found(
                session,
                select(TemplateVersion, shown_name(Account))
                .join(last, (last.c.name == TemplateVersion.name) & (last.c.version == TemplateVersion.version))
                .where(TemplateVersion.kind == kind),
            )

        return await self._database.read(work)

    async def history(self, kind: TemplateKind, name: str) -> list[StoredTemplate]:
        """All versions of one template, latest first."""
        return await self._database.read(
            lambda session: _found(
                session,
                select(TemplateVersion, shown_name(Account))
                .where(TemplateVersion.kind == kind, TemplateVersion.name == name)
                .order_by(TemplateVersion.version.desc()),
            )
        )

    async def add(
        self,
        author_id: str,
        kind: TemplateKind,
        name: str,
        template: Template,
        *,
        after: int,
        removed: bool = False,
        restored: int | None = None,
    ) -> int:
        """Writes the version that follows ``after`` and an audit entry; returns the new version's number.

        Args:
            restored: the earlier version that it restores.

        Raises:
            Conflict: another admin has written it meanwhile.
        """

        def work(session: Session) -> int:
            last = session.scalar(
                select(func.max(TemplateVersion.version)).where(
                    TemplateVersion.kind == kind, TemplateVersion.name == name
                )
            )
            if (last or 0) != after:
                raise _moved_on(kind)
            session.add(
                TemplateVersion(
                    kind=kind,
                    name=name,
                    version=after + 1,
                    title=template.title,
                    description=template.description,
                    variables=[variable.model_dump(mode="json") for variable in template.variables],
                    recommended=template.recommended.model_dump(mode="json", exclude_defaults=True),
                    tools=list(template.tools),
                    min_parameters=template.min_parameters,
                    body=template.body,
                    removed=removed,
                    author_id=author_id,
                    created_at=datetime.now(UTC),
                )
            )
            details = {"version": after + 1} | ({"restored": restored} if restored is not None else {})
            add_event(session, author_id, (_DELETED if removed else _CHANGED)[kind], name, **details)
            return after + 1

        try:
            return await self._database.write(work)
        except IntegrityError as error:  # another process inserted it between the check and the insert
            raise _moved_on(kind) from error


def _moved_on(kind: TemplateKind) -> Conflict:
    return Conflict(f"Another admin has changed this {kind.noun} meanwhile. Reload it, then save again.")


def _found(session: Session, query: Select[tuple[TemplateVersion, str]]) -> list[StoredTemplate]:
    rows = session.execute(query.outerjoin(Account, Account.id == TemplateVersion.author_id))
    return [_stored(row, author) for row, author in rows]


def _stored(row: TemplateVersion, author: str | None) -> StoredTemplate:
    return StoredTemplate(
        name=row.name,
        version=row.version,
        template=Template(
            title=row.title,
            description=row.description,
            variables=tuple(Variable.model_validate(variable) for variable in row.variables),
            recommended=ChatSettings.model_validate(row.recommended),
            tools=tuple(row.tools),
            min_parameters=row.min_parameters,
            body=row.body,
        ),
        removed=row.removed,
        author=author,
        created_at=row.created_at,
    )
