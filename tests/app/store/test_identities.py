"""Accounts of users who sign in with a provider, on both databases: at once, twice, and by an admin."""

from __future__ import annotations

import asyncio

import pytest
import sqlalchemy as sa

from app.domain.roles import UserRole
from app.errors import Conflict, NotFound
from app.services.container import Services
from app.store.accounts.accounts import AccountRecords
from app.store.accounts.identities import Identities, ProvidedUser, Refusal
from app.store.db.models import Account
from app.store.db.sign_in_models import ExternalIdentity

ISSUER = "https://login.example"


def user(subject: str, role: UserRole | None = UserRole.AGENT, name: str = "eve", issuer: str = ISSUER) -> ProvidedUser:
    return ProvidedUser(issuer, subject, name, None, name, role)


@pytest.fixture
def identities(services: Services) -> Identities:
    return Identities(services.database)


@pytest.fixture
def records(services: Services) -> AccountRecords:
    return AccountRecords(services.database)


async def test_a_user_who_comes_twice_at_once_gets_one_account(services: Services, identities: Identities) -> None:
    found = await asyncio.gather(*(identities.resolve(user("s1")) for _ in range(8)))
    assert len({one.user_id for one in found}) == 1
    assert {one.refusal for one in found} == {None}
    count = await services.database.read(
        lambda session: session.scalar(sa.select(sa.func.count()).where(Account.name == "eve"))
    )
    assert count == 1


async def test_two_users_of_one_name_get_no_account_in_common(identities: Identities) -> None:
    first, second = await asyncio.gather(identities.resolve(user("s1")), identities.resolve(user("s2")))
    assert sorted([first.refusal or "", second.refusal or ""]) == ["", Refusal.NAME_TAKEN]
    # The same subject of another issuer is another user.
    assert (await identities.resolve(user("s1", issuer="https://other.example"))).refusal is Refusal.NAME_TAKEN


async def test_of_two_admins_who_lose_their_groups_at_once_one_stays(
    identities: Identities, records: AccountRecords
) -> None:
    for name in ("a1", "a2"):
        await identities.resolve(user(name, UserRole.ADMIN, name))
    found = await asyncio.gather(*(identities.resolve(user(name, UserRole.VIEWER, name)) for name in ("a1", "a2")))
    assert sorted(one.kept_admin for one in found) == [False, True]
    assert sorted(one.role for one in await records.list()) == [UserRole.ADMIN, UserRole.VIEWER]
    assert await records.has_admin()


async def test_an_admin_without_a_password_counts_as_one(identities: Identities, records: AccountRecords) -> None:
    made = await records.create("ada", "Ada", UserRole.ADMIN, "hash")
    await identities.resolve(user("s1", UserRole.ADMIN))
    await records.set_role(made.id, UserRole.AGENT, actor_id=None)
    with pytest.raises(Conflict, match="last admin"):
        await records.set_disabled(await records.id_of("eve"), True, actor_id=None)


async def test_an_account_has_one_identity_and_an_identity_one_account(
    services: Services, identities: Identities, records: AccountRecords
) -> None:
    ada = (await records.create("ada", "Ada", UserRole.ADMIN, "hash")).id
    ben = (await records.create("ben", "Ben", UserRole.AGENT, "hash")).id
    await identities.connect(ada, ISSUER, "s1", "ada@there", actor_id=ada)
    await identities.connect(ada, ISSUER, "s1", "ada@there", actor_id=ada)
    for person, subject in ((ben, "s1"), (ada, "s2")):
        with pytest.raises(Conflict):
            await identities.connect(person, ISSUER, subject, "x", actor_id=person)
    with pytest.raises(NotFound):
        await identities.connect("no one", ISSUER, "s3", "x", actor_id=None)
    assert (await identities.resolve(user("s1", UserRole.ADMIN))).user_id == ada
    assert await identities.of(ben, ISSUER) is None
    with pytest.raises(NotFound):
        await identities.disconnect(ben, ISSUER, actor_id=ben)
    await identities.disconnect(ada, ISSUER, actor_id=ada)
    assert await services.database.read(lambda session: session.scalars(sa.select(ExternalIdentity)).all()) == []


async def test_an_identity_goes_with_its_account(services: Services, identities: Identities) -> None:
    found = await identities.resolve(user("s1"))
    erasure = services.desk.erasure
    assert found.user_id is not None
    await erasure.erase(None, found.user_id)
    assert await services.database.read(lambda session: session.scalars(sa.select(ExternalIdentity)).all()) == []
