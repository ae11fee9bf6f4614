"""The official Python client of Gradio, at a live server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import orjson
import pytest
from gradio_client import Client
from gradio_client.client import Job


async def connect(url: str, key: str | None = None, **options: Any) -> Client:
    """A client that tells nobody that it is used. Like everything that it does, it blocks."""

    def made() -> Client:
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv("GRADIO_ANALYTICS_ENABLED", "False")
            headers = None if key is None else {"Authorization": f"Bearer {key}"}
            return Client(url, headers=headers, verbose=False, analytics_enabled=False, **options)

    return await asyncio.to_thread(made)


async def next_of(job: Job) -> Any:
    """The job's next output; None at its end."""
    async with asyncio.timeout(60):
        return await asyncio.to_thread(next, job, None)


async def rest_of(job: Job) -> list[Any]:
    async with asyncio.timeout(60):
        return await asyncio.to_thread(list, job)


async def result_of(job: Job) -> Any:
    async with asyncio.timeout(60):
        return await asyncio.to_thread(job.result)


async def predict(client: Client, *args: Any, **kwargs: Any) -> Any:
    async with asyncio.timeout(60):
        return await asyncio.to_thread(client.predict, *args, api_name="/chat", **kwargs)


async def chat_index(http: httpx.AsyncClient, **options: Any) -> int:
    """The ``fn_index`` of /chat."""
    dependencies = (await http.get("/config", **options)).json()["dependencies"]
    return int(next(one["id"] for one in dependencies if one["api_name"] == "chat"))


def call_of(fn_index: int, session: str, message: object = "hello", **fields: Any) -> dict[str, Any]:
    """The body with which the client joins the queue."""
    return {"fn_index": fn_index, "session_hash": session, "data": [message, None, False, None, False], **fields}


async def messages_of(
    http: httpx.AsyncClient, session: str, headers: dict[str, str] | None = None
) -> AsyncGenerator[dict[str, Any]]:
    """What the server says to a session, without its heartbeats. Closing it hangs up."""
    url = f"/gradio_api/queue/data?session_hash={session}"
    async with asyncio.timeout(60), http.stream("GET", url, headers=headers) as response:
        assert response.status_code == 200, response.status_code
        async for line in response.aiter_lines():
            if line.startswith("data:") and (message := orjson.loads(line[5:]))["msg"] != "heartbeat":
                yield message
