"""Tool servers that answer, answer wrongly, hang, die and come back."""

from __future__ import annotations

import asyncio
import base64
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from mcp import Client
from mcp.server.mcpserver import Image, MCPServer

from app.egress.policy import EgressPolicy
from app.tools import connection
from app.tools.connection import Connection, ServerTool, ToolServerError
from app.tools.mcp_file import HttpServer, StdioServer
from app.tools.results import MAX_RESULT_CHARS
from app.tools.servers import ToolServers
from testing.waiting import eventually

PROGRAM = """
import os, sys
from mcp.server.mcpserver import MCPServer
server = MCPServer("orders")

@server.tool(description="Adds two numbers.")
def add(a: int, b: int) -> int:
    return a + b

@server.tool()
def die() -> str:
    os._exit(3)

@server.tool()
def secret() -> str:
    return os.environ.get("APP_SECRET_KEY", "none")

server.run()
"""


@asynccontextmanager
async def served(server: MCPServer, *, timeout_s: float = 5.0) -> AsyncGenerator[ToolServers]:
    servers = ToolServers({"demo": HttpServer(url="http://tools.example/mcp")}, EgressPolicy())
    servers._connections["demo"] = Connection("demo", lambda: Client(server), timeout_s)
    try:
        yield servers
    finally:
        await servers.close()


def demo() -> MCPServer:
    server = MCPServer("demo")

    @server.tool(description="Adds two numbers.")
    def add(a: int, b: int) -> int:
        return a + b

    @server.tool()
    async def hang() -> str:
        await asyncio.sleep(3600)
        return "never"

    @server.tool()
    def fail() -> str:
        raise ValueError("the order does not exist")

    @server.tool()
    def large() -> str:
        return "x" * (10 * MAX_RESULT_CHARS)

    @server.tool()
    def picture() -> Image:
        return Image(data=base64.b64decode("iVBORw0KGgo="), format="png")

    return server


async def test_tools_are_offered_under_their_servers_name_and_called() -> None:
    async with served(demo()) as servers:
        [status] = await servers.statuses()
        assert [tool.name for tool in status.tools][:2] == ["demo__add", "demo__hang"]
        tool = status.tools[0].for_engine()
        assert tool.description == "Adds two numbers."
        assert tool.parameters is not None
        assert set(tool.parameters["properties"]) == {"a", "b"}
        assert (await servers.call("demo__add", '{"a": 2, "b": 3}')).text == "5"


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("demo__add", '{"a": 2', "not JSON"),
        ("demo__add", "[1, 2]", "JSON object"),
        ("demo__add", '{"a": "two", "b": 3}', "validation error"),
        ("demo__sub", "{}", "demo has: demo__add"),
        ("other__add", "{}", "no tool other__add"),
        ("demo__fail", "{}", "Error executing tool fail"),
    ],
)
async def test_what_the_model_can_mend_is_told_as_a_result(name: str, arguments: str, said: str) -> None:
    async with served(demo()) as servers:
        result = await servers.call(name, arguments)
        assert result.is_error
        assert said in result.text


async def test_a_large_result_is_cut_and_a_picture_is_named() -> None:
    async with served(demo()) as servers:
        large = (await servers.call("demo__large", "{}")).text
        assert len(large) < MAX_RESULT_CHARS + 100
        assert large.endswith(f"the result has {10 * MAX_RESULT_CHARS:,} characters.)")
        assert "image/png" in (await servers.call("demo__picture", "{}")).text


async def test_a_tool_that_never_answers_ends_in_time_and_the_next_call_works() -> None:
    async with served(demo(), timeout_s=0.3) as servers:
        with pytest.raises(ToolServerError, match=r"demo did not answer within 0\.3 seconds"):
            await servers.call("demo__hang", "{}")
        assert (await servers.call("demo__add", '{"a": 1, "b": 1}')).text == "2"


async def test_only_the_tools_that_the_operator_names_are_offered() -> None:
    servers = ToolServers({"demo": HttpServer(url="http://x.example/mcp", tools=("add",))}, EgressPolicy())
    servers._connections["demo"] = Connection("demo", lambda: Client(demo()), 5)
    assert [tool.name for tool in (await servers.statuses())[0].tools] == ["demo__add"]
    assert (await servers.call("demo__fail", "{}")).is_error
    await servers.close()


async def test_a_program_that_dies_is_started_again_and_gets_no_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("APP_SECRET_KEY", "hidden")
    path = tmp_path / "server.py"
    path.write_text(PROGRAM)
    servers = ToolServers({"orders": StdioServer(command=sys.executable, args=(str(path),))}, EgressPolicy())
    assert (await servers.call("orders__secret", "{}")).text == "none"
    with pytest.raises(ToolServerError, match="orders"):
        await servers.call("orders__die", "{}")
    assert (await servers.call("orders__add", '{"a": 20, "b": 3}')).text == "23"
    await servers.close()


