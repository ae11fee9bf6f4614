"""Webhooks: signed, sent at least once and with one id, whatever the receiver does."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta

import pytest

from app.cases import webhook_sender
from app.cases.webhook_sender import WebhookSender
from app.domain.webhooks import (
    MAX_FAILING_DAYS,
    MAX_LOST_CLAIMS,
    RETRY_SECONDS,
    SUSPECT_AFTER_LOST_CLAIMS,
    DeliveryStatus,
    DeliveryView,
    DisabledReason,
    WebhookView,
    check_url,
    sign,
)
from app.egress.policy import EgressPolicy
from app.errors import Conflict, InvalidInput, NotAllowed
from app.services.container import Services
from app.store.cases.delivery_queue import DeliveryQueue
from app.store.db.case_models import Webhook, WebhookDelivery
from app.store.maintenance.retention import Retention
from testing.webhook_receiver import Receiver, receiving
from tests.app.store.cases.support import SupportDesk, add_visitor, open_desk


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as one:
        yield one


@pytest.fixture
async def desk(services: Services) -> SupportDesk:
    return await open_desk(services, bot=False)


LOCAL = EgressPolicy.allowing(["127.0.0.1"])


def make_sender(desk: SupportDesk, policy: EgressPolicy = LOCAL, lease_seconds: float = 60.0) -> WebhookSender:
    return WebhookSender(DeliveryQueue(desk.database, lease_seconds), policy)


async def add_webhook(desk: SupportDesk, url: str, *events: str, inbox_id: str | None = None) -> tuple[str, str]:
    webhook, secret = await desk.cases.webhooks.create(desk.admin, url=url, inbox_id=inbox_id, events=events)
    return webhook.id, secret


async def the_delivery(desk: SupportDesk, webhook_id: str) -> DeliveryView:
    (delivery,) = await desk.cases.webhooks.deliveries(desk.admin, webhook_id)
    return delivery


async def make_due(desk: SupportDesk) -> None:
    """Time passes: what waits for its next attempt is due."""
    row = WebhookDelivery
    await desk.database.write(
        lambda session: (
            session.query(row).where(row.status == DeliveryStatus.PENDING).update({row.next_attempt_at: row.created_at})
        )
    )


async def test_what_is_told_is_signed_and_told_once(desk: SupportDesk, receiver: Receiver) -> None:
    webhook_id, secret = await add_webhook(desk, receiver.url)
    message, case = await desk.cases.contacts.write(desk.contact, "Where is my parcel?")
    sender = make_sender(desk)
    assert await sender.send_due() == 2
    assert await sender.send_due() == 0
    told = {json.loads(body)["event"]: (headers, body) for headers, body in receiver.requests}
    assert set(told) == {"case.created", "message.created"}
    headers, body = told["message.created"]
    assert json.loads(body)["message"]["text"] == "Where is my parcel?"
    assert json.loads(body)["case"]["id"] == case.id
    assert headers["webhook-id"] == message.id
    # As the specification's receivers check it.
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    key = base64.b64decode(secret.removeprefix("whsec_"))
    expected = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    assert headers["webhook-signature"] == f"v1,{expected}"
    deliveries = await desk.cases.webhooks.deliveries(desk.admin, webhook_id)
    assert {one.status for one in deliveries} == {DeliveryStatus.DELIVERED}


def test_the_specifications_own_example() -> None:
    signature = sign(
        ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"],
        "msg_p5jXN8AQM9LWM0D4loKWxJek",
        1614265330,
        b'{"test": 2432232314}',
    )
    assert signature == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


async def test_notes_and_other_inboxes_and_unwanted_events_are_not_told(desk: SupportDesk, receiver: Receiver) -> None:
    other = await desk.cases.inboxes.create(desk.admin, name="Shop", bot=False)
    await add_webhook(desk, receiver.url, inbox_id=other.id)
    await add_webhook(desk, receiver.url, "case.resolved")
    _, case = await desk.cases.contacts.write(desk.contact, "Hello?")
    await desk.cases.agents.note(desk.ann, case.id, "She called, too.")
    assert await make_sender(desk).send_due() == 0
    await desk.cases.agents.resolve(desk.ann, case.id)
    assert await make_sender(desk).send_due() == 1
    assert b"She called" not in receiver.requests[0][1]


async def test_a_reply_of_the_bot_that_a_person_cuts_short_is_told_once_with_what_there_is_of_it(
    services: Services, receiver: Receiver
) -> None:
    desk = await open_desk(services)
    await add_webhook(desk, receiver.url, "message.created")
    for text in ("It is on", ""):  # an empty one was never shown
        visitor = await add_visitor(desk.cases, desk.inbox)
        _, case = await desk.cases.contacts.write(visitor.contact.id, "Where is my parcel?")
        reply = await desk.cases.bot.begin_reply(case.id, case.epoch, model="guide")
        assert reply is not None
        if text:
            await desk.turns.checkpoint(reply.user_id, reply.turn_id, text)
        await desk.cases.agents.reply(desk.ann, case.id, "I am looking for it.")
    sender = make_sender(desk)
    while await sender.send_due():
        pass
    told = [json.loads(body) for _, body in receiver.requests]
    said = [(one["message"]["author"]["kind"], one["message"]["text"], one["message"]["status"]) for one in told]
    assert [one for one in said if one[0] == "bot"] == [("bot", "It is on", "stopped")]
    assert said.count(("agent", "I am looking for it.", "complete")) == 2


def _redirects(receiver: Receiver) -> None:
    receiver.answer = b"HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/\r\nContent-Length: 0\r\n\r\n"


def _refuses(receiver: Receiver) -> None:
    receiver.answer = b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n"


def _speaks_garbage(receiver: Receiver) -> None:
    receiver.answer = b"\x00\xff" * 100_000


def _hangs(receiver: Receiver) -> None:
    receiver.hangs = True


@pytest.mark.parametrize(
    ("trouble", "sentence"),
    [
        (_redirects, "a redirect, which is not followed"),
        (_refuses, "The receiver answered 500."),
        (_speaks_garbage, "The receiver cannot be reached"),
        (_hangs, "did not answer within"),
    ],
)
async def test_a_receiver_in_trouble_is_tried_again_with_the_same_id(
    desk: SupportDesk,
    receiver: Receiver,
    monkeypatch: pytest.MonkeyPatch,
    trouble: Callable[[Receiver], None],
    sentence: str,
) -> None:
    monkeypatch.setattr(webhook_sender, "TIMEOUT_SECONDS", 0.3 if trouble is _hangs else 5.0)
    webhook_id, _ = await add_webhook(desk, receiver.url, "case.created")
    usual = receiver.answer
    trouble(receiver)
    await desk.cases.contacts.write(desk.contact, "Hello?")
    sender = make_sender(desk)
    assert await sender.send_due() == 1
    delivery = await the_delivery(desk, webhook_id)
    assert delivery.status is DeliveryStatus.PENDING
    assert delivery.error is not None
    assert sentence in delivery.error
    assert await sender.send_due() == 0  # not before the time of the next attempt
    receiver.answer, receiver.hangs = usual, False
    await make_due(desk)
    assert await sender.send_due() == 1
    delivery = await the_delivery(desk, webhook_id)
    assert (delivery.status, delivery.attempts, delivery.error) == (DeliveryStatus.DELIVERED, 2, None)
    assert len({headers["webhook-id"] for headers, _ in receiver.requests}) == 1


async def test_one_that_never_answers_is_given_up_and_can_be_replayed(desk: SupportDesk, receiver: Receiver) -> None:
    webhook_id, _ = await add_webhook(desk, receiver.url, "case.created")
    _refuses(receiver)
    await desk.cases.contacts.write(desk.contact, "Hello?")
    sender = make_sender(desk)
    for _ in range(len(RETRY_SECONDS) + 1):
        assert await sender.send_due() == 1
        await make_due(desk)
    assert await sender.send_due() == 0
    failed = await the_delivery(desk, webhook_id)
    assert failed.status is DeliveryStatus.FAILED
    assert (await desk.cases.webhooks.all(desk.admin))[0].num_failed == 1
    receiver.answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    await desk.cases.webhooks.replay(desk.admin, webhook_id, failed.id)
    assert await sender.send_due() == 1
    assert (await the_delivery(desk, webhook_id)).status is DeliveryStatus.DELIVERED
    assert receiver.requests[-1][0]["webhook-id"] == failed.event_id


async def test_private_addresses_are_not_sent_to(desk: SupportDesk, receiver: Receiver) -> None:
    webhook_id, _ = await add_webhook(desk, receiver.url, "case.created")
    await desk.cases.contacts.write(desk.contact, "Hello?")
    await make_sender(desk, EgressPolicy()).send_due()
    assert receiver.requests == []
    assert "APP_EGRESS_ALLOW" in ((await the_delivery(desk, webhook_id)).error or "")


async def test_two_senders_share_the_work_and_a_killed_ones_is_made_again(
    desk: SupportDesk, receiver: Receiver
) -> None:
    await add_webhook(desk, receiver.url, "message.created")
    for number in range(12):
        await desk.cases.contacts.write(desk.contact, f"Question {number}?")
    killed = DeliveryQueue(desk.database, lease_seconds=0.0)
    assert len(await killed.claim(5)) == 5  # claimed, and never made
    senders = [make_sender(desk), make_sender(desk)]
    while sum(await asyncio.gather(*(sender.send_due() for sender in senders))):
        pass
    ids = [headers["webhook-id"] for headers, _ in receiver.requests]
    assert len(ids) == len(set(ids)) == 12


async def test_claims_that_kills_cut_short_use_up_no_attempt_and_each_waits_for_its_lease(
    desk: SupportDesk, receiver: Receiver
) -> None:
    webhook_id, _ = await add_webhook(desk, receiver.url, "case.created")
    await desk.cases.contacts.write(desk.contact, "Hello?")
    killed = DeliveryQueue(desk.database, lease_seconds=60.0)
    for _ in range(len(RETRY_SECONDS) + 1):
        assert len(await killed.claim(5)) == 1
        assert await killed.claim(5) == []  # no process makes it again and again at once
        await make_due(desk)
    _refuses(receiver)
    assert await make_sender(desk).send_due() == 1
    failed = await the_delivery(desk, webhook_id)
    assert (failed.status, failed.attempts) == (DeliveryStatus.PENDING, 1)
    assert failed.next_attempt_at is not None
    assert failed.next_attempt_at <= datetime.now(UTC) + timedelta(seconds=RETRY_SECONDS[0])


async def test_a_delivery_that_kills_each_server_is_given_up_alone_and_a_replay_begins_anew(
    desk: SupportDesk, receiver: Receiver
) -> None:
    webhook_id, _ = await add_webhook(desk, receiver.url, "message.created")
    for text in ("The one that kills.", "Another one.", "A third one."):
        await desk.cases.contacts.write(desk.contact, text)
    deadly = min(one.id for one in await desk.cases.webhooks.deliveries(desk.admin, webhook_id))
    queue = DeliveryQueue(desk.database, lease_seconds=60.0)
    claims: Counter[str] = Counter()

    async def is_killed() -> bool:
        """Whether a server claims the deadly delivery. It makes those that it claims before."""
        while due := await queue.claim(5):
            claims.update(one.id for one in due)
            if any(one.id == deadly for one in due):
                return True
            for one in due:
                await queue.delivered(one, 200)
        return False

    for _ in range(MAX_LOST_CLAIMS):
        assert await is_killed()
        await make_due(desk)
    assert not await is_killed()
    states = {one.id: one for one in await desk.cases.webhooks.deliveries(desk.admin, webhook_id)}
    failed = states.pop(deadly)
    assert (failed.status, failed.attempts, failed.next_attempt_at) == (DeliveryStatus.FAILED, 0, None)
    assert failed.error == "30 times in a row, the server stopped before an attempt to send this had ended."
    assert {one.status for one in states.values()} == {DeliveryStatus.DELIVERED}
    assert claims.pop(deadly) == MAX_LOST_CLAIMS
    assert set(claims.values()) == {SUSPECT_AFTER_LOST_CLAIMS + 1}, "it takes the others with it a few times only"
    await desk.cases.webhooks.replay(desk.admin, webhook_id, deadly)
    assert await make_sender(desk).send_due() == 1
    states = {one.id: one for one in await desk.cases.webhooks.deliveries(desk.admin, webhook_id)}
    assert states[deadly].status is DeliveryStatus.DELIVERED


async def test_only_claims_that_are_lost_in_a_row_count(desk: SupportDesk, receiver: Receiver) -> None:
    webhook_id, _ = await add_webhook(desk, receiver.url, "case.created")
    await desk.cases.contacts.write(desk.contact, "Hello?")
    queue = DeliveryQueue(desk.database, lease_seconds=60.0)
    for _ in range(2):
        for _ in range(MAX_LOST_CLAIMS - 1):
            assert len(await queue.claim(5)) == 1
            await make_due(desk)
        (due,) = await queue.claim(5)
        await queue.failed(due, "The receiver answered 500.", 500)
        await make_due(desk)
    assert len(await queue.claim(5)) == 1
    delivery = await the_delivery(desk, webhook_id)
    assert (delivery.status, delivery.attempts) == (DeliveryStatus.PENDING, 2)


@pytest.mark.parametrize("succeeds", [False, True])
@pytest.mark.parametrize("replayed", [False, True])
async def test_a_result_that_comes_after_another_claim_or_a_replay_is_void(
    desk: SupportDesk, receiver: Receiver, replayed: bool, succeeds: bool
) -> None:
    webhook_id, _ = await add_webhook(desk, receiver.url, "case.created")
    await desk.cases.contacts.write(desk.contact, "Hello?")
    queue = DeliveryQueue(desk.database, lease_seconds=60.0)
    (slow,) = await queue.claim(1)
    await make_due(desk)
    if replayed:
        await desk.cases.webhooks.replay(desk.admin, webhook_id, slow.id)
    else:
        assert len(await queue.claim(1)) == 1
    before = await the_delivery(desk, webhook_id)
    await (queue.delivered(slow, 200) if succeeds else queue.failed(slow, "Too late.", 500))
    assert await the_delivery(desk, webhook_id) == before
    assert (before.status, before.attempts, before.error) == (DeliveryStatus.PENDING, 0, None)
    (webhook,) = await desk.cases.webhooks.all(desk.admin)
    assert webhook.failing_since is None, "nor does it count against the webhook"


async def test_an_attempt_counts_when_it_ends_and_what_the_last_one_ended_with_is_not_shown_while_another_is_made(
    desk: SupportDesk, receiver: Receiver
) -> None:
    webhook_id, _ = await add_webhook(desk, receiver.url, "case.created")
    await desk.cases.contacts.write(desk.contact, "Hello?")
    queue = DeliveryQueue(desk.database, lease_seconds=60.0)
    shown = []
    for number in (1, 2):
        (due,) = await queue.claim(1)
        shown.append(await the_delivery(desk, webhook_id))
        if number == 1:
            await queue.failed(due, "The receiver answered 500.", 500)
        else:
            await queue.delivered(due, 204)
        shown.append(await the_delivery(desk, webhook_id))
        await make_due(desk)
    assert [(one.attempts, one.error, one.response_status, one.status) for one in shown] == [
        (0, None, None, DeliveryStatus.PENDING),
        (1, "The receiver answered 500.", 500, DeliveryStatus.PENDING),
        (1, None, None, DeliveryStatus.PENDING),
        (2, None, 204, DeliveryStatus.DELIVERED),
    ]


async def test_a_disabled_webhook_waits_and_a_deleted_one_is_gone(desk: SupportDesk, receiver: Receiver) -> None:
    webhook_id, _ = await add_webhook(desk, receiver.url, "case.created")
    await desk.cases.contacts.write(desk.contact, "Hello?")
    await desk.cases.webhooks.change(desk.admin, webhook_id, enabled=False)
    sender = make_sender(desk)
    assert await sender.send_due() == 0
    await desk.cases.webhooks.change(desk.admin, webhook_id, enabled=True)
    assert await sender.send_due() == 1
    await desk.cases.webhooks.delete(desk.admin, webhook_id)
    assert await desk.cases.webhooks.all(desk.admin) == []


async def test_only_admins_have_webhooks(desk: SupportDesk) -> None:
    for user in (desk.ann, desk.viewer, desk.stranger):
        with pytest.raises(NotAllowed):
            await desk.cases.webhooks.all(user)
        with pytest.raises(NotAllowed):
            await desk.cases.webhooks.create(user, url="https://example.com/", inbox_id=None, events=())


async def test_an_address_that_no_name_service_can_look_up_holds_up_no_other(
    desk: SupportDesk, receiver: Receiver
) -> None:
    wrong, _ = await add_webhook(desk, f"http://{'a' * 64}.example/", "case.created")
    right, _ = await add_webhook(desk, receiver.url, "case.created")
    await desk.cases.contacts.write(desk.contact, "Hello?")
    assert await make_sender(desk).send_due() == 2
    assert (await the_delivery(desk, right)).status is DeliveryStatus.DELIVERED
    failed = await the_delivery(desk, wrong)
    assert (failed.status, failed.attempts) == (DeliveryStatus.PENDING, 1)
    assert "no valid name" in (failed.error or "")


async def test_nothing_is_told_or_kept_of_a_contact_who_was_erased(desk: SupportDesk, receiver: Receiver) -> None:
    webhook_id, _ = await add_webhook(desk, receiver.url, "message.created")
    await desk.cases.contacts.write(desk.contact, "My secret")
    await desk.cases.contact_data.erase(desk.admin, desk.contact)
    assert await desk.cases.webhooks.deliveries(desk.admin, webhook_id) == []
    assert await make_sender(desk).send_due() == 0


async def test_nothing_is_kept_of_the_cases_of_a_deleted_inbox(desk: SupportDesk, receiver: Receiver) -> None:
    webhook_id, _ = await add_webhook(desk, receiver.url, "message.created")
    await desk.cases.contacts.write(desk.contact, "My secret")
    await desk.cases.inboxes.delete(desk.admin, desk.inbox.id)
    assert await desk.cases.webhooks.deliveries(desk.admin, webhook_id) == []


async def test_nothing_is_kept_of_a_case_that_its_retention_has_deleted(desk: SupportDesk, receiver: Receiver) -> None:
    """Also where that is shorter than the time for which deliveries are kept."""
    webhook_id, _ = await add_webhook(desk, receiver.url, "message.created")
    _, old = await desk.cases.contacts.write(desk.contact, "My secret")
    await desk.cases.agents.resolve(desk.ann, old.id)
    await make_sender(desk).send_due()
    await desk.cases.agents.reply(desk.ann, old.id, "One more thing")  # still to be told
    visitor = await add_visitor(desk.cases, desk.inbox)
    _, unresolved = await desk.cases.contacts.write(visitor.contact.id, "Hello?")
    limit = datetime.now(UTC) + timedelta(seconds=1)
    assert await Retention(desk.database).delete_older(limit) == 1
    left = await desk.cases.webhooks.deliveries(desk.admin, webhook_id)
    assert {one.case_id for one in left} == {unresolved.id}
    await make_sender(desk).send_due()
    assert b"One more thing" not in b"".join(body for _, body in receiver.requests)


async def the_webhook(desk: SupportDesk) -> WebhookView:
    (webhook,) = await desk.cases.webhooks.all(desk.admin)
    return webhook


def is_signed_by(secret: str, headers: dict[str, str], body: bytes) -> bool:
    expected = sign([secret], headers["webhook-id"], int(headers["webhook-timestamp"]), body)
    return expected in headers["webhook-signature"].split()


async def test_both_keys_sign_for_a_day_after_a_change(desk: SupportDesk, receiver: Receiver) -> None:
    webhook_id, before = await add_webhook(desk, receiver.url, "case.created")
    secret = await desk.cases.webhooks.renew_secret(desk.admin, webhook_id)
    await desk.cases.webhooks.send_test(desk.admin, webhook_id)
    await make_sender(desk).send_due()
    assert is_signed_by(secret, *receiver.requests[0])
    assert is_signed_by(before, *receiver.requests[0])
    yesterday = datetime.now(UTC) - timedelta(seconds=1)
    await desk.database.write(lambda session: session.query(Webhook).update({Webhook.previous_secret_until: yesterday}))
    await desk.cases.webhooks.send_test(desk.admin, webhook_id)
    await make_sender(desk).send_due()
    assert is_signed_by(secret, *receiver.requests[1])
    assert not is_signed_by(before, *receiver.requests[1])


async def test_a_test_is_told_once_whatever_the_webhook_is_told_of(desk: SupportDesk, receiver: Receiver) -> None:
    webhook_id, _ = await add_webhook(desk, receiver.url, "case.resolved")
    _refuses(receiver)
    sent = await desk.cases.webhooks.send_test(desk.admin, webhook_id)
    assert await make_sender(desk).send_due() == 1
    failed = await the_delivery(desk, webhook_id)
    assert (failed.status, failed.next_attempt_at, failed.response_status) == (DeliveryStatus.FAILED, None, 500)
    assert json.loads(receiver.requests[0][1])["event"] == "webhook.test"
    assert receiver.requests[0][0]["webhook-id"] == sent.event_id
    await desk.cases.webhooks.change(desk.admin, webhook_id, enabled=False)
    with pytest.raises(Conflict, match="off"):
        await desk.cases.webhooks.send_test(desk.admin, webhook_id)


async def test_since_when_a_webhook_fails_is_told_until_an_attempt_succeeds(
    desk: SupportDesk, receiver: Receiver
) -> None:
    webhook_id, _ = await add_webhook(desk, receiver.url, "case.created")
    usual = receiver.answer
    _refuses(receiver)
    await desk.cases.contacts.write(desk.contact, "Hello?")
    await make_sender(desk).send_due()
    since = (await the_webhook(desk)).failing_since
    assert since is not None
    await make_due(desk)
    await make_sender(desk).send_due()
    failing = await the_webhook(desk)
    assert (failing.failing_since, failing.failure) == (since, "The receiver answered 500.")
    receiver.answer = usual
    await make_due(desk)
    await make_sender(desk).send_due()
    working = await the_webhook(desk)
    assert (working.failing_since, working.failure, working.enabled) == (None, None, True)
    # A new address begins anew.
    _refuses(receiver)
    await desk.cases.webhooks.send_test(desk.admin, webhook_id)
    await make_sender(desk).send_due()
    assert (await the_webhook(desk)).failing_since is not None
    changed = await desk.cases.webhooks.change(desk.admin, webhook_id, url=f"{receiver.url}/new")
    assert changed.failing_since is None


async def test_a_receiver_that_is_gone_is_sent_nothing_more_until_an_admin_says_so(
    desk: SupportDesk, receiver: Receiver
) -> None:
    webhook_id, _ = await add_webhook(desk, receiver.url, "message.created")
    receiver.answer = b"HTTP/1.1 410 Gone\r\nContent-Length: 0\r\n\r\n"
    await desk.cases.contacts.write(desk.contact, "Hello?")
    await make_sender(desk).send_due()
    gone = await the_webhook(desk)
    assert (gone.enabled, gone.disabled_reason) == (False, DisabledReason.GONE)
    assert gone.disabled_at is not None
    await make_due(desk)
    assert await make_sender(desk).send_due() == 0
    again = await desk.cases.webhooks.change(desk.admin, webhook_id, enabled=True)
    assert (again.enabled, again.disabled_at, again.disabled_reason, again.failing_since) == (True, None, None, None)
    off = await desk.cases.webhooks.change(desk.admin, webhook_id, enabled=False)
    assert off.disabled_reason is DisabledReason.ADMIN


async def test_one_that_fails_for_days_is_disabled_when_a_delivery_is_given_up_and_not_before(
    desk: SupportDesk, receiver: Receiver
) -> None:
    webhook_id, _ = await add_webhook(desk, receiver.url, "case.created")
    _refuses(receiver)
    await desk.cases.webhooks.send_test(desk.admin, webhook_id)
    await make_sender(desk).send_due()
    assert (await the_webhook(desk)).enabled  # one failed test is no reason
    long_ago = datetime.now(UTC) - timedelta(days=MAX_FAILING_DAYS)
    await desk.database.write(lambda session: session.query(Webhook).update({Webhook.failing_since: long_ago}))
    await desk.cases.contacts.write(desk.contact, "Hello?")
    for _ in range(len(RETRY_SECONDS)):
        await make_sender(desk).send_due()
        await make_due(desk)
        assert (await the_webhook(desk)).enabled
    await make_sender(desk).send_due()
    disabled = await the_webhook(desk)
    assert (disabled.enabled, disabled.disabled_reason) == (False, DisabledReason.FAILING)
    assert disabled.failure == "The receiver answered 500."


@pytest.mark.parametrize(
    "url",
    ["", "example.com", "ftp://example.com", "https://", "https://a:b@example.com", "http://[::1", "https://a\nb"],
)
def test_addresses_that_cannot_be_posted_to(url: str) -> None:
    with pytest.raises(InvalidInput):
        check_url(url)
