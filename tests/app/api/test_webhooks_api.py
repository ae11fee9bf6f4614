"""The doors of webhooks: for admins alone, and what they refuse."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from app.domain.roles import UserRole
from tests.app.desk import Desk

NOWHERE = "0198c000-0000-7000-8000-00000000abcd"
URL = "https://crm.example.com/deskmate"


@pytest.fixture
async def webhook(here: Desk) -> dict[str, Any]:
    answer = await here.clients["ada"].post("/api/webhooks", json={"name": "CRM", "url": URL})
    assert answer.status_code == 201, answer.text
    created: dict[str, Any] = answer.json()["webhook"]
    return created


async def test_only_admins_reach_webhooks(here: Desk, webhook: dict[str, Any]) -> None:
    at = f"/api/webhooks/{webhook['id']}"
    routes: list[tuple[str, str, dict[str, Any] | None]] = [
        ("GET", "/api/webhooks", None),
        ("POST", "/api/webhooks", {"url": URL}),
        ("PATCH", at, {"enabled": False}),
        ("DELETE", at, None),
        ("POST", f"{at}/secret", {}),
        ("POST", f"{at}/test", {}),
        ("GET", f"{at}/deliveries", None),
        ("POST", f"{at}/deliveries/{NOWHERE}/replay", {}),
    ]
    await here.add("dan", UserRole.AGENT)
    for client, status in (
        (here.clients["dan"], 403),
        (here.clients["ben"], 403),
        (here.clients["cyd"], 403),
        (here.client(), 401),
    ):
        for method, path, body in routes:
            answer = await client.request(method, path, json=body)
            assert answer.status_code == status, (method, path)
    listed = (await here.clients["ada"].get("/api/webhooks")).json()
    assert [(each["name"], each["enabled"]) for each in listed["webhooks"]] == [("CRM", True)]
    assert "message.created" in listed["events"]


async def test_the_secret_is_shown_when_it_is_made_and_never_again(here: Desk, webhook: dict[str, Any]) -> None:
    ada = here.clients["ada"]
    renewed = await ada.post(f"/api/webhooks/{webhook['id']}/secret")
    assert renewed.json()["secret"].startswith("whsec_")
    assert "whsec_" not in (await ada.get("/api/webhooks")).text
    today = datetime.now(UTC).date()
    days = {"first": str(today - timedelta(days=1)), "last": str(today + timedelta(days=1))}
    audit = await ada.get("/api/desk/audit", params=days)
    assert "whsec_" not in audit.text
    changed = [each for each in audit.json()["items"] if each["action"] == "webhook_secret_changed"]
    assert [(each["target"], each["names"]) for each in changed] == [(webhook["id"], {webhook["id"]: "CRM"})]


async def test_a_test_is_among_the_deliveries(here: Desk, webhook: dict[str, Any]) -> None:
    ada = here.clients["ada"]
    at = f"/api/webhooks/{webhook['id']}"
    sent = await ada.post(f"{at}/test")
    assert sent.status_code == 200, sent.text
    deliveries = (await ada.get(f"{at}/deliveries")).json()["deliveries"]
    assert [(each["id"], each["event"]) for each in deliveries] == [(sent.json()["id"], "webhook.test")]
    assert (await ada.patch(at, json={"enabled": False})).json()["disabled_reason"] == "admin"
    refused = await ada.post(f"{at}/test")
    assert refused.status_code == 409
    assert "Switch it on first" in refused.json()["error"]["message"]


async def test_a_webhook_is_moved_between_inboxes_and_to_all(here: Desk, webhook: dict[str, Any]) -> None:
    ada = here.clients["ada"]
    at = f"/api/webhooks/{webhook['id']}"
    inbox = (await ada.post("/api/inboxes", json={"name": "Website", "bot": False})).json()["id"]
    assert (await ada.patch(at, json={"inbox_id": inbox})).json()["inbox_id"] == inbox
    assert (await ada.patch(at, json={"name": "Shop"})).json()["inbox_id"] == inbox  # omitted, it stays
    assert (await ada.patch(at, json={"inbox_id": NOWHERE})).status_code == 404
    assert (await ada.patch(at, json={"inbox_id": None})).json()["inbox_id"] is None
    assert (await ada.patch(at, json={"name": ""})).json()["name"] == "crm.example.com"


@pytest.mark.parametrize(
    "wrong",
    [{"url": "ftp://x.example"}, {"url": " "}, {"events": ["case.eaten"]}, {"name": "x" * 101}, {"url": None}, {}],
)
async def test_what_is_wrong_is_refused_and_nothing_changes(
    here: Desk, webhook: dict[str, Any], wrong: dict[str, Any]
) -> None:
    ada = here.clients["ada"]
    refused = await ada.patch(f"/api/webhooks/{webhook['id']}", json=wrong)
    assert refused.status_code in (400, 422), refused.text
    assert refused.json()["error"]["message"]
    assert (await ada.get("/api/webhooks")).json()["webhooks"] == [webhook]
