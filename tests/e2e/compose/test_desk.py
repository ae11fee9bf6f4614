"""A support desk's life in containers: first start, people, a crash in the middle of a reply, a stop, the loss of every
volume, and back from a backup. The tests follow one another, as the days of one desk do."""

from __future__ import annotations

import secrets
import time
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, expect

from tests.e2e.chat_page import ChatPage, letters
from tests.e2e.compose.desk import IMAGE, ComposeProject, docker
from tests.e2e.conftest import NewBrowser

PASSWORD = secrets.token_urlsafe(24)
HEALTHY_SECONDS = 180
CHECKPOINT_SECONDS = 30
SECRETS = {"POSTGRES_PASSWORD", "APP_SECRET_KEY", "APP_METRICS_TOKEN"}
PROFILES = ("gpu", "monitoring", "cluster", "proxy")


def test_nothing_starts_without_secrets(new_desk: ComposeProject) -> None:
    assert new_desk.try_compose("--env-file", ".env.example", "config", "--quiet").returncode
    for name in SECRETS:
        (new_desk.folder / "two.env").write_text("\n".join(f"{other}=x" for other in SECRETS - {name}))
        refused = new_desk.try_compose("--env-file", "two.env", "config", "--quiet")
        assert refused.returncode
        said = refused.stderr.decode()
        assert name in said
        assert "is missing a value: Set it in .env" in said


@pytest.mark.parametrize("profile", PROFILES)
def test_profiles_are_valid(desk: ComposeProject, profile: str) -> None:
    desk.compose("--profile", profile, "config", "--quiet")


def test_every_container_is_confined(desk: ComposeProject) -> None:
    for service, port in (("app", str(desk.port)), ("db", None)):
        container = desk.inspect(service)
        host = container["HostConfig"]
        assert host["ReadonlyRootfs"]
        assert host["CapDrop"] == ["ALL"]
        assert not host["CapAdd"]
        assert host["Memory"] > 0
        assert container["Config"]["User"] not in ("", "root", "0")
        published = [bound for bounds in container["NetworkSettings"]["Ports"].values() for bound in bounds or ()]
        assert published == ([{"HostIp": "127.0.0.1", "HostPort": port}] if port else [])
        status = desk.compose("exec", "-T", service, "cat", "/proc/1/status")
        assert "CapEff:\t0000000000000000" in status
        assert "NoNewPrivs:\t1" in status
    refused = desk.try_compose("exec", "-T", "app", "touch", "/deskmate/app/new.py")
    assert b"Read-only file system" in refused.stderr


def test_the_image_needs_no_network(desk: ComposeProject) -> None:
    """Alone, without a database beside it or a way out, it serves the model in its box."""
    name = f"deskmate-test-{secrets.token_hex(4)}"
    docker("run", "--detach", "--network", "none", "--name", name, IMAGE)
    try:
        deadline = time.monotonic() + HEALTHY_SECONDS
        while (health := docker("inspect", "--format", "{{.State.Health.Status}}", name).strip()) != "healthy":
            assert time.monotonic() < deadline, f"{health}: {docker('logs', name)}"
            time.sleep(1)
    finally:
        docker("rm", "--force", "--volumes", name)


def test_metrics_are_for_those_with_the_token(desk: ComposeProject, new_browser: NewBrowser) -> None:
    request = new_browser(desk).request
    assert request.get(f"{desk.url}/metrics").status == 401
    token = {"Authorization": f"Bearer {desk.secret('APP_METRICS_TOKEN')}"}
    answer = request.get(f"{desk.url}/metrics", headers=token)
    assert answer.status == 200
    assert 'deskmate_engine_state{state="ready"} 1.0' in answer.text()
    # Prometheus calls each replica by its address.
    networks = desk.inspect("app")["NetworkSettings"]["Networks"]
    (address,) = (network["IPAddress"] for name, network in networks.items() if name.endswith("_metrics"))
    assert request.get(f"http://{address}:7860/metrics", headers=token).status == 200


