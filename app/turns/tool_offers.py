"""Decides which tools a chat is offered."""

from __future__ import annotations

from app.domain.chat_settings import ChatSettings
from app.templates.catalog import Templates
from app.tools.chat_tools import ChatTools, OfferedTools
from engine import ChatEngine


class ToolOffers:
    """The tools of each chat: of its named prompt, as admins choose them.

    A chat without a named prompt is offered all tools where there are no accounts: the owner of this computer wrote
    mcp.json. With accounts it is offered none.
    """

    def __init__(self, tools: ChatTools, templates: Templates, engine: ChatEngine, *, accounts: bool) -> None:
        self.tools = tools
        self._templates = templates
        self._engine = engine
        self._accounts = accounts

    async def of(self, settings: ChatSettings) -> OfferedTools:
        """Returns the tools that a reply with these settings is offered."""
        is_off = settings.use_tools is False or bool((settings.json_schema or "").strip())
        if is_off or not self.tools.names or not self._engine.info.can_call_tools:
            return OfferedTools()
        return await self.tools.offered(await self._servers(settings))

    async def _servers(self, settings: ChatSettings) -> tuple[str, ...]:
        if settings.system_prompt_name is None or settings.system_prompt.strip():
            return () if self._accounts else self.tools.names
        return await self._templates.tool_servers(settings.system_prompt_name)
