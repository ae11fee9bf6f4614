"""Every field of every route gets values that no storage holds, beside ten replies that must not notice."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.domain.roles import UserRole
from engine import Engine, EngineSettings
from testing.models import make_model
from tests.app.desk import METRICS_TOKEN, PASSWORD, SECRET, sign_in
from tests.app.live_server import serve_app

BYSTANDERS = 10
#: As JSON: numbers that 32, 53, 63, 64 bits and a float do not hold, and what is none. Python writes NaN so, too.
EXTREMES = {
    "2**31": str(2**31),
    "-2**31 - 1": str(-(2**31) - 1),
    "2**53": str(2**53 + 1),
    "2**63": str(2**63),
    "-2**63 - 1": str(-(2**63) - 1),
    "2**64": str(2**64),
    "10**30": str(10**30),
    "10**400": str(10**400),
    "1e400": "1e400",
    "-1": "-1",
    "-1e-300": "-1e-300",
    "5e-324": "5e-324",
    "NaN": "NaN",
    "Infinity": "Infinity",
    "-Infinity": "-Infinity",
    "thousands of digits": "9" * 5000,
    "numbers": "[" + ",".join(["9223372036854775808"] * 20_000) + "]",
    "nested": "[" * 500 + "]" * 500,
    "texts": json.dumps(["x"] * 20_000),
    "a long text": json.dumps("9" * 100_000),
    "a mapping": json.dumps({str(2**64 + number): 2**63 for number in range(2000)}),
}
#: The whole number that ended everybody's replies once, and what is no number.
SHORT = ("2**63", "NaN")
#: They end the caller's session or the engine by design, last until the reader leaves, or ask for another token.
LEFT_OUT = ("sign-out", "/api/engine/sleep", "/api/engine/wake", "/api/engine/swap", "/events", "/metrics", "/ready")
EXPECTED = {"deadline_exceeded"}  #: where the deadline is the extreme
LARGE = 32_768  #: bytes that may still be on their way when a body is refused
_MARK = "\ufffeextreme\ufffe"


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[tuple[Engine, str, dict[str, str]]]:
    """A desk with a real engine: the engine, its address, and the cookies of an attacker and of another user."""
    model = make_model(folder / "llama", eos=False, max_position_embeddings=4096)
    engine = Engine(
        EngineSettings(model=str(model), dtype="float32", max_num_seqs=16, max_batched_tokens=64, max_model_len=4096)
    )
    options: dict[str, Any] = {"accounts": True, "secret_key": SECRET, "metrics_token": METRICS_TOKEN}
    limits: dict[str, Any] = {"messages_per_minute": None, "concurrent_replies": None}
    async with serve_app(folder / "data", engine, gradio=False, **options, **limits) as (url, app, _http):
        cookies = {}
        for name in ("attacker", "victim"):
            await app.state.services.accounts.create(name, None, UserRole.ADMIN, PASSWORD)
            async with httpx.AsyncClient(base_url=url) as http:
                assert (await sign_in(http, name)).status_code == 204
                cookies[name] = http.cookies["deskmate_session"]
        yield engine, url, cookies


def fields(schema: Any, definitions: Any, depth: int = 0) -> Iterator[tuple[str, ...]]:
    """Paths of all fields of a body."""
    for variant in (schema, *schema.get("anyOf", ()), *schema.get("allOf", ())):
        if "$ref" in variant:
            variant = definitions[variant["$ref"].rsplit("/", 1)[-1]]
        for name, inner in variant.get("properties", {}).items():
            yield (name,)
            if depth < 2:
                yield from ((name, *rest) for rest in fields(inner, definitions, depth + 1))


def with_extreme(body: dict[str, Any], path: tuple[str, ...], extreme: str) -> bytes:
    """The body as JSON, with the extreme in the place of one field."""
    changed = json.loads(json.dumps(body))
    inner = changed
    for name in path[:-1]:
        inner[name] = inner[name] if isinstance(inner.get(name), dict) else {}
        inner = inner[name]
    inner[path[-1]] = _MARK
    return json.dumps(changed).replace(json.dumps(_MARK), extreme).encode()


def body_for(path: str, model: str) -> dict[str, Any]:
    """What a route takes, so that only the extreme is out of order."""
    if path == "/v1/responses":
        return {"model": model, "input": "hi", "max_output_tokens": 2}
    if path.startswith("/v1/"):
        asked = {"prompt": [5, 6, 7]} if path.endswith("/completions") and "chat" not in path else {}
        messages = {} if asked else {"messages": [{"role": "user", "content": "hi"}]}
        return (
            {"model": model, "max_tokens": 2, **asked, **messages}
            if "tokenize" not in path
            else {"model": model, **messages}
        )
    if path == "/api/turns":
        return {"text": "hi", "settings": {"max_tokens": 2}}
    return {}


async def bystander(url: str, cookie: str, model: str, number: int, stop: asyncio.Event) -> tuple[int, list[str]]:
    """Asks for the same reply again and again: how often it came, and which replies there were."""
    told: set[str] = set()
    times = 0
    async with httpx.AsyncClient(base_url=url, timeout=120, cookies={"deskmate_session": cookie}) as http:
        while not stop.is_set() or not times:
            body = {"model": model, "prompt": [5, 6, 7 + number], "max_tokens": 40, "temperature": 0}
            answer = await http.post("/v1/completions", json=body)
            assert answer.status_code == 200, answer.text
            told.add(answer.json()["choices"][0]["text"])
            times += 1
    return times, sorted(told)


async def attack(url: str, cookie: str, model: str, extremes: dict[str, str]) -> list[str]:
    """Sends every field of every route every extreme; returns what was answered with an error of the server's."""
    faults: list[str] = []
    # A connection each: the server may close one that was kept just as the next request is sent on it.
    limits = httpx.Limits(max_keepalive_connections=0)
    async with httpx.AsyncClient(
        base_url=url, timeout=120, cookies={"deskmate_session": cookie}, limits=limits
    ) as http:
        schema = (await http.get("/api/openapi.json")).json()
        conversation = await http.post("/api/turns", json={"text": "hi", "settings": {"max_tokens": 2}})
        own = conversation.json()
        definitions = schema["components"]["schemas"]
        cases: list[tuple[str, str, dict[str, Any]]] = []
        for path, operations in schema["paths"].items():
            if any(part in path for part in LEFT_OUT):
                continue
            real = path.replace("{conversation_id}", own["conversation_id"]).replace("{message_id}", own["message_id"])
            for method, operation in operations.items():
                parameters = operation.get("parameters", ())
                filled = real
                for parameter in parameters:
                    filled = filled.replace(f"{{{parameter['name']}}}", "none")
                for name, extreme in extremes.items():
                    label = f"{method} {path} {name}"
                    for parameter in parameters:
                        shown = extreme[:2000]
                        if parameter["in"] == "query":
                            cases.append((label, filled, {"method": method, "params": {parameter["name"]: shown}}))
                        elif parameter["in"] == "path" and method != "delete":
                            part = shown.replace("/", "")[:500]
                            cases.append((label, path.replace(f"{{{parameter['name']}}}", part), {"method": method}))
                    content = operation.get("requestBody", {}).get("content", {})
                    if "application/json" in content:
                        for place in fields(content["application/json"]["schema"], definitions):
                            sent = with_extreme(body_for(path, model), place, extreme)
                            cases.append((f"{label} {'.'.join(place)}", filled, {"method": method, "content": sent}))
        assert len(cases) > 500
        room = asyncio.Semaphore(8)

        async def send(label: str, path: str, options: dict[str, Any]) -> None:
            async with room:
                headers = {"content-type": "application/json", "origin": url}
                try:
                    answer = await http.request(url=path, headers=headers, **options)
                except httpx.InvalidURL:
                    return
                except httpx.NetworkError as error:  # a body that is too large is refused before all of it is read
                    if len(options.get("content", b"")) < LARGE:
                        faults.append(f"{label}: {error!r}")
                    return
                if answer.status_code >= 500 and answer.json()["error"]["code"] not in EXPECTED:
                    faults.append(f"{label}: {answer.status_code} {answer.text[:200]}")

        await asyncio.gather(*(send(*case) for case in cases))
    return faults


async def hold(folder: Path, extremes: dict[str, str]) -> None:
    async with running(folder) as (engine, url, cookies):
        model = engine.info.name
        stop = asyncio.Event()
        stop.set()
        alone = await asyncio.gather(*(bystander(url, cookies["victim"], model, n, stop) for n in range(BYSTANDERS)))
        stop.clear()
        beside = [asyncio.create_task(bystander(url, cookies["victim"], model, n, stop)) for n in range(BYSTANDERS)]
        faults = await attack(url, cookies["attacker"], model, extremes)
        stop.set()
        replies = await asyncio.gather(*beside)
        assert [told for _times, told in replies] == [told for _times, told in alone]
        assert faults == []
        assert engine.status.num_restarts == 0
        assert engine.stats().requests_finished["error"] == 0


@pytest.mark.full
@pytest.mark.slow
async def test_the_worst_values_disturb_nobody(tmp_path: Path) -> None:
    await hold(tmp_path, {name: EXTREMES[name] for name in SHORT})


@pytest.mark.full
@pytest.mark.timeout(1800)
async def test_no_value_of_any_field_disturbs_anybody(tmp_path: Path) -> None:
    await hold(tmp_path, EXTREMES)
