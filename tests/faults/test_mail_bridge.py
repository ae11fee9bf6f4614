"""The example of docs/mail-bridge.md with real servers: mails become cases, replies become mails, whenever it dies."""

from __future__ import annotations

import asyncio
import importlib.util
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from email import message_from_string
from email.message import EmailMessage
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest

from app.domain.roles import UserRole
from testing.mail_servers import PASSWORD, USER, ImapServer, SmtpServer, imap_server, smtp_server
from tests.app.desk import Desk, desk

BRIDGE = Path(__file__).parents[2] / "docs" / "examples" / "mail_bridge.py"
ADDRESS = USER

#: Runs the bridge once, and kills it after so many acts: requests, mails, commands of IMAP, commits.
KILLED = """
import imaplib, os, runpy, signal, smtplib, sqlite3, sys, urllib.request
left = int(sys.argv[1])
def acting(real):
    def act(*args, **kwargs):
        global left
        try:
            return real(*args, **kwargs)
        finally:
            left -= 1
            if left == 0:
                print(real.__name__, flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
    return act
class Connection(sqlite3.Connection):
    def __exit__(self, *error):
        return super().__exit__(*error)
    __exit__ = acting(__exit__)
connect = sqlite3.connect
sqlite3.connect = lambda *args, **kwargs: connect(*args, factory=Connection, **kwargs)
imaplib.IMAP4.uid = acting(imaplib.IMAP4.uid)
smtplib.SMTP.send_message = acting(smtplib.SMTP.send_message)
urllib.request.urlopen = acting(urllib.request.urlopen)
sys.argv = [sys.argv[2], "--once"]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@dataclass
class Office:
    """A desk with an inbox for mails, a mailbox, and a server that sends mails."""

    desk: Desk
    agent: httpx.AsyncClient
    imap: ImapServer
    smtp: SmtpServer
    environment: dict[str, str]

    async def run(self, kill_after: int = 0) -> tuple[int, str, str]:
        """One round of the bridge: its exit code, the act that it was killed after, and its log."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", KILLED, str(kill_after), str(BRIDGE)),
            env=self.environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        said, log = await process.communicate()
        assert process.returncode is not None
        return process.returncode, said.decode().strip(), log.decode()

    async def run_whole(self) -> str:
        code, _, log = await self.run()
        assert code == 0, log
        return log

    async def cases(self) -> list[dict[str, Any]]:
        answer = await self.agent.get("/api/cases", params={"inbox": self.environment["DESKMATE_INBOX"]})
        cases: list[dict[str, Any]] = answer.json()["cases"]
        return cases

    async def messages(self, case_id: str) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = (await self.agent.get(f"/api/cases/{case_id}")).json()["messages"]
        return messages

    async def reply(self, case_id: str, text: str, door: str = "messages") -> None:
        answer = await self.agent.post(f"/api/cases/{case_id}/{door}", json={"text": text})
        assert answer.status_code == 200, answer.text

    def put(self, text: str, *, sender: str = "Eva <Eva@example.org>", **headers: str) -> str:
        """A mail arrives. Returns its Message-ID."""
        mail = EmailMessage()
        mail["From"], mail["To"], mail["Subject"] = sender, ADDRESS, "My parcel"
        mail["Message-ID"] = f"<{len(self.imap.mails)}@example.org>"
        for name, value in headers.items():
            mail[name.replace("_", "-")] = value
        mail.set_content(text)
        self.imap.put(mail.as_bytes())
        return str(mail["Message-ID"])


@pytest.fixture
async def office(tmp_path: Path) -> AsyncIterator[Office]:
    async with AsyncExitStack() as stack:
        here = await stack.enter_async_context(desk(tmp_path / "data", gradio=False))
        admin = await here.add("ada", UserRole.ADMIN)
        agent = await here.add("ben", UserRole.AGENT)
        inbox = (await admin.post("/api/inboxes", json={"name": "Mail", "kind": "api", "bot": False})).json()["id"]
        await admin.put(f"/api/inboxes/{inbox}/members/{here.ids['ben']}")
        key = {"name": "mail bridge", "scopes": ["cases:read", "cases:write"]}
        made = await agent.post("/api/account/keys", json=key)
        imap, smtp = (
            await stack.enter_async_context(imap_server()),
            await stack.enter_async_context(smtp_server()),
        )
        environment = {
            "DESKMATE_URL": here.live.url,
            "DESKMATE_KEY": made.json()["key"],
            "DESKMATE_INBOX": inbox,
            "MAIL_ADDRESS": ADDRESS,
            "MAIL_NAME": "The shop",
            "MAIL_PASSWORD": PASSWORD,
            "MAIL_TLS": "off",
            "MAIL_STATE": str(tmp_path / "bridge.db"),
            "IMAP_HOST": "127.0.0.1",
            "IMAP_PORT": str(imap.port),
            "SMTP_HOST": "127.0.0.1",
            "SMTP_PORT": str(smtp.port),
        }
        opened = Office(here, agent, imap, smtp, environment)
        opened.put("From before the bridge: none of its business.")
        await opened.run_whole()
        yield opened


