"""Desk API: prompts and canned replies with their versions. The file is version 0; each edit adds a version."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Path
from pydantic import Field

from app.api.deps import ServicesDep, UserId
from app.api.request_model import RequestModel
from app.domain.templates import MAX_VARIABLES, Template, TemplateKind
from app.store.desk.template_versions import StoredTemplate
from app.templates.catalog import MAX_NAME_CHARS

router = APIRouter(prefix="/api/desk/templates/{kind}", tags=["desk"])

Name = Annotated[str, Path(max_length=MAX_NAME_CHARS, description="For example support-desk.")]


class NewVersion(RequestModel):
    """A new version of a template."""

    after: int = Field(ge=0, description="The version that was edited; 0 for the file, or for a new template.")
    template: Template


class RestoreTemplate(RequestModel):
    """A version to restore."""

    after: int = Field(ge=0, description="The current version, as the client knows it.")
    version: int = Field(ge=0, description="The version to restore.")


class RemoveTemplate(RequestModel):
    """A template to remove."""

    after: int = Field(ge=0, description="The current version, as the client knows it.")


class PreviewTemplate(RequestModel):
    """An unsaved template, and values for its variables."""

    template: Template
    values: dict[str, str] = Field(
        {}, max_length=MAX_VARIABLES, description="By variable; omitted ones get their defaults."
    )


@dataclass(frozen=True, slots=True)
class TemplateView:
    """One version of a template."""

    name: str
    version: int  #: 0 is the file
    removed: bool
    author: str | None
    created_at: datetime | None
    template: Template


@dataclass(frozen=True, slots=True)
class VersionRef:
    version: int


@dataclass(frozen=True, slots=True)
class RenderedTemplate:
    text: str


@router.get("")
async def list_templates(kind: TemplateKind, services: ServicesDep) -> list[TemplateView]:
    """Lists the current versions of the prompts or canned replies; removed ones are marked."""
    return [_view(stored) for stored in await services.templates.all(kind, removed=True)]


@router.get("/{name}/versions")
async def list_versions(kind: TemplateKind, name: Name, services: ServicesDep) -> list[TemplateView]:
    """Lists every version of a template, latest first."""
    return [_view(stored) for stored in await services.templates.history(kind, name)]


@router.put("/{name}")
async def write_template(
    kind: TemplateKind, name: Name, new: NewVersion, user_id: UserId, services: ServicesDep
) -> VersionRef:
    """Saves a new version, or a new template. Conversations use it from their next message on."""
    version = await services.templates.write(user_id, kind, name, new.template, after=new.after)
    return VersionRef(version)


@router.post("/{name}/restore")
async def restore_version(
    kind: TemplateKind, name: Name, wanted: RestoreTemplate, user_id: UserId, services: ServicesDep
) -> VersionRef:
    """Restores an earlier version as the latest one."""
    version = await services.templates.restore(user_id, kind, name, wanted.version, after=wanted.after)
    return VersionRef(version)


@router.post("/{name}/remove", status_code=204)
async def remove_template(
    kind: TemplateKind, name: Name, removed: RemoveTemplate, user_id: UserId, services: ServicesDep
) -> None:
    """Removes a template. Its versions stay, and each can be restored."""
    await services.templates.remove(user_id, kind, name, after=removed.after)


@router.post("/{name}/try")
async def try_template(
    kind: TemplateKind,
    name: Name,  # noqa: ARG001 - part of the path
    tried: PreviewTemplate,
    services: ServicesDep,
) -> RenderedTemplate:
    """Renders a template before it is saved."""
    return RenderedTemplate(await services.templates.try_out(kind, tried.template, tried.values))


def _view(stored: StoredTemplate) -> TemplateView:
    return TemplateView(
        name=stored.name,
        version=stored.version,
        removed=stored.removed,
        author=stored.author,
        created_at=stored.created_at,
        template=stored.template,
    )
