"""A tool server as a program: ``desk__slow`` writes each of its calls to a file, and never answers.

Started as ``python tool_program.py FILE``.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from mcp.server.mcpserver import MCPServer

server = MCPServer("desk")


def write(line: str) -> None:
    with Path(sys.argv[1]).open("a") as file:
        file.write(f"{line}\n")


@server.tool()
async def slow(order: int) -> str:
    """Looks up an order."""
    write(f"slow {order}")
    await asyncio.sleep(3600)
    return "at last"


if __name__ == "__main__":
    server.run()