async def test_a_mail_becomes_a_case_and_the_reply_a_threaded_mail(office: Office) -> None:
    first = office.put("Where is it?\n\nEva")
    await office.run_whole()
    (case,) = await office.cases()
    contact = case["contact"]
    assert (contact["email"], contact["name"], contact["verified"]) == ("eva@example.org", "Eva", False)
    await office.reply(case["id"], "She is angry.", "notes")
    await office.reply(case["id"], "It comes on Friday: größer, schneller.\n.\nAda")
    await office.run_whole()
    await office.run_whole()
    (sent,) = office.smtp.mails
    assert office.smtp.recipients == ["eva@example.org"]
    assert (sent["From"], sent["Subject"]) == ("The shop <desk@shop.example>", "Re: My parcel")
    assert (sent["In-Reply-To"], sent["References"]) == (first, first)
    assert sent.get_content().split("\r\n")[:3] == ["It comes on Friday: größer, schneller.", ".", "Ada"]
    quoted = "Thanks!\n\nOn Friday, The shop\n<desk@shop.example> wrote:\n> It comes on Friday\n"
    second = office.put(quoted, In_Reply_To=sent["Message-ID"], References=f"{first} {sent['Message-ID']}")
    await office.reply(case["id"], "Good.")
    await office.run_whole()
    assert [message["text"] for message in await office.messages(case["id"])][-1] == "Thanks!"
    assert office.smtp.mails[1]["References"] == f"{first} {sent['Message-ID']} {second}"
    assert b"angry" not in b"".join(office.smtp.raw)


@pytest.mark.full
async def test_whatever_kills_it_no_mail_is_lost_and_one_is_sent_twice_only_where_smtp_cannot_tell(
    office: Office,
) -> None:
    office.put("Mail 0")
    await office.run_whole()
    (case,) = await office.cases()
    acts = list[str]()
    for number in range(1, 100):
        office.put(f"Mail {number}")
        await office.reply(case["id"], f"Reply {number}")
        code, act, log = await office.run(number)
        await office.run_whole()
        replies = [mail for mail in office.smtp.mails if mail.get_content().strip() == f"Reply {number}"]
        assert len({mail["Message-ID"] for mail in replies}) == 1, f"after {act}: {log}"
        assert len(replies) == 1 or act == "send_message"
        if code == 0:  # it had come to its end before
            break
        assert code == -signal.SIGKILL, log
        acts.append(act)
    assert {"uid", "urlopen", "send_message", "__exit__"} <= set(acts)
    texts = [message["text"] for message in await office.messages(case["id"]) if message["author"]["kind"] == "contact"]
    assert texts == [f"Mail {number}" for number in range(len(acts) + 2)]


@pytest.mark.full
async def test_machines_are_not_answered_and_their_mails_are_notes(office: Office) -> None:
    office.put("Hello?")
    await office.run_whole()
    (case,) = await office.cases()
    await office.reply(case["id"], "Yes?")
    await office.run_whole()
    ours = office.smtp.mails[0]["Message-ID"]
    office.put("I am away.", In_Reply_To=ours, Auto_Submitted="auto-replied")
    office.put(f"No such user.\n\nMessage-ID: {ours}", sender="MAILER-DAEMON@example.org")
    office.put("Buy!", Precedence="bulk", sender="shop@example.com")
    office.put("Our own, back again", sender=ADDRESS)
    await office.run_whole()
    assert len(await office.cases()) == 1
    notes = [message["text"] for message in await office.messages(case["id"]) if message["internal"]]
    assert [note.splitlines()[-1] for note in notes] == ["I am away.", f"Message-ID: {ours}"]
    assert len(office.smtp.raw) == 1


async def test_a_stranger_who_knows_an_id_does_not_reach_the_case(office: Office) -> None:
    id = office.put("A secret")
    await office.run_whole()
    office.put("What did she say?", sender="mallory@example.com", In_Reply_To=id)
    await office.run_whole()
    assert {case["contact"]["email"] for case in await office.cases()} == {"eva@example.org", "mallory@example.com"}


@pytest.mark.full
async def test_the_mailbox_numbered_anew_brings_no_message_twice(office: Office) -> None:
    office.put("Once")
    await office.run_whole()
    office.imap.validity = 2
    del office.imap.mails[1]
    await office.run_whole()
    (case,) = await office.cases()
    assert len(await office.messages(case["id"])) == 1