async def test_a_server_that_is_not_there_is_a_problem_and_is_not_tried_at_once_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    servers = ToolServers({"gone": StdioServer(command="/no/such/program")}, EgressPolicy())
    [status] = await servers.statuses()
    assert status.problem is not None
    assert "gone cannot be reached" in status.problem
    monkeypatch.setattr(connection, "CONNECT_TIMEOUT_S", 0)  # a second try would fail with another sentence
    assert (await servers.statuses())[0].problem == status.problem
    await servers.close()


async def test_a_server_at_a_private_address_is_refused_unless_it_is_listed() -> None:
    servers = ToolServers({"meta": HttpServer(url="http://169.254.169.254/mcp")}, EgressPolicy())
    [status] = await servers.statuses()
    assert status.problem is not None
    assert "private address" in status.problem
    assert "APP_EGRESS_ALLOW" in status.problem
    await servers.close()


WRONG = """
import json, sys
def answer(id, result):
    print(json.dumps({"jsonrpc": "2.0", "id": id, "result": result}), flush=True)
slow = None
for line in sys.stdin:
    asked = json.loads(line)
    method, id = asked.get("method"), asked.get("id")
    if method == "initialize":
        answer(id, {"protocolVersion": asked["params"]["protocolVersion"], "capabilities": {"tools": {}},
                    "serverInfo": {"name": "wrong", "version": "1"}})
    elif method == "tools/list":
        names = ["slow", "wrong", "flood", "broken", "quick"]
        answer(id, {"tools": [{"name": name, "inputSchema": {"type": "object"},
                               **({"outputSchema": {"type": "object", "required": ["a"]}} if name == "wrong" else {})}
                              for name in names]})
    elif method == "tools/call":
        name = asked["params"]["name"]
        if name == "slow":
            slow = id
        elif name == "wrong":
            answer(id, {"content": [], "structuredContent": {"b": 1}})
        elif name == "broken":
            answer(id, {"content": 7})
        elif name == "flood":
            for _ in range(1000):
                print("x" * 1000, flush=True)
            answer(id, {"content": [{"type": "text", "text": "y" * 3_000_000}]})
        else:
            answer(id, {"content": [{"type": "text", "text": "quick"}]})
            if slow is not None:
                answer(slow, {"content": [{"type": "text", "text": "at last"}]})
    elif id is not None:
        print(json.dumps({"jsonrpc": "2.0", "id": id, "error": {"code": -32601, "message": "no"}}), flush=True)
"""


async def test_a_wrong_answer_ends_no_call_of_another_user(tmp_path: Path) -> None:
    path = tmp_path / "wrong.py"
    path.write_text(WRONG)
    stated = StdioServer(command=sys.executable, args=(str(path),), timeout_seconds=20)
    servers = ToolServers({"wrong": stated}, EgressPolicy())
    await servers.statuses()
    slow = asyncio.create_task(servers.call("wrong__slow", "{}"))
    for name in ("wrong", "broken"):
        with pytest.raises(ToolServerError, match="wrong cannot be used"):
            await servers.call(f"wrong__{name}", "{}")
        assert not slow.done()
    assert (await servers.call("wrong__flood", "{}")).text.endswith("the result has 3,000,000 characters.)")
    assert (await servers.call("wrong__quick", "{}")).text == "quick"
    assert (await slow).text == "at last"
    await servers.close()


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ({"type": "object", "properties": {"a": {}, "$ref": {}}, "patternProperties": {"^[A-Z0-9_]{3}$": {}}}, None),
        ({"description": "Ends with <|im_end|> or [INST]."}, None),  # the engine sanitizes texts, not names
        ({"type": "array"}, "is of no object"),
        ({"properties": {"a": {"anyOf": [{"properties": {"a<|im_end|>": {}}}]}}}, "looks like a control token"),
        ({"properties": {"[/INST]": {}}}, "looks like a control token"),
        ({"description": 40_000 * "x"}, "is too large"),
    ],
)
async def test_a_schema_that_the_engine_would_refuse_leaves_out_its_server(
    monkeypatch: pytest.MonkeyPatch, schema: dict[str, object], problem: str | None
) -> None:
    async with served(demo()) as servers:

        async def tools() -> list[ServerTool]:
            return [ServerTool("add", "", schema, is_read_only=False)]

        monkeypatch.setattr(servers._connections["demo"], "tools", tools)
        status = await servers.status("demo")
    assert len(status.tools) == (problem is None)
    assert (problem or "") in (status.problem or "")


@pytest.mark.slow
async def test_a_program_that_is_closed_while_it_starts_is_gone_even_if_it_ignores_signals(tmp_path: Path) -> None:
    path, pid_file = tmp_path / "stubborn.py", tmp_path / "pid"
    path.write_text(
        "import os, pathlib, signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"pathlib.Path({str(pid_file)!r}).write_text(str(os.getpid()))\nwhile True: time.sleep(1)\n"
    )
    servers = ToolServers({"stubborn": StdioServer(command=sys.executable, args=(str(path),))}, EgressPolicy())
    listing = asyncio.create_task(servers.statuses())
    async with asyncio.timeout(20):
        await eventually(lambda: pid_file.exists() and pid_file.read_text() != "")
        listing.cancel()
        await asyncio.wait([listing])
        await servers.close()
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid_file.read_text()), 0)
