"""Desk API: the tool servers of mcp.json, which admins choose among for each prompt."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import APIRouter

from app.api.deps import ServicesDep

router = APIRouter(prefix="/api/desk/tools", tags=["desk"])


@dataclass(frozen=True, slots=True)
class ToolView:
    """A tool that chats can be offered."""

    name: str
    description: str
    asks: bool  #: the user is asked before it runs


@dataclass(frozen=True, slots=True)
class ToolServerView:
    """A tool server with its tools, or the reason why it has none now."""

    name: str
    tools: tuple[ToolView, ...]
    problem: str | None


@router.get("")
async def list_tool_servers(services: ServicesDep) -> list[ToolServerView]:
    """Lists the tool servers of mcp.json with what they offer."""
    return [
        ToolServerView(
            status.name,
            tuple(
                ToolView(one.tool.name, one.tool.description, not services.tools.is_auto_approved(one))
                for one in status.tools
            ),
            status.problem,
        )
        for status in await services.tools.statuses()
    ]