@pytest.mark.full
async def test_a_reply_that_no_server_takes_is_a_note_and_one_that_is_put_off_is_sent_later(office: Office) -> None:
    office.put("Hello?")
    await office.run_whole()
    (case,) = await office.cases()
    office.smtp.refusal = "450 Try again later"
    await office.reply(case["id"], "Here we are.")
    await office.run_whole()
    assert office.smtp.raw == []
    office.smtp.refusal = None
    await office.run_whole()
    assert len(office.smtp.raw) == 1
    office.smtp.refusal = "550 No such user"
    await office.reply(case["id"], "And again.")
    await office.run_whole()
    note = (await office.messages(case["id"]))[-1]
    assert note["internal"]
    assert note["text"] == "This reply was not mailed: 550 No such user"


async def test_what_deskmate_refuses_is_flagged_and_holds_up_no_other_mail(office: Office) -> None:
    id = office.put("One text")
    await office.run_whole()
    office.put("Another text with the same id")
    office.imap.mails[max(office.imap.mails)] = office.imap.mails[max(office.imap.mails)].replace(b"<2@", b"<1@")
    office.put("The next")
    log = await office.run_whole()
    assert id == "<1@example.org>"
    assert "Another message has this client_id" in log
    assert office.imap.flags == {3: r"\Flagged"}
    (case,) = await office.cases()
    assert [message["text"] for message in await office.messages(case["id"])] == ["One text", "The next"]


async def test_servers_that_are_away_or_refuse_the_password_lose_nothing(office: Office) -> None:
    office.put("Hello?")
    right = dict(office.environment)
    for wrong in ({"MAIL_PASSWORD": "no"}, {"DESKMATE_URL": "http://127.0.0.1:9"}, {"DESKMATE_KEY": "dmk_no"}):
        office.environment = right | wrong
        assert "receive:" in await office.run_whole()
    office.environment = right
    await office.run_whole()
    (case,) = await office.cases()
    await office.reply(case["id"], "Yes?")
    office.environment = right | {"SMTP_PORT": "9"}
    assert "send:" in await office.run_whole()
    office.environment = right
    await office.run_whole()
    assert len(office.smtp.raw) == 1


@pytest.fixture(scope="module")
def bridge() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mail_bridge", BRIDGE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


HTML = "Content-Type: text/html\n\n<head><style>p{}</style></head><p>One</p><p>two &amp; three<br>four"
PICTURE = "Content-Type: image/png; name*=utf-8''a%0ab.png\nContent-Transfer-Encoding: base64\n\nAAAA"


@pytest.mark.parametrize(
    ("mail", "text"),
    [
        ("\nHello\n\nOn Fri, 27 Nov 2026, Ann\n<ann@shop.example> wrote:\n> Hi\n>\n", "Hello"),
        ("\nNo: see below.\n> Is it blue?\nYes.\n", "No: see below.\n> Is it blue?\nYes."),
        ("\n> only a quote\n", "> only a quote"),
        ("\nNew\n\n-----Original Message-----\nFrom: Ann\n\nOld\n", "New"),
        (HTML, "One\ntwo & three\nfour"),
        ("Content-Type: text/plain; charset=no-such\n\nGr\udcfc\udcdfe", "Gr��e"),
        (PICTURE, "[File in the mailbox: a b.png, 0 KB]"),
    ],
)
def test_the_words_of_a_mail(bridge: ModuleType, mail: str, text: str) -> None:
    assert bridge.text_of(message_from_string(mail)) == text


@pytest.mark.parametrize("raw", ["=?no-such?q?x?=", "=?utf-8?b?!!?=", "a\r\n Bcc: x@y.example", "\udcff"])
def test_no_header_becomes_two(bridge: ModuleType, raw: str) -> None:
    mail = message_from_string(f"Subject: {raw}\n\n")
    words = bridge.header(mail, "Subject")
    assert "\n" not in words
    assert words.isprintable() or "�" in words


@pytest.mark.parametrize(
    ("raw", "name", "address"),
    [
        ("Eva <Eva@example.org>", "Eva", "eva@example.org"),
        ("=?utf-8?Q?M=C3=BCller=2C_Eva?= <eva@example.org>", "Müller, Eva", "eva@example.org"),
        ("=?utf-8?Q?ann=40shop.example?= <eva@example.org>", "ann@shop.example", "eva@example.org"),
        ("Eva =?utf-8?Q?=3Cann=40shop.example=3E?= <eva@example.org>", "Eva <ann@shop.example>", "eva@example.org"),
        ('"Miller, Eva"\r\n <eva@example.org>', "Miller, Eva", "eva@example.org"),
        ("nobody", "", "nobody"),
        ("", "", ""),
    ],
)
def test_a_mail_is_from_its_address_whatever_the_name_holds(
    bridge: ModuleType, raw: str, name: str, address: str
) -> None:
    assert bridge.sender_of(message_from_string(f"From: {raw}\n\n")) == (name, address)
