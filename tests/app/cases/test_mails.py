"""Replies by e-mail to visitors who have gone: once, quiet, to one address, whatever the server of mail does."""

from __future__ import annotations

import asyncio
import smtplib
import socket
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import Delete, Update, column, func, select, table, update
from sqlalchemy.orm import Session

from app.cases import mail_sender
from app.cases.mail_sender import MailSender
from app.domain.case_views import CaseEventView
from app.domain.cases import CaseEventKind
from app.domain.reply_mails import MAX_AGE, RETRY_SECONDS, MailServer, MailTls, ReplyMailStatus
from app.errors import NotAllowed
from app.services.container import Services
from app.store.cases import reply_mails
from app.store.cases.agent_cases import AgentCases
from app.store.cases.reply_mails import ReplyMails
from app.store.db.case_models import Contact, ReplyMail
from app.store.db.rows import change_rows
from testing.mail_servers import PASSWORD, USER, SmtpServer, smtp_server
from testing.waiting import eventually
from tests.app.store.cases.support import SupportDesk, add_visitor, open_desk
from tests.app.two_processes import until

DELAY = timedelta(minutes=10)


@pytest.fixture
async def smtp() -> AsyncIterator[SmtpServer]:
    async with smtp_server() as server:
        yield server


@pytest.fixture
async def desk(services: Services) -> SupportDesk:
    opened = await open_desk(services, bot=False)
    agents = AgentCases(opened.database, opened.cases.signals, max_message_chars=1000, mail_delay=DELAY)
    return replace(opened, cases=replace(opened.cases, agents=agents))


def sender(
    desk: SupportDesk, smtp: SmtpServer, password: str = PASSWORD, lease_seconds: float = 600, tls: MailTls = "none"
) -> MailSender:
    mails = ReplyMails(desk.database, desk.cases.signals, lease_seconds=lease_seconds)
    server = MailServer(
        host="127.0.0.1",
        port=smtp.port,
        tls=tls,
        sender=f"The shop <{USER}>",
        user=USER,
        password=password,
        delay=DELAY,
    )
    return MailSender(mails, server)


async def a_case(desk: SupportDesk, email: str | None = "eva@example.org", language: str | None = None) -> str:
    """A visitor with an address has written."""
    contact = update(Contact).where(Contact.id == desk.contact).values(email=email, language=language)
    await desk.database.write(lambda session: session.execute(contact))
    _, case = await desk.cases.contacts.write(desk.contact, "Where is it?")
    return case.id


async def let_time_pass(desk: SupportDesk, by: timedelta = DELAY, *, of_new_ones: bool = False) -> None:
    """Time passes.

    Args:
        of_new_ones: of replies that no mail has yet. The row of a mail that is being sent is only changed by its claim.
    """
    rows = select(ReplyMail).where(ReplyMail.mail_id.is_(None)) if of_new_ones else select(ReplyMail)

    def work(session: object) -> None:
        for row in session.scalars(rows):  # type: ignore[attr-defined]
            row.next_attempt_at -= by
            row.created_at -= by

    await desk.database.write(work)


async def send_all(one: MailSender) -> int:
    sent = 0
    while await one.send_due():
        sent += 1
    return sent


async def statuses(desk: SupportDesk) -> list[str]:
    rows = select(ReplyMail.status).order_by(ReplyMail.message_id)
    return await desk.database.read(lambda session: list(session.scalars(rows)))


async def numbers_of_attempts(desk: SupportDesk) -> list[int]:
    rows = select(ReplyMail.attempts).order_by(ReplyMail.message_id)
    return await desk.database.read(lambda session: list(session.scalars(rows)))


async def told(desk: SupportDesk, case_id: str) -> list[CaseEventView]:
    events = (await desk.cases.details.get(desk.ann, case_id)).events
    return [event for event in events if event.kind in (CaseEventKind.MAILED, CaseEventKind.MAIL_FAILED)]


