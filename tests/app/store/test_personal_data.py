"""What is stored of people, on both databases; and from where somebody comes, behind a proxy too."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session
from starlette.responses import Response

from app.auth.client_address import TrustedProxies
from app.auth.cookies import SessionCookie
from app.auth.headers import SecurityHeaders
from app.domain.accounts import Purpose, Scope
from app.domain.ids import LOCAL_USER_ID, new_id
from app.domain.roles import UserRole
from app.errors import Conflict, NotFound
from app.services.container import Services
from app.store.accounts import api_keys, login_sessions
from app.store.accounts import invitations as invitations_module
from app.store.accounts.accounts import AccountRecords
from app.store.accounts.api_keys import ApiKeys
from app.store.accounts.invitations import Invitations
from app.store.accounts.login_sessions import LoginSessions
from app.store.accounts.personal_data import DeletionPreview, UserDataRecords
from app.store.accounts.token_use import TokenUsageRecords
from app.store.db.desk_models import ReplyDraft
from app.store.db.knowledge_models import KNOWLEDGE_COLLECTION_ID, Article, Question
from app.store.db.models import Conversation
from app.store.db.sign_in_models import LoginSession

HOUR = timedelta(hours=1)


async def use(invitations: Invitations, token: str, name: str, *, history: bool = False) -> Any:
    return await invitations.use(token, "hash", name=name, display_name=None, with_history=history)


async def test_the_first_admin_is_one_though_two_come_at_once(services: Services) -> None:
    invitations, accounts = Invitations(services.database), AccountRecords(services.database)
    assert await invitations.let_set_up("a", lifetime=HOUR)
    assert await invitations.let_set_up("b", lifetime=HOUR)
    link = await invitations.look("a")
    assert (link.purpose, link.role) == (Purpose.SETUP, UserRole.ADMIN)
    made = await asyncio.gather(use(invitations, "a", "one"), use(invitations, "b", "two"), return_exceptions=True)
    assert sorted(isinstance(one, Conflict) for one in made) == [False, True]
    assert [person.role for person in await accounts.list()] == [UserRole.ADMIN]
    assert not await invitations.let_set_up("c", lifetime=HOUR)


async def test_a_link_is_used_once_though_two_use_it_at_once(services: Services) -> None:
    invitations, accounts = Invitations(services.database), AccountRecords(services.database)
    await invitations.let_set_up("a", lifetime=HOUR)
    admin = await use(invitations, "a", "admin")
    await invitations.invite("b", UserRole.VIEWER, actor_id=admin.id, lifetime=HOUR)
    made = await asyncio.gather(use(invitations, "b", "one"), use(invitations, "b", "two"), return_exceptions=True)
    assert sorted(isinstance(one, NotFound) for one in made) == [False, True]
    assert sorted(person.role for person in await accounts.list()) == [UserRole.ADMIN, UserRole.VIEWER]
    await invitations.invite("d", UserRole.AGENT, actor_id=admin.id, lifetime=-HOUR)
    with pytest.raises(NotFound):
        await use(invitations, "d", "late")
    with pytest.raises(Conflict):
        await accounts.create("admin", "Admin", UserRole.AGENT, "hash")


async def test_what_was_said_before_changes_hands(services: Services) -> None:
    invitations, accounts = Invitations(services.database), AccountRecords(services.database)
    admin = await accounts.create("admin", "Admin", UserRole.ADMIN, "hash")
    now = datetime.now(UTC)

    def conversation(user_id: str, origin: str | None) -> Conversation:
        return Conversation(
            id=new_id(), user_id=user_id, title="t", settings={}, imported_from=origin, created_at=now, updated_at=now
        )

    both = [conversation(LOCAL_USER_ID, "chatgpt 1"), conversation(LOCAL_USER_ID, "chatgpt 2")]
    both += [conversation(LOCAL_USER_ID, None), conversation(admin.id, "chatgpt 1")]
    await services.database.write(lambda session: session.add_all(both))
    assert await invitations.local_conversations() == 3
    assert await invitations.take_over(admin.id) == 3
    assert await invitations.local_conversations() == 0
    theirs = sa.select(Conversation.imported_from).where(Conversation.user_id == admin.id)
    found = await services.database.read(lambda session: list(session.scalars(theirs)))
    assert sorted(found, key=str) == [None, None, "chatgpt 1", "chatgpt 2"]
    assert len((await services.conversations.list(admin.id)).items) == 4


async def test_two_admins_do_not_disable_each_other(services: Services) -> None:
    accounts = AccountRecords(services.database)
    one = await accounts.create("one", "One", UserRole.ADMIN, "hash")
    two = await accounts.create("two", "Two", UserRole.ADMIN, "hash")
    done = await asyncio.gather(
        accounts.set_disabled(one.id, True, actor_id=two.id),
        accounts.set_disabled(two.id, True, actor_id=one.id),
        return_exceptions=True,
    )
    assert sorted(isinstance(each, Conflict) for each in done) == [False, True]
    assert await accounts.has_admin()


async def test_sessions_hold_until_they_end(services: Services) -> None:
    accounts, sessions = AccountRecords(services.database), LoginSessions(services.database, days=14)
    person = await accounts.create("one", "One", UserRole.AGENT, "hash")
    ids = [await sessions.create(person.id, token, user_agent="x" * 500, address="::1") for token in "abc"]
    known = await sessions.find("a")
    assert known is not None
    assert (known.id, known.user_id, known.role) == (ids[0], person.id, UserRole.AGENT)
    assert await sessions.find("d") is None
    await services.database.write(
        lambda session: session.execute(
            sa.update(LoginSession).where(LoginSession.id == ids[1]).values(expires_at=datetime.now(UTC))
        )
    )
    assert await sessions.find_valid(ids) == {ids[0], ids[2]}
    await accounts.set_password(person.id, "other", except_session=ids[2])
    assert await sessions.find_valid(ids) == {ids[2]}
    await accounts.set_disabled(person.id, True, actor_id=None)
    await accounts.set_disabled(person.id, False, actor_id=None)
    assert await sessions.find_valid(ids) == set()


async def test_keys_sessions_and_invitations_have_a_number(
    services: Services, monkeypatch: pytest.MonkeyPatch, stranger: str
) -> None:
    """On both databases, also where many are made at once."""
    for module in (api_keys, login_sessions, invitations_module):
        for name in ("MAX_KEYS", "MAX_SESSIONS", "MAX_INVITATIONS"):
            monkeypatch.setattr(module, name, 3, raising=False)
    accounts, keys = AccountRecords(services.database), ApiKeys(services.database)
    sessions, invitations = LoginSessions(services.database, days=14), Invitations(services.database)
    person = await accounts.create("one", "One", UserRole.ADMIN, "hash")

    async def key(user_id: str, token: str) -> None:
        await keys.create(user_id, token, name="k", beginning="dmk_", scopes={Scope.CHAT}, expires_at=None)

    made = await asyncio.gather(*(key(person.id, f"key {n}") for n in range(8)), return_exceptions=True)
    refused = [one for one in made if one is not None]
    assert len(refused) == 5
    assert all(isinstance(one, Conflict) and "You have 3 keys" in one.message for one in refused)
    await key(stranger, "another's")

    theirs = await sessions.create(stranger, "theirs", user_agent="x", address="::1")
    ids = [await sessions.create(person.id, f"session {n}", user_agent="x", address="::1") for n in range(5)]
    assert await sessions.find_valid([*ids, theirs]) == {*ids[2:], theirs}

    open_ones = [
        await invitations.invite(f"link {n}", UserRole.AGENT, actor_id=person.id, lifetime=HOUR) for n in range(3)
    ]
    with pytest.raises(Conflict, match="There are 3 open invitations"):
        await invitations.invite("one more", UserRole.AGENT, actor_id=person.id, lifetime=HOUR)
    await invitations.take_back(open_ones[0].id, actor_id=person.id)
    await invitations.invite("one more", UserRole.AGENT, actor_id=person.id, lifetime=HOUR)


async def test_tokens_add_up_though_many_are_counted_at_once(services: Services, stranger: str) -> None:
    uses = TokenUsageRecords(services.database)
    several = {LOCAL_USER_ID: 100, "deleted meanwhile": 5, stranger: 1}
    await asyncio.gather(*(uses.add({stranger: 3}) for _ in range(7)), uses.add(several))
    assert await uses.of_today(stranger) == 22
    assert await uses.of_today("deleted meanwhile") == 0
    assert await uses.replies_under_way(stranger) == 0


@pytest.mark.parametrize(
    ("client", "forwarded", "address"),
    [
        ("203.0.113.9", "1.2.3.4", "203.0.113.9"),  # no proxy of ours: what it says proves nothing
        ("10.0.0.1", "1.2.3.4", "1.2.3.4"),
        ("::ffff:10.0.0.1", "1.2.3.4", "1.2.3.4"),
        ("10.0.0.1", "6.6.6.6, 1.2.3.4", "1.2.3.4"),  # the client wrote the first one
        ("10.0.0.1", "1.2.3.4, 10.0.0.7", "1.2.3.4"),
        ("10.0.0.1", "6.6.6.6, nonsense, 10.0.0.7", "10.0.0.7"),
        ("10.0.0.1", "", "10.0.0.1"),
        ("10.0.0.1", "2001:db8::1", "2001:db8::1"),
        (None, "1.2.3.4", "unknown"),
    ],
)
def test_whose_address_counts(client: str | None, forwarded: str, address: str) -> None:
    proxies = TrustedProxies(["10.0.0.0/8"])
    headers = [(b"x-forwarded-for", forwarded.encode()), (b"x-forwarded-proto", b"https")]
    scope = {"type": "http", "client": (client, 1) if client else None, "headers": headers}
    assert proxies.client_address(scope) == address
    assert proxies.is_https(scope) is bool(client and client.startswith(("10.", "::ffff:10.")))


async def test_by_https_the_cookie_is_bound_to_it() -> None:
    cookie, response = SessionCookie(secure=True), Response()
    cookie.write(response, "token")
    written = response.headers["set-cookie"]
    assert written.startswith("__Host-deskmate_session=token;")
    for part in ("Secure", "HttpOnly", "Path=/", "SameSite=lax"):
        assert part in written
    assert "Domain" not in written
    plain = {"type": "http", "headers": [(b"cookie", b"deskmate_session=token")]}
    assert cookie.read(plain) is None  # another host of the domain could have set that one
    for https in (True, False):
        sent: list[Any] = []

        async def inner(scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})

        async def keep(message: Any, sent: list[Any] = sent) -> None:
            sent.append(message)

        await SecurityHeaders(inner, https=https)({"type": "http", "path": "/"}, None, keep)  # type: ignore[arg-type]
        names = {name for name, _ in sent[0]["headers"]}
        assert (b"strict-transport-security" in names) is https


async def test_whose_data_is_asked_for_is_found_as_at_signing_in(services: Services) -> None:
    invitations, accounts = Invitations(services.database), AccountRecords(services.database)
    await invitations.let_set_up("a", lifetime=HOUR)
    made = await use(invitations, "a", "strasse")
    for spelt in ("STRAẞE", " strasse\0"):
        assert await UserDataRecords(services.database).find(spelt) == await accounts.id_of(spelt) == made.id


async def test_drafts_articles_and_questions_are_counted_and_go(services: Services, stranger: str) -> None:
    """Of accounts, and of the local user, whose row stays."""
    now, erasure = datetime.now(UTC), services.desk.erasure

    def add_all(rows: Iterable[object], session: Session) -> None:
        session.add_all(rows)

    def counts(data: DeletionPreview) -> tuple[int, int, int]:
        return data.drafts, data.articles, data.marked_questions

    for user_id, drafts, articles, questions in ((stranger, 1, 2, 3), (LOCAL_USER_ID, 3, 1, 2)):
        chat = Conversation(id=new_id(), user_id=user_id, title="t", settings={}, created_at=now, updated_at=now)
        shared = {"collection_id": KNOWLEDGE_COLLECTION_ID, "author_id": user_id, "created_at": now}
        draft = {"conversation_id": chat.id, "message": "m", "model": "m", "text": "t", "created_at": now}
        of_user: list[ReplyDraft | Article | Question] = [
            *(ReplyDraft(id=new_id(), **draft) for _ in range(drafts)),
            *(Article(id=new_id(), title="t", body="b", updated_at=now, **shared) for _ in range(articles)),
            *(Question(id=new_id(), question="q", answer="a", document="d", **shared) for _ in range(questions)),
        ]
        for rows in ([chat], of_user):
            await services.database.write(partial(add_all, rows))
    assert counts(await erasure.preview(stranger)) == (1, 2, 3)
    assert counts(await erasure.erase(None, LOCAL_USER_ID)) == (3, 1, 2)
    assert counts(await erasure.preview(LOCAL_USER_ID)) == (0, 0, 0)
    assert counts(await erasure.erase(None, stranger)) == (1, 2, 3)
