"""Against a real provider, npm's oidc-provider: its forms are filled in as a browser would, without one."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urljoin, urlsplit

import httpx
import pytest

from app.domain.roles import UserRole
from tests.app.desk import Desk, desk

HERE = Path(__file__).parent
NODE = HERE.parents[2] / ".venv" / "bin" / "node"
SECRET = "a secret / of this test+"


@asynccontextmanager
async def real_provider(port: int, origin: str, groups: Path) -> AsyncIterator[None]:
    command = [str(NODE), str(HERE / "oidc_provider.mjs"), str(port), "deskmate", SECRET, origin, str(groups)]
    with start(command) as process:
        try:
            assert process.stdout is not None
            while (line := await asyncio.to_thread(process.stdout.readline)).strip() != "ready":
                assert line, "the provider did not start"
            yield
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def start(command: list[str]) -> subprocess.Popen[str]:
    """In a group of its own, since the command is a script of Python that starts Node."""
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
    )


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


async def follow(http: httpx.AsyncClient, answer: httpx.Response, until: str) -> httpx.Response:
    """Follows redirects to the first answer that is none, or to an address that begins with ``until``."""
    while answer.is_redirect:
        address = urljoin(str(answer.url), answer.headers["location"])
        if address.startswith(until):
            return answer
        answer = await http.get(address)
    return answer


async def submit(http: httpx.AsyncClient, page: httpx.Response, **fields: str) -> httpx.Response:
    """Submits the form of a page."""
    form = re.search(r'<form[^>]* action="([^"]+)"', page.text)
    assert form is not None, page.text
    hidden = dict(re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)"', page.text))
    return await http.post(urljoin(str(page.url), form[1]), data={**hidden, **fields})


async def sign_in_there(http: httpx.AsyncClient, here: Desk, login: str) -> httpx.Response:
    """From the button to where it leads; signs in at the provider and consents."""
    callback = f"{here.live.url}/api/account/oidc/callback"
    answer = await follow(http, await http.get("/api/account/oidc/start"), callback)
    while not answer.is_redirect:
        fields = {"login": login, "password": "any"} if 'name="login"' in answer.text else {}
        answer = await follow(http, await submit(http, answer, **fields), callback)
    return await http.get(answer.headers["location"])


@pytest.mark.slow
async def test_signing_in_and_out_at_a_real_provider(tmp_path: Path) -> None:
    port, groups = free_port(), tmp_path / "groups.json"
    groups.write_text(json.dumps({"eve": ["staff"], "ada": ["staff"]}))
    settings = {
        "oidc_issuer": f"http://127.0.0.1:{port}",
        "oidc_client_id": "deskmate",
        "oidc_client_secret": SECRET,
        "oidc_roles": "chiefs=admin, staff=agent",
    }
    async with desk(tmp_path, gradio=False, **settings) as here:
        ada = await here.add("ada", UserRole.ADMIN)
        async with here.client() as http:
            assert "problem=unavailable" in (await http.get("/api/account/oidc/start")).headers["location"]
        async with real_provider(port, here.live.url, groups):
            async with here.client() as http:
                answer = await sign_in_there(http, here, "eve")
                assert (answer.status_code, answer.headers["location"]) == (303, "/")
                me = (await http.get("/api/account")).json()
                assert (me["name"], me["role"]) == ("eve", "agent")
                out = (await http.post("/api/account/sign-out", json={})).json()["sign_out_at"]
                page = await http.get(out)
                answer = await follow(http, await submit(http, page, logout="yes"), f"{here.live.url}/sign-in")
                assert answer.headers["location"] == f"{here.live.url}/sign-in"
                assert (await http.get("/api/account")).status_code == 401
                # Signed out there, too: the provider asks again.
                asked = await follow(http, await http.get("/api/account/oidc/start"), here.live.url)
                assert 'name="login"' in asked.text
            async with here.client() as http:
                groups.write_text(json.dumps({"eve": ["chiefs"], "ada": ["staff"]}))
                await sign_in_there(http, here, "eve")
                again = (await http.get("/api/account")).json()
                assert (again["id"], again["role"]) == (me["id"], "admin")
            async with here.client() as http:
                answer = await sign_in_there(http, here, "mal")
                assert answer.headers["location"] == "/sign-in?problem=no_role"
            async with here.client() as http:
                answer = await sign_in_there(http, here, "ada")
                assert urlsplit(answer.headers["location"]).query == "problem=name_taken"
        assert (await ada.get("/api/account")).json()["role"] == "admin"
