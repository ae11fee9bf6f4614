"""Reads through the HTTP API what an installation holds, so that two versions can be compared; and its fixture files.

Shared by the script that writes a fixture (``scripts/upgrade_fixture.py``) and the test that opens it.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

FIXTURES = Path(__file__).parents[1] / "tests" / "app" / "upgrade" / "fixtures"
DATABASES = ("sqlite", "postgresql")
#: Name of the file with what the version that wrote the fixture answered.
RECORD = "record.json"
#: Name of the file with the volume ``db`` of docker-compose.yml, as SQL.
DATABASE_DUMP = "db.sql"
EXPORT = "export.json"
#: Rows that one conversation list or log returns at most; a fixture has fewer.
_LIMIT = 200
#: Changes with every visit.
_VOLATILE = frozenset({"last_seen_at", "last_used_at"})


@dataclass(frozen=True, slots=True)
class User:
    """A user of a fixture, with the credentials that must still work."""

    name: str
    password: str
    role: str
    session: str  #: token of the session cookie


@dataclass(frozen=True, slots=True)
class Record:
    """What the version that wrote a fixture answered, and the credentials for asking again."""

    version: str
    revision: str  #: the database's schema
    day: str  #: the day on which it was written, such as 2026-11-24
    users: tuple[User, ...]
    api_key: str  #: of the first agent
    settings: Mapping[str, Any]  #: by the variables' names: what ``.env`` sets, as the settings classes read it
    views: Mapping[str, Any]  #: by user: the result of :func:`read_views`
    backup: str  #: name of the backup in the data folder
    visitors: Mapping[str, str] = field(default_factory=dict)  #: tokens of the desk's visitors, by their case's id
    webhook_secret: str | None = None  #: of the first webhook

    def write(self, file: Path) -> None:
        """Writes the record as JSON."""
        users = [{name: getattr(user, name) for name in User.__slots__} for user in self.users]
        values = {name: getattr(self, name) for name in self.__slots__} | {"users": users}
        file.write_text(json.dumps(values, indent=1, ensure_ascii=False), "utf-8")

    @classmethod
    def read(cls, file: Path) -> Record:
        """Reads what :meth:`write` has written."""
        values = json.loads(file.read_text("utf-8"))
        return cls(**values | {"users": tuple(User(**user) for user in values["users"])})

    def user(self, role: str) -> User:
        """The first user with this role."""
        return next(user for user in self.users if user.role == role)


def fixture_versions() -> list[str]:
    """The versions that a fixture was written by, such as ``0.1.0-6ac695f``."""
    return sorted(path.name for path in FIXTURES.iterdir() if path.is_dir())


def unpack(version: str, database: str, to: Path) -> None:
    """Copies a fixture into the folder ``to``, which is then the installation's working directory."""
    with tarfile.open(FIXTURES / version / f"{database}.tar.xz") as archive:
        for member in archive:
            if content := archive.extractfile(member):
                file = to / member.name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content.read())


def pack(folder: Path, file: Path) -> None:
    """Packs an installation's working directory, with names in order and without users."""

    def anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        return member

    with tarfile.open(file, "w:xz", preset=9) as archive:
        for path in sorted(folder.rglob("*")):
            archive.add(path, str(path.relative_to(folder)), recursive=False, filter=anonymous)


async def read_views(http: httpx.AsyncClient, *, role: str, day: str) -> dict[str, Any]:
    """Everything that a signed-in user finds: their conversations with every branch; for an admin, the desk too.

    Args:
        day: the day that the desk's reports are about.
    """

    async def get(path: str, **parameters: Any) -> Any:
        answer = await http.get(path, params=parameters)
        answer.raise_for_status()
        return _without_volatile(answer.json())

    views = {"account": await get("/api/account"), "keys": await get("/api/account/keys")}
    if role != "viewer":
        lists = [await get("/api/conversations", limit=_LIMIT, archived=archived) for archived in (False, True)]
        views["lists"] = lists
        views["conversations"] = [
            await get(f"/api/conversations/{item['id']}", limit=500) for page in lists for item in page["items"]
        ]
        views["tags"] = await get("/api/tags")
        views["storage"] = await get("/api/account/storage")
        views["export"] = await get("/api/export")  # every version of every message
    if role == "admin":
        days = {"first": day, "last": day}
        views["people"] = await get("/api/people")
        for kind in ("prompt", "canned"):
            # Version 0 is a file of the program, which a later version may word differently.
            templates = [one for one in await get(f"/api/desk/templates/{kind}") if one["version"]]
            views[f"{kind} templates"] = templates
            views[f"{kind} versions"] = {
                one["name"]: [
                    version
                    for version in await get(f"/api/desk/templates/{kind}/{one['name']}/versions")
                    if version["version"]
                ]
                for one in templates
            }
        views["review"] = await get("/api/desk/review", **days)
        views["usage"] = await get("/api/desk/usage", **days)
        views["audit"] = await get("/api/desk/audit", limit=_LIMIT, **days)
        views["drafts"] = await get("/api/desk/drafts", **days)
        views["knowledge"] = await _read_knowledge(get)
        views["support desk"] = await _read_support_desk(get)
    return views


async def _read_knowledge(get: Callable[..., Awaitable[Any]]) -> dict[str, Any]:
    """The collections with their documents, proposed articles and questions."""
    found: dict[str, Any] = {}
    for collection in (await get("/api/kb/collections"))["collections"]:
        of = {"collection": collection["id"]}
        documents = (await get("/api/kb/documents", **of))["documents"]
        found[collection["name"]] = {
            "collection": collection,
            "documents": documents,
            "texts": [await get(f"/api/kb/documents/{one['id']}/chunks") for one in documents],
            "articles": await get("/api/kb/articles", **of),
            "questions": await get("/api/kb/questions", **of),
        }
    return found


async def _read_support_desk(get: Callable[..., Awaitable[Any]]) -> dict[str, Any]:
    """The inboxes, all cases with their messages and events, their contacts, the figures, and the webhooks."""
    cases = (await get("/api/cases", limit=100))["cases"]
    webhooks = (await get("/api/webhooks"))["webhooks"]
    return {
        "inboxes": await get("/api/inboxes"),
        "cases": [await get(f"/api/cases/{case['id']}") for case in cases],
        "contacts": [await get(f"/api/contacts/{id}") for id in sorted({case["contact"]["id"] for case in cases})],
        "webhooks": webhooks,
        "deliveries": [await get(f"/api/webhooks/{one['id']}/deliveries") for one in webhooks],
    }


def differences(before: Any, now: Any, where: str = "") -> Iterator[str]:
    """Describes what was recorded and reads differently now. Fields that a later version adds are not reported."""
    if isinstance(before, dict) and isinstance(now, dict):
        for name, value in before.items():
            if name not in now:
                yield f"{where}/{name} is missing"
            else:
                yield from differences(value, now[name], f"{where}/{name}")
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for index, (one, other) in enumerate(zip(before, now, strict=True)):
            yield from differences(one, other, f"{where}/{index}")
    elif before != now:
        yield f"{where} was {before!r} and is {now!r}"


def _without_volatile(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_volatile(one) for name, one in value.items() if name not in _VOLATILE}
    if isinstance(value, list):
        return [_without_volatile(one) for one in value]
    return value