async def test_replies_are_mailed_once_together_after_a_quiet_time_and_the_case_says_so(
    desk: SupportDesk, smtp: SmtpServer
) -> None:
    case_id = await a_case(desk, language="de-AT")
    one = sender(desk, smtp)
    await desk.cases.agents.reply(desk.ann, case_id, "It comes on Friday.")
    assert not await one.send_due()
    await let_time_pass(desk, DELAY / 2)
    await desk.cases.agents.note(desk.ann, case_id, "She is angry.")
    await desk.cases.agents.reply(desk.bob, case_id, "By post. Größe: 5")
    await let_time_pass(desk, DELAY / 2)
    assert not await one.send_due()  # the last one may still be read
    await let_time_pass(desk)
    assert await send_all(one) == 1
    assert await send_all(one) == 0
    (mail,) = smtp.mails
    assert smtp.recipients == ["eva@example.org"]
    assert (mail["To"], mail["Subject"]) == ("eva@example.org", "Eine Antwort von Website")
    assert mail["From"] == f"The shop <{USER}>"
    assert mail["Auto-Submitted"] == "auto-generated"
    lines = mail.get_content().splitlines()
    assert lines[:5] == ["Website hat Ihnen im Chat geantwortet:", "", "It comes on Friday.", "", "By post. Größe: 5"]
    assert "Bitte antworten Sie nicht" in mail.get_content()
    assert b"angry" not in smtp.raw[0]
    (event,) = await told(desk, case_id)
    assert (event.kind, event.details) == (CaseEventKind.MAILED, {"email": "eva@example.org"})


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
@pytest.mark.parametrize("fails", [True, False], ids=["fails", "is released"])
async def test_no_other_process_claims_a_mail_while_the_time_of_its_next_attempt_is_written(
    desk: SupportDesk, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    await desk.cases.agents.reply(desk.ann, await a_case(desk), "It comes on Friday.")
    await let_time_pass(desk)
    mails = ReplyMails(desk.database, desk.cases.signals, lease_seconds=0.0)  # another claim may come at any time
    due = await mails.claim()
    assert due is not None
    written, go = threading.Event(), threading.Event()

    def change_slowly(session: Session, statement: Update | Delete) -> int:
        changed = change_rows(session, statement)
        written.set()
        go.wait(timeout=30)
        return changed

    monkeypatch.setattr(reply_mails, "change_rows", change_slowly)
    ending = asyncio.create_task(mails.failed(due, "Busy.", for_good=False) if fails else mails.release(due))
    assert await asyncio.to_thread(written.wait, 30)
    claim = asyncio.create_task(mails.claim())
    waiting = select(func.count()).select_from(table("pg_locks")).where(~column("granted"))

    async def has_ended_or_waits() -> bool:
        return claim.done() or bool(await desk.database.read(lambda session: session.scalar(waiting)))

    await until(has_ended_or_waits)
    go.set()
    await ending
    assert await claim is None
    again = await mails.claim()
    assert (again is None) is fails, "one that has failed waits"
    assert await numbers_of_attempts(desk) == [int(fails)]


async def test_what_is_read_or_answered_in_the_widget_is_not_mailed(desk: SupportDesk, smtp: SmtpServer) -> None:
    case_id = await a_case(desk)
    first, _ = await desk.cases.agents.reply(desk.ann, case_id, "One")
    second, _ = await desk.cases.agents.reply(desk.ann, case_id, "Two")
    other = await add_visitor(desk.cases, desk.inbox)
    for reader, message in ((other.contact.id, second.id), (desk.contact, "nothing"), (desk.contact, first.id)):
        await desk.cases.mails.read(reader, message)
    assert await statuses(desk) == ["read", "pending"]
    await desk.cases.contacts.write(desk.contact, "Thanks!")
    await let_time_pass(desk)
    assert await send_all(sender(desk, smtp)) == 0
    assert await statuses(desk) == ["read", "read"]
    assert smtp.raw == []


async def test_without_an_address_and_in_an_inbox_of_programs_nothing_is_mailed(
    desk: SupportDesk, smtp: SmtpServer
) -> None:
    case_id = await a_case(desk, email=None)
    await desk.cases.agents.reply(desk.ann, case_id, "One")
    await let_time_pass(desk)
    assert await send_all(sender(desk, smtp)) == 0
    assert await statuses(desk) == [ReplyMailStatus.NO_ADDRESS]
    programs = await desk.cases.inboxes.create(desk.admin, name="Mail", kind="api", bot=False)
    visitor = await add_visitor(desk.cases, programs)
    _, case = await desk.cases.contacts.write(visitor.contact.id, "By mail")
    await desk.cases.agents.reply(desk.admin, case.id, "Two")
    assert len(await statuses(desk)) == 1


@pytest.mark.parametrize("address", ["a@b.example\nBcc: c@d.example", "a@b.example, c@d.example", "<a@b.example>", "a"])
async def test_an_address_that_is_none_is_told_and_gets_nothing(
    desk: SupportDesk, smtp: SmtpServer, address: str
) -> None:
    case_id = await a_case(desk, email=address)
    await desk.cases.agents.reply(desk.ann, case_id, "One")
    await let_time_pass(desk)
    assert await send_all(sender(desk, smtp)) == 1
    assert smtp.raw == []
    (event,) = await told(desk, case_id)
    assert event.kind is CaseEventKind.MAIL_FAILED
    assert "no address" in event.details["error"]


@pytest.mark.parametrize(
    ("trouble", "sentence"),
    [
        ("password", "does not accept APP_MAIL_USER and APP_MAIL_PASSWORD"),
        ("hangs", "did not answer within"),
        ("450 Later", "answered 450 Later"),
        ("away", "cannot be reached"),
        ("breaks", "unexpectedly closed"),
    ],
)
async def test_a_server_in_trouble_is_tried_again_and_admins_see_why(
    desk: SupportDesk, smtp: SmtpServer, monkeypatch: pytest.MonkeyPatch, trouble: str, sentence: str
) -> None:
    monkeypatch.setattr(mail_sender, "TIMEOUT_SECONDS", 0.5 if trouble == "hangs" else 15.0)
    case_id = await a_case(desk)
    await desk.cases.agents.reply(desk.ann, case_id, "One")
    await let_time_pass(desk)
    one = sender(desk, smtp, password="wrong" if trouble == "password" else PASSWORD)
    port = smtp.port
    smtp.hangs, smtp.breaks_after_data = trouble == "hangs", trouble == "breaks"
    smtp.refusal = trouble if trouble.startswith("450") else None
    if trouble == "away":
        smtp.port = 9
        one = sender(desk, smtp)
    assert await send_all(one) == 1
    status = await desk.cases.mails.status(desk.admin)
    assert status.error is not None
    assert sentence in status.error
    assert (status.num_pending, status.last_sent_at) == (1, None)
    assert await told(desk, case_id) == []
    smtp.port, smtp.hangs, smtp.refusal, smtp.breaks_after_data = port, False, None, False
    await let_time_pass(desk, timedelta(seconds=RETRY_SECONDS[0]))
    assert await send_all(sender(desk, smtp)) == 1
    assert len({mail["Message-ID"] for mail in smtp.mails}) == 1
    assert len(smtp.raw) == (2 if trouble == "breaks" else 1)  # SMTP cannot be asked
    assert [event.kind for event in await told(desk, case_id)] == [CaseEventKind.MAILED]
    assert (await desk.cases.mails.status(desk.admin)).error is None


async def test_a_refusal_for_good_is_told_once_and_endless_trouble_ends(desk: SupportDesk, smtp: SmtpServer) -> None:
    case_id = await a_case(desk)
    smtp.refusal = "550 No such user"
    await desk.cases.agents.reply(desk.ann, case_id, "One")
    await let_time_pass(desk)
    assert await send_all(sender(desk, smtp)) == 1
    (event,) = await told(desk, case_id)
    assert event.details == {"email": "eva@example.org", "error": "The server of mail answered 550 No such user"}
    smtp.refusal = "450 Later"
    await desk.cases.agents.reply(desk.ann, case_id, "Two")
    await let_time_pass(desk)
    for wait in (*RETRY_SECONDS, 0):
        assert await send_all(sender(desk, smtp)) == 1
        await let_time_pass(desk, timedelta(seconds=wait))
    assert await send_all(sender(desk, smtp)) == 0
    assert [event.kind for event in await told(desk, case_id)] == [CaseEventKind.MAIL_FAILED] * 2


async def test_a_claim_of_one_who_was_killed_is_sent_by_another_with_the_same_replies_and_id(
    desk: SupportDesk, smtp: SmtpServer
) -> None:
    case_id = await a_case(desk)
    await desk.cases.agents.reply(desk.ann, case_id, "One")
    await let_time_pass(desk)
    killed = await ReplyMails(desk.database, desk.cases.signals, lease_seconds=0).claim()
    assert killed is not None
    await desk.cases.agents.reply(desk.ann, case_id, "Two")
    await let_time_pass(desk)
    assert await send_all(sender(desk, smtp)) == 2
    first, second = smtp.mails
    assert first["Message-ID"] == f"<{killed.id}.deskmate@shop.example>" != second["Message-ID"]
    assert "Two" not in first.get_content()
    assert "One" not in second.get_content()
    await desk.cases.mails.sent(killed)  # it was not killed, only slow: nothing is told twice
    assert len(await told(desk, case_id)) == 2


async def test_claims_that_kills_cut_short_use_up_no_attempt_and_each_waits_for_its_lease(
    desk: SupportDesk, smtp: SmtpServer
) -> None:
    case_id = await a_case(desk)
    await desk.cases.agents.reply(desk.ann, case_id, "One")
    await let_time_pass(desk)
    lease = timedelta(minutes=10)
    killed = ReplyMails(desk.database, desk.cases.signals, lease_seconds=lease.total_seconds())
    claims = []
    for _ in range(len(RETRY_SECONDS) + 1):
        claims.append(await killed.claim())
        assert await killed.claim() is None  # no process sends it again and again at once
        await let_time_pass(desk, lease)
    assert len({claim.id for claim in claims if claim is not None}) == 1
    smtp.refusal = "450 Later"
    assert await send_all(sender(desk, smtp)) == 1
    assert await statuses(desk) == [ReplyMailStatus.PENDING]
    assert await told(desk, case_id) == []
    smtp.refusal = None
    await let_time_pass(desk, timedelta(seconds=RETRY_SECONDS[0]))
    assert await send_all(sender(desk, smtp)) == 1
    assert await numbers_of_attempts(desk) == [2]
    assert len(smtp.mails) == 1


async def test_a_server_that_is_killed_after_each_hand_over_sends_it_again_only_until_the_reply_is_too_old(
    desk: SupportDesk, smtp: SmtpServer
) -> None:
    case_id = await a_case(desk)
    await desk.cases.agents.reply(desk.ann, case_id, "One")
    await let_time_pass(desk)
    lease = timedelta(hours=6)
    killed, num_claims = ReplyMails(desk.database, desk.cases.signals, lease_seconds=lease.total_seconds()), 0
    while await killed.claim() is not None:
        num_claims += 1
        assert num_claims <= MAX_AGE / lease
        await let_time_pass(desk, lease)
    assert await statuses(desk) == [ReplyMailStatus.FAILED]
    assert [event.kind for event in await told(desk, case_id)] == [CaseEventKind.MAIL_FAILED]


@pytest.mark.parametrize("end", ["sent", "failed", "refused", "released"])
async def test_a_result_that_comes_after_another_claim_is_void(desk: SupportDesk, end: str) -> None:
    case_id = await a_case(desk)
    await desk.cases.agents.reply(desk.ann, case_id, "One")
    await let_time_pass(desk)
    mails = ReplyMails(desk.database, desk.cases.signals, lease_seconds=DELAY.total_seconds())
    slow = await mails.claim()
    await let_time_pass(desk)
    second = await mails.claim()
    assert slow is not None
    assert second is not None
    if end == "sent":
        await mails.sent(slow)
    elif end == "released":
        await mails.release(slow)
    else:
        await mails.failed(slow, "Too late.", for_good=end == "refused")
    assert await mails.claim() is None  # it is not due: the second one sends it
    assert await statuses(desk) == [ReplyMailStatus.PENDING]
    assert await told(desk, case_id) == []
    await mails.sent(second)
    assert await numbers_of_attempts(desk) == [1]
    assert [event.kind for event in await told(desk, case_id)] == [CaseEventKind.MAILED]


async def test_a_mail_that_is_taken_while_the_process_stops_is_told_and_not_sent_again(
    desk: SupportDesk, smtp: SmtpServer
) -> None:
    case_id = await a_case(desk)
    await desk.cases.agents.reply(desk.ann, case_id, "One")
    await let_time_pass(desk)
    smtp.takes = asyncio.Event()
    one = sender(desk, smtp)
    sending = asyncio.create_task(one.send_due())
    await eventually(lambda: len(smtp.raw) == 1)
    await desk.cases.agents.reply(desk.ann, case_id, "Two")
    await let_time_pass(desk, of_new_ones=True)
    closing = asyncio.create_task(one.close(60))
    await asyncio.sleep(0)
    smtp.takes.set()
    await closing
    assert await sending
    assert not await one.send_due()  # the next start sends what is due now
    assert await statuses(desk) == [ReplyMailStatus.SENT, ReplyMailStatus.PENDING]
    assert len(smtp.raw) == len(await told(desk, case_id)) == 1


@pytest.mark.parametrize("has_it", [False, True])
async def test_a_process_that_stops_waits_for_no_server_that_hangs_and_the_next_start_sends_the_mail(
    desk: SupportDesk, smtp: SmtpServer, has_it: bool
) -> None:
    case_id = await a_case(desk)
    await desk.cases.agents.reply(desk.ann, case_id, "One")
    await let_time_pass(desk)
    smtp.hangs, smtp.takes = not has_it, asyncio.Event() if has_it else None
    one = sender(desk, smtp)
    sending = asyncio.create_task(one.send_due())
    await eventually(lambda: len(smtp.raw) == has_it and smtp.num_connections == 1)
    await one.close(0)
    await sending
    assert await statuses(desk) == [ReplyMailStatus.PENDING]
    assert (await desk.cases.mails.status(desk.admin)).error is None
    smtp.hangs, smtp.takes = False, None
    assert await send_all(sender(desk, smtp)) == 1  # at once: it waits neither for a lease nor for another attempt
    assert len({mail["Message-ID"] for mail in smtp.mails}) == 1
    assert len(smtp.raw) == (2 if has_it else 1)  # SMTP cannot be asked
    assert [event.kind for event in await told(desk, case_id)] == [CaseEventKind.MAILED]


async def test_a_process_that_stops_while_a_connection_is_encrypted_sends_nothing_after_it(
    desk: SupportDesk, smtp: SmtpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its socket is another one then, which nothing shut down."""
    begun, goes_on, ended = threading.Event(), threading.Event(), threading.Event()

    def encrypt_slowly(client: smtplib.SMTP, **_: object) -> None:
        begun.set()
        assert goes_on.wait(30)
        client.sock, client.file = socket.create_connection(("127.0.0.1", smtp.port)), None
        client.getreply()
        client.ehlo()

    def end(attempt: mail_sender._Attempt, error: Exception | None) -> None:
        ended.set()
        original(attempt, error)

    original = mail_sender._Attempt._end
    monkeypatch.setattr(mail_sender._Attempt, "_end", end)
    monkeypatch.setattr(smtplib.SMTP, "starttls", encrypt_slowly)
    case_id = await a_case(desk)
    await desk.cases.agents.reply(desk.ann, case_id, "One")
    await let_time_pass(desk)
    one = sender(desk, smtp, tls="starttls")
    sending = asyncio.create_task(one.send_due())
    await asyncio.to_thread(begun.wait, 30)
    await one.close(0)
    await sending
    goes_on.set()
    assert await asyncio.to_thread(ended.wait, 30)
    assert smtp.raw == []
    assert await statuses(desk) == [ReplyMailStatus.PENDING]


async def test_processes_that_look_at_once_send_a_mail_once(desk: SupportDesk, smtp: SmtpServer) -> None:
    case_id = await a_case(desk)
    for number in range(3):
        await desk.cases.agents.reply(desk.ann, case_id, f"Reply {number}")
    await let_time_pass(desk)
    await asyncio.gather(*(send_all(sender(desk, smtp)) for _ in range(4)))
    assert len(smtp.raw) == 1
    assert len(await told(desk, case_id)) == 1


async def test_a_reply_from_before_a_long_stop_is_not_mailed_any_more(desk: SupportDesk, smtp: SmtpServer) -> None:
    case_id = await a_case(desk)
    await desk.cases.agents.reply(desk.ann, case_id, "One")
    await let_time_pass(desk, timedelta(days=3))
    assert await send_all(sender(desk, smtp)) == 0
    assert smtp.raw == []
    assert [event.kind for event in await told(desk, case_id)] == [CaseEventKind.MAIL_FAILED]


async def test_only_admins_see_the_outbox(desk: SupportDesk) -> None:
    for user in (desk.ann, desk.viewer, desk.stranger):
        with pytest.raises(NotAllowed):
            await desk.cases.mails.status(user)
    assert (await desk.cases.mails.status(desk.admin)).num_pending == 0
