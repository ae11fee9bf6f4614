"""A visitor leaves an address and goes: the reply comes by e-mail, from a running server; and who may look at that."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update

from app.cases import mail_sender
from app.domain.roles import UserRole
from app.settings import AppSettings
from app.store.db.case_models import ReplyMail
from testing.mail_servers import PASSWORD, USER, smtp_server
from testing.waiting import eventually
from tests.app.api.widget import make_inbox, visit
from tests.app.desk import SECRET, Desk, desk

OFF = "/api/desk/mail"


async def reply_in_a_case(here: Desk, inbox: dict[str, Any], text: str) -> str:
    """An agent replies in the inbox's latest case. Returns the message's id."""
    ben = here.clients["ben"]
    case = (await ben.get(f"/api/cases?inbox={inbox['id']}")).json()["cases"][0]
    answer = await ben.post(f"/api/cases/{case['id']}/messages", json={"text": text})
    assert answer.status_code == 200, answer.text
    message_id: str = answer.json()["message"]["id"]
    return message_id


async def statuses(here: Desk) -> list[str]:
    query = select(ReplyMail.status).order_by(ReplyMail.message_id)
    return await here.services.database.read(lambda session: list(session.scalars(query)))


async def test_a_visitor_who_has_gone_gets_the_reply_by_mail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mail_sender, "LOOK_SECONDS", 0.02)
    async with smtp_server() as smtp:
        settings: dict[str, Any] = {
            "mail_host": "127.0.0.1",
            "mail_port": smtp.port,
            "mail_tls": "none",
            "mail_from": USER,
        }
        secret = {"mail_user": USER, "mail_password": PASSWORD}
        async with desk(tmp_path / "data", gradio=False, **settings, **secret) as here:
            for name, role in (("ada", UserRole.ADMIN), ("ben", UserRole.AGENT), ("cyd", UserRole.VIEWER)):
                await here.add(name, role)
            for name, status in (("ada", 200), ("ben", 403), ("cyd", 403)):
                assert (await here.clients[name].get(OFF)).status_code == status
            inbox = await make_inbox(here, bot=False)
            eva = await visit(here.live.http, inbox, language="de")
            await eva.write("Wo ist mein Paket?")
            left = await here.live.http.put("/api/widget/contact", json={"email": "eva@a.example"}, headers=eva.headers)
            assert left.status_code == 200
            read = await reply_in_a_case(here, inbox, "Seen in the chat")
            stranger = await visit(here.live.http, inbox)
            assert (await stranger.post("read", {"message_id": read})).status_code == 204
            assert await statuses(here) == ["pending"]
            assert (await eva.post("read", {"message_id": read})).status_code == 204
            assert await statuses(here) == ["read"]
            for wrong in ({"message_id": ""}, {"message_id": "x" * 37}, {}):
                assert (await eva.post("read", wrong)).status_code == 422
            assert (await eva.http.post("/api/widget/read", json={"message_id": read})).status_code == 401

            await reply_in_a_case(here, inbox, "Es kommt am Freitag.")
            seen = (await here.clients["ada"].get(OFF)).json()
            assert (seen["sender"], seen["pending"], seen["last_sent_at"]) == (USER, 1, None)
            now = update(ReplyMail).values(next_attempt_at=datetime.now(UTC))
            await here.services.database.write(lambda session: session.execute(now))
            await eventually(lambda: len(smtp.raw) == 1)
            (mail,) = smtp.mails
            assert (mail["To"], mail["Subject"]) == ("eva@a.example", "Eine Antwort von Shop")
            assert "Es kommt am Freitag." in mail.get_content()
            assert "Chat auf https://shop.example wieder" in mail.get_content()
            assert "Seen in the chat" not in mail.get_content()
            case = (await here.clients["ben"].get(f"/api/cases?inbox={inbox['id']}")).json()["cases"][0]
            kinds: list[str] = []
            while "mailed" not in kinds:  # it is noted after the server of mail has taken the mail
                events = (await here.clients["ben"].get(f"/api/cases/{case['id']}")).json()["events"]
                kinds = [event["kind"] for event in events]
            assert events[-1]["details"] == {"email": "eva@a.example"}
            assert (await here.clients["ada"].get(OFF)).json()["last_sent_at"] is not None


async def test_without_a_server_of_mail_nothing_waits_and_the_page_says_so(tmp_path: Path) -> None:
    async with desk(tmp_path / "data", gradio=False) as here:
        for name, role in (("ada", UserRole.ADMIN), ("ben", UserRole.AGENT)):
            await here.add(name, role)
        inbox = await make_inbox(here, bot=False)
        eva = await visit(here.live.http, inbox)
        await eva.write("Hello?")
        await reply_in_a_case(here, inbox, "Yes?")
        assert await statuses(here) == []
        assert (await here.clients["ada"].get(OFF)).json() == {
            "sender": None,
            "server": None,
            "delay_minutes": 10,
            "pending": 0,
            "last_sent_at": None,
            "error": None,
        }


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"mail_from": None}, "set APP_MAIL_FROM"),
        ({"mail_from": "no address"}, "must be an address"),
        ({"mail_from": "a@b.example\nBcc: c@d.example"}, "must be an address"),
        ({"mail_from": "a@b.example, c@d.example <"}, "must be an address"),
        ({"mail_user": "desk"}, "need each other"),
        ({"accounts": False, "secret_key": None}, "is for a server with accounts"),
        ({"mail_tls": "ssl"}, "starttls"),
        ({"mail_delay_minutes": 0}, "greater than or equal to 1"),
    ],
)
def test_settings_that_do_not_fit_are_refused_in_a_sentence(given: dict[str, Any], said: str) -> None:
    right: dict[str, Any] = {"accounts": True, "secret_key": SECRET, "mail_host": "smtp.example"}
    right["mail_from"] = "Shop <a@b.example>"
    server = AppSettings(_env_file=None, **right).mail_server
    assert server is not None
    assert (server.port, server.sender) == (587, "Shop <a@b.example>")
    with pytest.raises(ValueError, match=said):
        AppSettings(_env_file=None, **right | given)
