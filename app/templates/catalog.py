"""The desk's templates: those that came as files, as admins have changed them since."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from typing import TypeVar

from app.domain.templates import NAME_PATTERN, Template, TemplateKind
from app.errors import InvalidInput, NotFound
from app.store.desk.template_versions import StoredTemplate, TemplateVersions
from app.templates.files import Files

Result = TypeVar("Result")

MAX_NAME_CHARS = 64
MAX_TRY_SECONDS = 5.0
_NAME = re.compile(NAME_PATTERN)


class Templates:
    """Prompts and canned replies by name. A file is version 0; what is in the database comes after it.

    Asked of the database each time: another process on it may have changed them.
    """

    def __init__(self, files: Files, versions: TemplateVersions) -> None:
        self._files = files
        self._versions = versions
        self._one_at_a_time = asyncio.Semaphore(1)  # checks and trials: several would only slow each other down

    async def all(self, kind: TemplateKind, *, removed: bool = False) -> list[StoredTemplate]:
        """What is in use, sorted by title. ``removed``: what is not offered any more too."""
        found = {name: _of_file(name, template) for name, template in self._files[kind].items()}
        found |= {stored.name: stored for stored in await self._versions.current(kind)}
        wanted = [stored for stored in found.values() if removed or not stored.removed]
        return sorted(wanted, key=lambda stored: (stored.template.title.casefold(), stored.name))

    async def render(self, kind: TemplateKind, name: str, given: Mapping[str, str] | None = None) -> str:
        """The text of one with its variables filled in.

        Raises:
            InvalidInput: there is none of this name, or a variable that it needs was not given.
        """
        stored = await self._current(kind, name)
        if stored is None or stored.removed:
            known = ", ".join(each.name for each in await self.all(kind)) or "none"
            raise InvalidInput(f"There is no {kind.noun} '{name}'. There are: {known}.")
        return await asyncio.to_thread(stored.template.render, given)

    async def try_out(self, kind: TemplateKind, template: Template, given: Mapping[str, str] | None = None) -> str:
        """The text of a template that is written nowhere yet, with its variables filled in.

        Raises:
            InvalidInput: it cannot be used, a variable that it needs was not given, or it takes too long.
        """
        return await self._within_seconds(lambda: template.checked(kind).render(given))

    async def history(self, kind: TemplateKind, name: str) -> list[StoredTemplate]:
        """Every version of one, the latest first, the file last.

        Raises:
            NotFound: there never was one of this name.
        """
        versions = await self._versions.history(kind, name)
        if name in self._files[kind]:
            versions.append(_of_file(name, self._files[kind][name]))
        if not versions:
            raise NotFound(f"There is no {kind.noun} of this name.")
        return versions

    async def write(self, author_id: str, kind: TemplateKind, name: str, template: Template, *, after: int) -> int:
        """Write a new version, or the first one of a new template; returns its number.

        Args:
            after: the version that it was made from, 0 for a file or a new one.

        Raises:
            InvalidInput: the name or the template cannot be used.
            Conflict: it is not the latest version any more.
        """
        if len(name) > MAX_NAME_CHARS or not _NAME.fullmatch(name):
            raise InvalidInput(
                f"A name has small letters, digits and hyphens between them, as in support-desk, and at most "
                f"{MAX_NAME_CHARS} characters."
            )
        checked = await self._within_seconds(lambda: template.checked(kind))
        return await self._versions.add(author_id, kind, name, checked, after=after)

    async def restore(self, author_id: str, kind: TemplateKind, name: str, version: int, *, after: int) -> int:
        """Make an earlier version the latest one, as a new one; returns its number.

        Raises:
            NotFound: there is no such version.
            Conflict: ``after`` is not the latest version any more.
        """
        earlier = next((each for each in await self.history(kind, name) if each.version == version), None)
        if earlier is None:
            raise NotFound(f"There is no version {version} of this {kind.noun}.")
        return await self._versions.add(author_id, kind, name, earlier.template, after=after, restored=version)

    async def remove(self, author_id: str, kind: TemplateKind, name: str, *, after: int) -> None:
        """Offer it no more. Its versions stay, and any of them can be restored.

        Raises:
            NotFound: there is none of this name, or it is removed already.
            Conflict: ``after`` is not the latest version any more.
        """
        stored = await self._current(kind, name)
        if stored is None or stored.removed:
            raise NotFound(f"There is no {kind.noun} of this name.")
        await self._versions.add(author_id, kind, name, stored.template, after=after, removed=True)

    async def _within_seconds(self, work: Callable[[], Result]) -> Result:
        """Compile and render outside the event loop. A thread that takes too long is left to its end, which is near."""
        async with self._one_at_a_time:
            try:
                return await asyncio.wait_for(asyncio.to_thread(work), MAX_TRY_SECONDS)
            except TimeoutError:
                raise InvalidInput(
                    f"This text took longer than {MAX_TRY_SECONDS:g} seconds to fill in. Write it with fewer "
                    "conditions and filters."
                ) from None

    async def _current(self, kind: TemplateKind, name: str) -> StoredTemplate | None:
        file = self._files[kind].get(name)
        written = await self._versions.current(kind, name)
        return written[0] if written else _of_file(name, file) if file else None


def _of_file(name: str, template: Template) -> StoredTemplate:
    return StoredTemplate(name=name, version=0, template=template)