def test_a_desk_keeps_everything(desk: ComposeProject, new_browser: NewBrowser, tmp_path: Path) -> None:
    assert "/setup" in desk.compose("logs", "app"), "the first start offers a link to make the admin with"
    create = ("exec", "-T", "app", "deskmate", "user", "create", "ann", "--role", "admin", "--password-stdin")
    desk.compose(*create, given=PASSWORD.encode())

    # The first conversation, with the model in the box.
    browser = new_browser(desk)
    chat = sign_in(browser, desk)
    assert len(chat.ask("hi").strip()) > 3

    # Another model, which never stops; the process is killed in the middle of its reply.
    desk.configure(ENGINE_MODEL="/endless")
    desk.up()
    chat.open()  # still signed in: sessions are in the database
    chat.send("go on for ever")
    shown = chat.wait_for_text(400)
    wait_for_checkpoint(desk)
    conversation = chat.conversation_id
    kill_the_server(desk)
    chat = ChatPage(browser.new_page(), desk.url).open(conversation)
    expect(chat.replies.last).to_have_attribute("data-status", "interrupted")
    assert chat.users.all_inner_texts() == ["go on for ever"]
    kept = chat.text()
    assert kept, "what was written until the last checkpoint"
    begun, before = letters(kept), letters(shown)  # the page may have shown more than was stored, or less
    assert begun.startswith(before) or before.startswith(begun)

    # An orderly stop in the middle of another one: it is given its time, and what it has is saved.
    chat.go(None)
    chat.send("and once more")
    chat.wait_for_text(100)
    desk.compose("stop", "app")
    assert desk.inspect("app")["State"]["ExitCode"] == 0, "it ended by itself, before Docker lost patience"
    desk.compose("start", "app")
    desk.up()
    stored = everything(browser, desk)
    assert len(stored) == 3

    # Away with everything, and back.
    backup = tmp_path / "desk.dump"
    with backup.open("wb") as file:
        desk.compose("exec", "-T", "app", "deskmate", "db", "backup", "--to", "-", to=file)
    desk.destroy()
    desk.compose("run", "--rm", "-T", "app", "deskmate", "db", "restore", "-", given=backup.read_bytes())
    desk.up()
    other = new_browser(desk)
    sign_in(other, desk)
    assert everything(other, desk) == stored


def sign_in(browser: BrowserContext, desk: ComposeProject) -> ChatPage:
    """As the admin, by the door that every address leads to."""
    page = browser.new_page()
    page.goto(desk.url)
    page.get_by_label("Username or email address").fill("ann")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(f"{desk.url}/")
    return ChatPage(page, desk.url).ready()


def everything(browser: BrowserContext, desk: ComposeProject) -> dict[str, Any]:
    """Every conversation with all that was said in it."""
    conversations = browser.request.get(f"{desk.url}/api/conversations").json()["items"]
    found = {}
    for conversation in conversations:
        detail = browser.request.get(f"{desk.url}/api/conversations/{conversation['id']}").json()
        assert detail["active_turn_id"] is None
        found[conversation["id"]] = [
            (message["id"], message["role"], message["status"], message["content"]) for message in detail["messages"]
        ]
    return found


def wait_for_checkpoint(desk: ComposeProject) -> None:
    deadline = time.monotonic() + CHECKPOINT_SECONDS
    while desk.saved_characters() == 0:
        assert time.monotonic() < deadline, desk.log_tail()
        time.sleep(0.2)


def kill_the_server(desk: ComposeProject) -> None:
    """As a crash would: Docker starts it again by itself. Returns once it is ready again."""
    restarts = desk.inspect("app")["RestartCount"]
    desk.try_compose("exec", "-T", "app", "sh", "-c", "kill -9 $(cat /proc/1/task/1/children)")
    deadline = time.monotonic() + HEALTHY_SECONDS
    while True:
        container = desk.inspect("app")
        if container["RestartCount"] > restarts and container["State"].get("Health", {}).get("Status") == "healthy":
            return
        assert time.monotonic() < deadline, f"{container['State']}\n{desk.log_tail()}"
        time.sleep(1)


def test_two_replicas_begin_together(desk: ComposeProject) -> None:
    """On an empty database: one of them makes the tables, the other one waits for it."""
    desk.destroy()
    with desk.changed(DESKMATE_REPLICAS=2, DESKMATE_PORT=desk.two_ports(), APP_PUBLIC_URL="http://127.0.0.1:7860"):
        desk.up()
        assert len(desk.compose("ps", "--quiet", "app").split()) == 2
        log = desk.compose("logs", "--no-color", "app")
        assert log.count("database migrated from nothing") == 1, log
