"""The page with Gradio's internals as they are, and with the newest Gradio on the package index."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
from playwright.sync_api import expect

from app.ui.gradio_patches import SWITCH
from tests.e2e.chat_page import ChatPage
from tests.e2e.conftest import NewBrowser
from tests.e2e.server import Server
from tests.fork_server import ROOT

pytestmark = [pytest.mark.full, pytest.mark.timeout(1800)]

#: What a user does on the chat page, and how the page starts. The others test the server behind it, or one component
#: at length, and would take three times as long.
ON_THE_CHAT_PAGE = ("chatting", "conversation_list", "fields", "message_tree", "page_at_rest", "settings_panel")


@pytest.fixture
def remove_type_stubs() -> Iterator[None]:
    """Gradio writes them beside the components, where they would be taken for sources."""
    yield
    for stub in (ROOT / "app").rglob("*.pyi"):
        stub.unlink(missing_ok=True)


@pytest.mark.usefixtures("remove_type_stubs")
def test_the_page_works_without_the_changes_to_gradio() -> None:
    files = [f"tests/e2e/test_{name}.py" for name in ON_THE_CHAT_PAGE]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *files, "-q", "-m", "not full", "-p", "no:cacheprovider", "--tb=short"],
        cwd=ROOT,
        env=environment | {SWITCH: "off"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-8000:]


@pytest.fixture
def newest_gradio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The version of the newest Gradio 6, which servers that this test starts use."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
    found = subprocess.run(
        [*pip, "--dry-run", "--report", "-", "--upgrade", "gradio>=6,<7"], capture_output=True, text=True
    )
    if found.returncode:
        assert "ResolutionImpossible" not in found.stderr, found.stderr
        pytest.skip(f"The package index does not answer: {found.stderr.strip().splitlines()[-1]}")
    missing = {
        package["metadata"]["name"]: package["metadata"]["version"] for package in json.loads(found.stdout)["install"]
    }
    if "gradio" not in missing:
        return version("gradio")
    pinned = [f"{name}=={number}" for name, number in missing.items()]
    subprocess.run([*pip, "--no-deps", "--target", str(tmp_path / "newest"), *pinned], check=True)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "newest"))
    return str(missing["gradio"])


def test_the_page_works_with_the_newest_gradio(newest_gradio: str, new_browser: NewBrowser, tmp_path: Path) -> None:
    server = Server(ROOT / "models/guide", tmp_path / "data", program=("-m", "app"))  # it imports the newest itself
    with server:
        chat = ChatPage(new_browser(server).new_page(), server.url).open()
        assert chat.page.evaluate("window.gradio_config.version") == newest_gradio
        assert chat.ask("What can you do?")
        expect(chat.titles).to_have_count(1)
        chat.open_settings()
        chat.set_number("Temperature", "0.5")
        assert chat.reload().text() != ""
        chat.open_settings()
        expect(chat.setting("Temperature")).to_have_value("0.5")
        skipped = [line for line in server.log_tail().splitlines() if "Gradio" in line]
    if skipped:
        warnings.warn("\n".join(skipped), stacklevel=1)
