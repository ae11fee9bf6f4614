"""The operator's file of MCP servers, ``mcp.json``: the format that Claude Desktop, Cursor and VS Code read."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, field_validator

MAX_FILE_BYTES = 2**20
DEFAULT_TIMEOUT_S = 60.0
"""Seconds that a call of a tool may take."""
_VARIABLE = re.compile(r"\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]*)\}")

SEPARATOR = "__"
"""Stands between a server's name and a tool's. No server's name contains it: so each tool's name has one server."""
_NAME_RULE = "1 to 32 letters, digits, hyphens and single underscores between them"


def _checked_name(name: str) -> str:
    if len(name) > 32 or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9-]*(_[A-Za-z0-9-]+)*", name):
        raise ValueError(f"a server's name has {_NAME_RULE}")
    return name


ServerName = Annotated[str, AfterValidator(_checked_name)]


class McpFileError(ValueError):
    """The file cannot be used; says where and why."""


class _Server(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    tools: tuple[str, ...] | None = Field(None, description="Names of the tools that are offered; default: all.")
    auto_approve: tuple[str, ...] = Field(
        (), alias="autoApprove", description="Names of the tools that are called without asking the user."
    )
    timeout_seconds: float = Field(DEFAULT_TIMEOUT_S, gt=0, le=3600)
    disabled: bool = False


class StdioServer(_Server):
    """A server that is a program on this machine."""

    type: Literal["stdio"] = "stdio"
    command: str = Field(min_length=1)
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = Field(default_factory=dict)
    cwd: Path | None = None


class HttpServer(_Server):
    """A server at an address, which speaks MCP's streamable HTTP."""

    type: Literal["http", "streamable-http", "streamableHttp"] = "http"
    url: str
    headers: Mapping[str, str] = Field(default_factory=dict)

    @field_validator("url")
    @classmethod
    def _is_http(cls, value: str) -> str:
        parts = urlsplit(value)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("must be an address such as https://tools.example.com/mcp")
        return value


McpServer = StdioServer | HttpServer


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    mcpServers: dict[ServerName, dict[str, Any]] = Field(default_factory=dict)


def read_mcp_file(path: Path, environ: Mapping[str, str] = os.environ) -> dict[str, McpServer]:
    """Returns the servers that the file defines and does not disable, by name; none if there is no file.

    ``${NAME}`` in a value is replaced by the environment variable of that name, so that the file needs no secrets.

    Raises:
        McpFileError: the file cannot be read, is not valid, or names a variable that is not set.
    """
    try:
        size = path.stat().st_size
        text = path.read_text(encoding="utf-8") if size <= MAX_FILE_BYTES else ""
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise McpFileError(f"{path} cannot be read: {error}.") from error
    if size > MAX_FILE_BYTES:
        raise McpFileError(f"{path} has {size} bytes; at most {MAX_FILE_BYTES} are read.")
    try:
        servers = _File.model_validate(json.loads(text)).mcpServers
    except (json.JSONDecodeError, RecursionError) as error:
        raise McpFileError(f"{path} is not JSON: {error}.") from error
    except ValidationError as error:
        raise McpFileError(f"{path} is not valid: {_first_error(error, ())}.") from error
    found = {name: _read_server(path, name, stated, environ) for name, stated in servers.items()}
    return {name: server for name, server in found.items() if not server.disabled}


def _read_server(path: Path, name: str, stated: Mapping[str, Any], environ: Mapping[str, str]) -> McpServer:
    where = ("mcpServers", name)
    if stated.get("type") == "sse":
        raise McpFileError(
            f"{path} is not valid: {'.'.join(where)}.type is sse, which MCP has replaced by streamable HTTP. Use the "
            "server's streamable HTTP address."
        )
    kind: type[McpServer] = HttpServer if "url" in stated else StdioServer
    try:
        return kind.model_validate(_expand(stated, environ))
    except KeyError as error:
        raise McpFileError(
            f"{path} is not valid: {'.'.join(where)} uses the environment variable {error.args[0]}, which is not set."
        ) from error
    except ValidationError as error:
        raise McpFileError(f"{path} is not valid: {_first_error(error, where)}.") from error


def _expand(value: Any, environ: Mapping[str, str]) -> Any:
    """Replaces ``${NAME}`` in all strings of a JSON value.

    Raises:
        KeyError: a variable is not set.
    """
    if isinstance(value, str):
        return _VARIABLE.sub(lambda match: environ[match[1]], value)
    if isinstance(value, list):
        return [_expand(one, environ) for one in value]
    if isinstance(value, dict):
        return {key: _expand(one, environ) for key, one in value.items()}
    return value


def _first_error(error: ValidationError, where: tuple[str, ...]) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(str(part) for part in (*where, *first["loc"]) if part != "[key]")
    return f"{place or 'the file'}: {first['msg']}"
