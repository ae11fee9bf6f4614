"""``deskmate tool``: shows the tools of the MCP servers in mcp.json, and calls one."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, TypeVar

import typer

from app.cli.flags import read_settings, with_flags
from app.errors import StartupError
from app.settings import AppSettings
from app.tools.servers import OfferedTool, ToolServers

tool = typer.Typer(help="Show and try the tools of mcp.json.", no_args_is_help=True, rich_markup_mode=None)

T = TypeVar("T")


@tool.command("list")
@with_flags(AppSettings)
def list_tools(**flags: str | bool | None) -> None:
    """List the tools that the servers in mcp.json offer. Each server is started or connected to."""
    settings = read_settings(AppSettings, flags)
    statuses = _with_servers(settings, lambda servers: servers.statuses())
    if not statuses:
        typer.echo(f"{settings.mcp_file} defines no servers.")
    for status in statuses:
        typer.echo(f"{status.name}: {status.problem or _count(status.tools)}")
        for offered in status.tools:
            summary = offered.tool.description.strip().partition("\n")[0]
            typer.echo(f"  {offered.name}{'  ' + summary if summary else ''}")
    if any(status.problem for status in statuses):
        sys.exit(2)


@tool.command()
@with_flags(AppSettings)
def call(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A tool as `deskmate tool list` names it.")],
    arguments: Annotated[str, typer.Argument(metavar="JSON", help="The arguments, a JSON object.")] = "{}",
    **flags: str | bool | None,
) -> None:
    """Call a tool and print what a model would be told."""
    result = _with_servers(read_settings(AppSettings, flags), lambda servers: servers.call(name, arguments))
    typer.echo(result.text)
    if result.is_error:
        sys.exit(1)


def _with_servers(settings: AppSettings, act: Callable[[ToolServers], Awaitable[T]]) -> T:
    """Runs ``act`` with the servers of mcp.json, and closes them.

    Raises:
        StartupError: the file is not valid, or a server cannot be used.
    """
    from app.egress.policy import EgressPolicy
    from app.tools.connection import ToolServerError
    from app.tools.mcp_file import McpFileError, read_mcp_file

    async def run() -> T:
        servers = ToolServers(read_mcp_file(settings.mcp_file), EgressPolicy.allowing(settings.egress_allow))
        try:
            return await act(servers)
        finally:
            await servers.close()

    try:
        return asyncio.run(run())
    except (McpFileError, ToolServerError) as error:
        raise StartupError(str(error)) from error


def _count(tools: Sequence[OfferedTool]) -> str:
    return "1 tool" if len(tools) == 1 else f"{len(tools)} tools"
