"""``/api/engine/adapters``: who may load an adapter from which folder, and what goes wrong on the way."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from app.domain.roles import UserRole
from engine import EngineBusyError, EngineError, EngineStoppedError, InvalidRequestError, ModelLoadError
from tests.app.api.test_desk_api import days
from tests.app.desk import Desk, desk
from tests.app.live_server import RunningApp, live_server, reset_engine

pytestmark = pytest.mark.asyncio(loop_scope="module")

ADDRESS = "/api/engine/adapters"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def opened(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Desk]:
    async with desk(tmp_path_factory.mktemp("data"), gradio=False) as running:
        for name, role in (("ada", UserRole.ADMIN), ("ben", UserRole.AGENT), ("cyd", UserRole.VIEWER)):
            await running.add(name, role)
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def laptop(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningApp]:
    async with live_server(tmp_path_factory.mktemp("data"), gradio=False) as running:
        yield running


def prepare(live: RunningApp, folder: Path) -> None:
    """Makes the server as good as new, with ``folder`` as its models folder, in which there is one adapter."""
    reset_engine(live.engine)
    live.engine.models_dir = folder
    (folder / "sql").mkdir(parents=True, exist_ok=True)


@pytest.fixture
def here(opened: Desk, tmp_path: Path) -> Desk:
    prepare(opened.live, tmp_path / "models")
    return opened


@pytest.fixture
def alone(laptop: RunningApp, tmp_path: Path) -> RunningApp:
    prepare(laptop, tmp_path / "models")
    return laptop


async def test_an_adapter_is_loaded_listed_and_unloaded(alone: RunningApp, tmp_path: Path) -> None:
    answer = await alone.http.post(ADDRESS, json={"name": " team/sql ", "folder": "sql"})
    assert (answer.status_code, answer.json()["model"]["adapters"]) == (200, ["team/sql"])
    assert alone.engine.lifecycle_calls == [("load_adapter", "team/sql", str(tmp_path / "models" / "sql"))]
    assert [card["id"] for card in (await alone.http.get("/v1/models")).json()["data"]] == ["fake", "team/sql"]
    answer = await alone.http.delete(f"{ADDRESS}/team/sql")
    assert (answer.status_code, answer.json()["model"]["adapters"]) == (200, [])


async def test_without_accounts_any_folder_is_the_engines_to_judge(alone: RunningApp) -> None:
    assert (await alone.http.post(ADDRESS, json={"name": "x", "folder": "/srv/adapters/x"})).status_code == 200
    assert alone.engine.lifecycle_calls == [("load_adapter", "x", "/srv/adapters/x")]


async def test_with_accounts_only_the_models_folder_is_read(here: Desk, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "models" / "link").symlink_to(tmp_path / "outside")
    for folder in ("/etc", str(tmp_path / "outside"), "../outside", "sql/../../outside", "link", ".", "\0"):
        answer = await here.clients["ada"].post(ADDRESS, json={"name": "x", "folder": folder})
        assert answer.status_code == 422, folder
    assert here.live.engine.lifecycle_calls == []
    for folder in ("sql", str(tmp_path / "models" / "sql")):
        assert (await here.clients["ada"].post(ADDRESS, json={"name": "x", "folder": folder})).status_code == 200
        assert here.live.engine.lifecycle_calls.pop()[2] == str(tmp_path / "models" / "sql")


@pytest.mark.parametrize("name", ["ben", "cyd"])
async def test_only_admins_load_and_unload(here: Desk, name: str) -> None:
    assert (await here.clients[name].post(ADDRESS, json={"name": "x", "folder": "sql"})).status_code == 403
    assert (await here.clients[name].delete(f"{ADDRESS}/x")).status_code == 403
    assert here.live.engine.lifecycle_calls == []


async def test_both_are_in_the_audit_log(here: Desk) -> None:
    ada = here.clients["ada"]
    await ada.post(ADDRESS, json={"name": "x", "folder": "sql"})
    await ada.delete(f"{ADDRESS}/x")
    for action in ("adapter_loaded", "adapter_unloaded"):
        entries = (await ada.get("/api/desk/audit", params={**days(), "action": action})).json()["items"]
        assert (entries[0]["actor"], entries[0]["target"]) == ("ada", "x")


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ModelLoadError("The adapter cannot be loaded."), 422),
        (EngineBusyError("The engine is busy."), 409),
        (EngineStoppedError("The model is asleep."), 503),
        (InvalidRequestError("No adapter is loaded under this name."), 404),
    ],
)
async def test_what_goes_wrong_is_said(alone: RunningApp, error: EngineError, status: int) -> None:
    alone.engine.lifecycle_error = error
    if status == 404:
        answer = await alone.http.delete(f"{ADDRESS}/x")
    else:
        answer = await alone.http.post(ADDRESS, json={"name": "x", "folder": "sql"})
    assert (answer.status_code, answer.json()["error"]["message"]) == (status, str(error))
