"""``/api/models``: who may see, download and load which model, and what goes wrong on the way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from app.domain.roles import UserRole
from app.models import recommended
from app.services import models as models_service
from engine import ModelLoadError
from testing.gguf_header import gguf_bytes
from testing.package_index import PackageIndex
from testing.waiting import eventually
from tests.app.api.test_desk_api import days
from tests.app.desk import Desk, desk
from tests.app.live_server import RunningApp, live_server, reset_engine

DAMAGED = "The file is incomplete or damaged: it ends within version, after 4 bytes. Download it again."

pytestmark = pytest.mark.asyncio(loop_scope="module")


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


@pytest.fixture(autouse=True)
def no_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine's own models are not the tests'."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("OLLAMA_MODELS", raising=False)


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[PackageIndex]:
    """A package index, and a recommended list with its model alone."""
    with PackageIndex().running() as running:
        for variable in ("UV_DEFAULT_INDEX", "UV_INDEX_URL"):
            monkeypatch.delenv(variable, raising=False)
        monkeypatch.setenv("PIP_INDEX_URL", running.url)
        recommended.recommended_models.cache_clear()
        monkeypatch.setattr(recommended, "read_list", lambda: (running.recommended,))
        yield running
    recommended.recommended_models.cache_clear()


def prepare(live: RunningApp, folder: Path) -> Path:
    """Makes the server as good as new, with ``folder`` as its models folder, in which there is one model."""
    reset_engine(live.engine)
    live.engine.source = "models/fake"
    live.engine.models_dir = folder
    live.app.state.services.models.download = None
    folder.mkdir(exist_ok=True)
    (folder / "tiny.gguf").write_bytes(gguf_bytes())
    return folder


@pytest.fixture
def here(opened: Desk, tmp_path: Path) -> Desk:
    prepare(opened.live, tmp_path / "models")
    return opened


@pytest.fixture
def alone(laptop: RunningApp, tmp_path: Path) -> RunningApp:
    prepare(laptop, tmp_path / "models")
    return laptop


async def download_of(http: httpx.AsyncClient) -> dict[str, Any]:
    view: dict[str, Any] = (await http.get("/api/engine")).json()["download"]
    return view


async def ended(live: RunningApp, http: httpx.AsyncClient) -> dict[str, Any]:
    models = live.app.state.services.models
    await eventually(lambda: not models.download.is_running)
    return await download_of(http)


# ---- rights


@pytest.mark.parametrize("name", ["ben", "cyd"])
@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/api/models", None),
        ("POST", "/api/models/download", {"model": "tiny"}),
        ("DELETE", "/api/models/download", {}),
        ("POST", "/api/engine/swap", {"model": "models-dir:tiny"}),
    ],
)
async def test_only_admins_see_and_change_models(
    here: Desk, index: PackageIndex, name: str, method: str, path: str, body: object
) -> None:
    answer = await here.clients[name].request(method, path, json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "not_allowed")
    async with here.client() as nobody:
        assert (await nobody.request(method, path, json=body)).status_code == 401
    assert here.live.engine.lifecycle_calls == []
    assert index.ranges == []


async def test_every_user_sees_the_progress(here: Desk, index: PackageIndex) -> None:
    index.resume.clear()
    assert (await here.clients["ada"].post("/api/models/download", json={"model": "tiny"})).status_code == 202
    await eventually(index.paused.is_set)
    while not (await download_of(here.clients["ada"]))["stage"]:  # noqa: ASYNC110 (told a moment later, to nobody)
        await asyncio.sleep(0.01)
    for name in ("ben", "cyd"):
        seen = await download_of(here.clients[name])
        assert (seen["title"], seen["state"], seen["stage"]) == ("Tiny Model", "downloading", "Downloading Tiny Model")
        assert 0 <= seen["progress"] < 1
    index.resume.set()
    assert (await ended(here.live, here.clients["cyd"]))["state"] == "done"


PATHS = [
    "/etc/passwd",
    "/etc",
    "..",
    "../models",
    "../../etc/passwd",
    "./tiny.gguf",
    "~/model",
    "~root/model",
    "file:///etc/passwd",
    "file:/etc/passwd",
    "http://evil.example/model",
    "C:\\models\\x",
    "\\\\host\\share",
    "models-dir:../../etc",
    "hub-cache:/etc/passwd",
    "app/models",
    "models/guide/../../app",
    "a/../b",
    "org/..",
    "../org",
    "org/repo:../../x",
    "org/repo/../x",
    "org/repo\n/x",
    "org/repo\0",
    "%2e%2e/%2e%2e",
    "org//repo",
    "/org/repo",
    "org/repo/",
    "tiny.gguf",
    "ōrg/rеpo",
]


@pytest.mark.parametrize("path", PATHS)
async def test_with_accounts_no_path_is_loaded_or_downloaded(here: Desk, index: PackageIndex, path: str) -> None:
    ada = here.clients["ada"]
    for address in ("/api/engine/swap", "/api/models/download"):
        answer = await ada.post(address, json={"model": path})
        assert answer.status_code == 422, answer.text
        assert answer.json()["error"]["message"].endswith(".")
    assert here.live.engine.lifecycle_calls == []
    assert here.services.models.download is None


async def test_with_accounts_a_real_folder_elsewhere_is_not_loaded(here: Desk, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "model.gguf").write_bytes(gguf_bytes())
    (tmp_path / "models" / "link.gguf").symlink_to(outside / "model.gguf")
    for name in (str(outside), str(outside / "model.gguf"), "models-dir:link", str(tmp_path / "models" / "link.gguf")):
        answer = await here.clients["ada"].post("/api/engine/swap", json={"model": name})
        assert answer.status_code == 422, name
    assert here.live.engine.lifecycle_calls == []


async def test_with_accounts_found_models_hub_ids_and_the_first_model_are_loaded(here: Desk, tmp_path: Path) -> None:
    file = str(tmp_path / "models" / "tiny.gguf")
    expected = [
        ("models-dir:tiny", file),
        ("tiny", file),
        (file, file),
        ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B"),
        ("org/repo-GGUF:Q4_K_M", "org/repo-GGUF:Q4_K_M"),
        ("models/fake", "models/fake"),
    ]
    for name, target in expected:
        answer = await here.clients["ada"].post("/api/engine/swap", json={"model": name})
        assert answer.status_code == 200, answer.text
        assert here.live.engine.lifecycle_calls.pop()[:2] == ("swap", target)


async def test_a_change_is_in_the_audit_log(here: Desk) -> None:
    await here.clients["ada"].post("/api/engine/swap", json={"model": "models-dir:tiny"})
    entry = (await here.clients["ada"].get("/api/desk/audit", params={**days(), "action": "model_changed"})).json()[
        "items"
    ][0]
    assert (entry["actor"], entry["target"]) == ("ada", "tiny.gguf")


async def test_without_accounts_a_path_is_the_engines_to_judge(alone: RunningApp) -> None:
    assert (await alone.http.post("/api/engine/swap", json={"model": "/srv/models/x"})).status_code == 200
    assert alone.engine.lifecycle_calls[0][:2] == ("swap", "/srv/models/x")


# ---- the list


async def test_the_list_says_what_is_known_and_no_path(here: Desk, index: PackageIndex, tmp_path: Path) -> None:
    (tmp_path / "models" / "bad.gguf").write_bytes(b"GGUF")
    answer = await here.clients["ada"].get("/api/models")
    assert str(tmp_path) not in answer.text
    view = answer.json()
    found = {one["id"]: one for one in view["found"]}
    assert found["models-dir:tiny"]["format"] == "GGUF Q4_1"
    assert found["models-dir:tiny"]["context_length"] == 512
    assert found["models-dir:tiny"]["fits"] is True
    assert found["models-dir:bad"]["problem"] == DAMAGED
    assert found["bundled:guide"]["source"] == "bundled"
    assert view["can_load_paths"] is False
    [tiny] = view["recommended"]
    assert (tiny["name"], tiny["id"], tiny["licence"], tiny["terms"]) == ("tiny", None, "Apache-2.0", "open")
    assert "wheel" not in tiny


async def test_the_loaded_model_is_marked(alone: RunningApp, tmp_path: Path) -> None:
    alone.engine.source = str(tmp_path / "models" / "tiny.gguf")
    view = (await alone.http.get("/api/models")).json()
    assert [one["id"] for one in view["found"] if one["loaded"]] == ["models-dir:tiny"]
    assert view["can_load_paths"] is True


async def test_the_guide_is_marked_too(alone: RunningApp) -> None:
    alone.engine.source = "models/guide"
    view = (await alone.http.get("/api/models")).json()
    assert [one["id"] for one in view["found"] if one["loaded"]] == ["bundled:guide"]
    options = (await alone.http.get("/ui/options")).json()
    assert options["suggested_model"]["name"] == "smollm2"
    alone.engine.source = "models/other"
    assert (await alone.http.get("/ui/options")).json()["suggested_model"] is None


async def test_a_damaged_model_is_refused_with_its_sentence(alone: RunningApp, tmp_path: Path) -> None:
    (tmp_path / "models" / "bad.gguf").write_bytes(b"GGUF")
    answer = await alone.http.post("/api/engine/swap", json={"model": "models-dir:bad"})
    assert answer.json()["error"]["message"] == f"bad cannot be loaded: {DAMAGED}"
    assert alone.engine.lifecycle_calls == []


async def test_a_model_larger_than_the_memory_is_refused_with_the_numbers(
    alone: RunningApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    from app.models import performance

    monkeypatch.setattr(performance, "available_host_memory", lambda: 1000)
    monkeypatch.setattr(performance, "may_have_gpu", lambda: False)
    answer = await alone.http.post("/api/engine/swap", json={"model": "models-dir:tiny"})
    assert answer.status_code == 422
    assert answer.json()["error"]["message"].startswith("tiny needs 0.0 GB of memory for its weights, and 0.0 GB are")
    assert alone.engine.lifecycle_calls == []


# ---- downloads


async def test_one_request_downloads_and_loads(alone: RunningApp, index: PackageIndex, tmp_path: Path) -> None:
    first = await alone.http.post("/api/models/download", json={"model": " Tiny "})
    assert (first.status_code, first.json()["state"]) == (202, "downloading")
    assert alone.engine.source == "models/fake"
    assert (await ended(alone, alone.http))["state"] == "done"
    file = tmp_path / "models" / "Tiny.Q4_1.gguf"
    assert file.read_bytes() == index.model
    assert alone.engine.lifecycle_calls[0][:2] == ("swap", str(file))
    view = (await alone.http.get("/api/models")).json()
    assert view["recommended"][0]["id"] == "models-dir:Tiny.Q4_1"


async def test_a_download_alone_loads_nothing(alone: RunningApp, index: PackageIndex) -> None:
    await alone.http.post("/api/models/download", json={"model": "tiny", "load": False})
    assert (await ended(alone, alone.http))["state"] == "done"
    assert alone.engine.lifecycle_calls == []
    assert (await alone.http.post("/api/engine/swap", json={"model": "tiny.gguf"})).status_code == 200


async def test_the_second_click_joins_the_first_and_another_model_waits(alone: RunningApp, index: PackageIndex) -> None:
    index.resume.clear()
    answers = await asyncio.gather(
        *(alone.http.post("/api/models/download", json={"model": "tiny", "load": load}) for load in (False, True))
    )
    assert [answer.status_code for answer in answers] == [202, 202]
    await eventually(index.paused.is_set)
    other = await alone.http.post("/api/models/download", json={"model": "org/other"})
    assert other.status_code == 409
    assert other.json()["error"]["message"] == ("Tiny Model is being downloaded. Wait until it's done, or cancel it.")
    index.resume.set()
    assert (await ended(alone, alone.http))["state"] == "done"
    assert len(index.ranges) == 1
    assert [call[0] for call in alone.engine.lifecycle_calls] == ["swap"]  # as the second click asked


async def test_a_cancelled_download_ends_and_goes_on_later(alone: RunningApp, index: PackageIndex) -> None:
    index.resume.clear()
    await alone.http.post("/api/models/download", json={"model": "tiny"})
    await eventually(index.paused.is_set)
    assert (await alone.http.request("DELETE", "/api/models/download", json={})).status_code == 204
    index.resume.set()
    assert (await ended(alone, alone.http))["state"] == "cancelled"
    assert alone.engine.lifecycle_calls == []
    assert (await alone.http.request("DELETE", "/api/models/download", json={})).status_code == 404
    await alone.http.post("/api/models/download", json={"model": "tiny"})
    assert (await ended(alone, alone.http))["state"] == "done"


async def test_a_failed_download_says_why_and_changes_nothing(alone: RunningApp, index: PackageIndex) -> None:
    index.sent = index.wheel[:-1] + b"!"
    await alone.http.post("/api/models/download", json={"model": "tiny"})
    view = await ended(alone, alone.http)
    assert view["state"] == "failed"
    assert "SHA-256 differs" in view["error"]
    assert alone.engine.lifecycle_calls == []
    assert (await alone.http.get("/ready")).status_code == 200


async def test_a_model_that_cannot_be_loaded_leaves_the_old_one(alone: RunningApp, index: PackageIndex) -> None:
    alone.engine.lifecycle_error = ModelLoadError("It has no tokenizer.")
    await alone.http.post("/api/models/download", json={"model": "tiny"})
    view = await ended(alone, alone.http)
    assert (view["state"], view["error"]) == ("failed", "It has no tokenizer.")
    engine = (await alone.http.get("/api/engine")).json()
    assert (engine["state"], engine["model"]["name"]) == ("ready", "fake")


async def test_an_unexpected_error_is_no_traceback(
    alone: RunningApp, index: PackageIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_arguments: object) -> str:
        raise RuntimeError("secret detail")

    monkeypatch.setattr(models_service, "download", fail)
    await alone.http.post("/api/models/download", json={"model": "tiny"})
    assert (await ended(alone, alone.http))["error"] == "An internal error occurred. The server's log has the details."


@pytest.mark.parametrize("wrong", [{}, {"model": ""}, {"model": None}, {"model": "x" * 301}, {"model": "a/b", "x": 1}])
async def test_a_body_that_makes_no_sense_downloads_nothing(alone: RunningApp, wrong: dict[str, object]) -> None:
    assert (await alone.http.post("/api/models/download", json=wrong)).status_code == 422
    assert alone.app.state.services.models.download is None


async def test_another_website_downloads_nothing(alone: RunningApp, index: PackageIndex) -> None:
    answer = await alone.http.post(
        "/api/models/download", json={"model": "tiny"}, headers={"Origin": "http://evil.example"}
    )
    assert answer.status_code == 403
    assert index.ranges == []


async def test_an_engine_elsewhere_has_no_models_here(tmp_path: Path) -> None:
    class Elsewhere:
        """An engine that hosts no model."""

    async with live_server(tmp_path / "data", gradio=False) as live:
        live.app.state.services.models._engine = Elsewhere()
        for method, path in (("GET", "/api/models"), ("POST", "/api/models/download")):
            answer = await live.http.request(method, path, json={"model": "org/repo"} if method == "POST" else None)
            assert (answer.status_code, answer.json()["error"]["code"]) == (501, "not_supported")
