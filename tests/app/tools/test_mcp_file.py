"""The operator's file of MCP servers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.tools.mcp_file import MAX_FILE_BYTES, HttpServer, McpFileError, StdioServer, read_mcp_file


def write(folder: Path, servers: Any) -> Path:
    path = folder / "mcp.json"
    path.write_text(json.dumps({"mcpServers": servers}))
    return path


def test_no_file_defines_no_servers(tmp_path: Path) -> None:
    assert read_mcp_file(tmp_path / "mcp.json") == {}


def test_programs_and_addresses_are_read_with_variables_in_place(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        {
            "orders": {"command": "orders-mcp", "args": ["--db", "${ORDERS}"], "env": {"KEY": "${env:KEY}"}},
            "search": {"url": "https://tools.example/mcp", "headers": {"Authorization": "Bearer ${KEY}"}},
            "old": {"command": "x", "disabled": True},
        },
    )
    servers = read_mcp_file(path, {"ORDERS": "a.db", "KEY": "k"})
    assert servers == {
        "orders": StdioServer(command="orders-mcp", args=("--db", "a.db"), env={"KEY": "k"}),
        "search": HttpServer(url="https://tools.example/mcp", headers={"Authorization": "Bearer k"}),
    }


@pytest.mark.parametrize(
    ("servers", "said"),
    [
        ({"a": {"command": "x", "args": ["${NOT_SET}"]}}, r"mcpServers.a .*NOT_SET, which is not set"),
        ({"a": {"url": "ftp://x"}}, r"mcpServers\.a\.url: .*address"),
        ({"a": {"type": "sse", "url": "http://x"}}, "streamable HTTP"),
        ({"a": {"command": ""}}, r"mcpServers\.a\.command"),
        ({"a": {}}, r"mcpServers\.a\.command: Field required"),
        ({"a": {"command": "x", "alwaysAllow": ["y"]}}, r"mcpServers\.a\.alwaysAllow"),
        ({"a b": {"command": "x"}}, r"mcpServers\.a b"),
        # With a server named a, a tool's name could be that of both.
        ({"a__b": {"command": "x"}}, r"mcpServers\.a__b: .*single underscores"),
        ({"a_": {"command": "x"}}, r"mcpServers\.a_: .*single underscores"),
        ({"a" * 33: {"command": "x"}}, "1 to 32 letters"),
        ({"a": {"command": "x", "timeout_seconds": 0}}, r"mcpServers\.a\.timeout_seconds"),
        ([], "mcpServers"),
    ],
)
def test_a_wrong_server_is_refused_with_its_place(tmp_path: Path, servers: Any, said: str) -> None:
    with pytest.raises(McpFileError, match=said):
        read_mcp_file(write(tmp_path, servers), {})


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "[]", '{"servers": {}}', "\udcff"])
def test_a_file_that_is_no_such_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mcp.json"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(McpFileError, match="mcp"):
        read_mcp_file(path)


def test_a_huge_file_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_bytes(b" " * (MAX_FILE_BYTES + 1))
    with pytest.raises(McpFileError, match="at most"):
        read_mcp_file(path)
