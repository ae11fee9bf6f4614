"""The desk's templates: files, overridden by versions that admins have written."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Hashable, Mapping
from typing import TypeVar

from app.domain.templates import MAX_BODY_CHARS, NAME_PATTERN, Template, TemplateKind
from app.errors import InvalidInput, NotFound
from app.store.desk.template_versions import StoredTemplate, TemplateVersions
from app.templates.files import Files

Result = TypeVar("Result")

MAX_NAME_CHARS = 64
MAX_TRY_SECONDS = 5.0
MAX_RENDERED = 128
"""Number of texts without values that are cached. Beyond it the oldest is evicted."""
_NAME = re.compile(NAME_PATTERN)


class Templates:
    """Prompts and canned replies by name. A file is version 0; versions in the database override it.

    Reads the database each time: another process may have changed it.
    """

    def __init__(self, files: Files, versions: TemplateVersions) -> None:
        self._files = files
        self._versions = versions
        self._rendered: dict[Hashable, str] = {}  # texts without values, by the body and the variables
        self._one_at_a_time = asyncio.Semaphore(1)  # for checks and previews

    async def all(self, kind: TemplateKind, *, removed: bool = False) -> list[StoredTemplate]:
        """Templates in use, sorted by title. ``removed``: include those no longer offered."""
        found = {name: _of_file(name, template) for name, template in self._files[kind].items()}
        found |= {stored.name: stored for stored in await self._versions.current(kind)}
        wanted = [stored for stored in found.values() if removed or not stored.removed]
        return sorted(wanted, key=lambda stored: (stored.template.title.casefold(), stored.name))

    async def render(self, kind: TemplateKind, name: str, given: Mapping[str, str] | None = None) -> str:
        """Renders a template by name.

        Raises:
            InvalidInput: there is no such template, or a required variable has no value.
        """
        stored = await self._current(kind, name)
        if stored is None or stored.removed:
            known = ", ".join(each.name for each in await self.all(kind)) or "none"
            raise InvalidInput(f"There is no {kind.noun} '{name}'. There are: {known}.")
        if given:
            return await asyncio.to_thread(stored.template.render, given)
        return await self._render_defaults(stored.template)

    async def _render_defaults(self, template: Template) -> str:
        """Renders a template without values, as most prompts are: the text is the same each time."""
        key = template.body, tuple((variable.name, variable.default) for variable in template.variables)
        text = self._rendered.get(key)
        if text is None:
            text = await asyncio.to_thread(template.render)
            if len(text) <= MAX_BODY_CHARS:
                self._rendered[key] = text
                if len(self._rendered) > MAX_RENDERED:
                    del self._rendered[next(iter(self._rendered))]
        return text

    async def prompt(self, name: str) -> Template | None:
        """A system prompt in use; None if there is no such prompt."""
        stored = await self._current(TemplateKind.PROMPT, name)
        return None if stored is None or stored.removed else stored.template

    async def tool_servers(self, name: str) -> tuple[str, ...]:
        """The tool servers of a system prompt; none if there is no such prompt."""
        template = await self.prompt(name)
        return () if template is None else template.tools

    async def try_out(self, kind: TemplateKind, template: Template, given: Mapping[str, str] | None = None) -> str:
        """Renders a template that is not saved yet.

        Raises:
            InvalidInput: it is not valid, a required variable has no value, or it takes too long.
        """
        return await self._within_seconds(lambda: template.checked(kind).render(given))

    async def history(self, kind: TemplateKind, name: str) -> list[StoredTemplate]:
        """All versions of a template, latest first, the file last.

        Raises:
            NotFound: there never was a template with this name.
        """
        versions = await self._versions.history(kind, name)
        if name in self._files[kind]:
            versions.append(_of_file(name, self._files[kind][name]))
        if not versions:
            raise NotFound(f"There is no {kind.noun} of this name.")
        return versions

    async def write(self, author_id: str, kind: TemplateKind, name: str, template: Template, *, after: int) -> int:
        """Writes a new version, or the first version of a new template; returns its number.

        Args:
            after: the version that was edited; 0 for a file or a new template.

        Raises:
            InvalidInput: the name or the template is not valid.
            Conflict: ``after`` is no longer the latest version.
        """
        if len(name) > MAX_NAME_CHARS or not _NAME.fullmatch(name):
            raise InvalidInput(
                f"A name has lower-case letters, digits and single hyphens, as in support-desk, and at most "
                f"{MAX_NAME_CHARS} characters."
            )
        checked = await self._within_seconds(lambda: template.checked(kind))
        return await self._versions.add(author_id, kind, name, checked, after=after)

    async def restore(self, author_id: str, kind: TemplateKind, name: str, version: int, *, after: int) -> int:
        """Writes an earlier version again as the latest one; returns the new number.

        Raises:
            NotFound: there is no such version.
            Conflict: ``after`` is no longer the latest version.
        """
        earlier = next((each for each in await self.history(kind, name) if each.version == version), None)
        if earlier is None:
            raise NotFound(f"There is no version {version} of this {kind.noun}.")
        return await self._versions.add(author_id, kind, name, earlier.template, after=after, restored=version)

    async def remove(self, author_id: str, kind: TemplateKind, name: str, *, after: int) -> None:
        """Stops offering a template. Its versions stay, and any of them can be restored.

        Raises:
            NotFound: there is no such template, or it is removed already.
            Conflict: ``after`` is no longer the latest version.
        """
        stored = await self._current(kind, name)
        if stored is None or stored.removed:
            raise NotFound(f"There is no {kind.noun} of this name.")
        await self._versions.add(author_id, kind, name, stored.template, after=after, removed=True)

    async def _within_seconds(self, work: Callable[[], Result]) -> Result:
        """Runs ``work`` outside the event loop. A thread that exceeds the limit runs to its end, which is near."""
        async with self._one_at_a_time:
            try:
                async with asyncio.timeout(MAX_TRY_SECONDS):
                    return await asyncio.to_thread(work)
            except TimeoutError:
                raise InvalidInput(
                    f"This text took longer than {MAX_TRY_SECONDS:g} seconds to fill in. Write it with fewer "
                    "conditions and filters."
                ) from None

    async def _current(self, kind: TemplateKind, name: str) -> StoredTemplate | None:
        file = self._files[kind].get(name)
        written = await self._versions.last(kind, name)
        return written or (_of_file(name, file) if file else None)


def _of_file(name: str, template: Template) -> StoredTemplate:
    return StoredTemplate(name=name, version=0, template=template)
