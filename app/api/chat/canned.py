"""Chat API: canned replies for the message box, and system prompts, with their variables filled in."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import APIRouter
from pydantic import Field

from app.api.deps import ServicesDep
from app.api.request_model import RequestModel
from app.domain.templates import MAX_VARIABLES, TemplateKind, Variable

router = APIRouter(prefix="/api", tags=["canned replies"])


class Values(RequestModel):
    """Values of a template's variables."""

    values: dict[str, str] = Field(
        {}, max_length=MAX_VARIABLES, description="By variable; omitted ones get their defaults."
    )


@dataclass(frozen=True, slots=True)
class CannedReply:
    """A canned reply to choose from."""

    name: str
    title: str
    description: str
    variables: tuple[Variable, ...]
    body: str


@dataclass(frozen=True, slots=True)
class RenderedText:
    text: str


@router.get("/canned")
async def list_canned_replies(services: ServicesDep) -> list[CannedReply]:
    """Lists the canned replies, sorted by title."""
    return [
        CannedReply(
            stored.name,
            stored.template.title,
            stored.template.description,
            stored.template.variables,
            stored.template.body,
        )
        for stored in await services.templates.all(TemplateKind.CANNED)
    ]


@router.post("/canned/{name}/fill")
async def fill_canned_reply(name: str, filled: Values, services: ServicesDep) -> RenderedText:
    """Renders a canned reply with its variables filled in."""
    return RenderedText(await services.templates.render(TemplateKind.CANNED, name, filled.values))


@router.post("/prompts/{name}/fill")
async def fill_prompt(name: str, filled: Values, services: ServicesDep) -> RenderedText:
    """Renders a system prompt with its variables filled in, as the model gets it."""
    return RenderedText(await services.templates.render(TemplateKind.PROMPT, name, filled.values))
