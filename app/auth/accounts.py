"""Account service: signing in and out, passwords, roles, links, API keys. Only used with accounts."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from app.auth.auth_cache import AUTH_CACHE_SECONDS, AuthCache
from app.auth.client_address import TrustedProxies
from app.auth.cookies import SessionCookie
from app.auth.passwords import Passwords
from app.auth.rate_limits import LINKS_BY_ADDRESS, SIGN_INS_BY_ACCOUNT, SIGN_INS_BY_ADDRESS, RateLimiter
from app.auth.revocation_watcher import RevocationWatcher
from app.auth.secret_tokens import TokenMint
from app.domain.accounts import (
    AccountView,
    KeyView,
    LinkView,
    Purpose,
    Scope,
    checked_display_name,
    checked_name,
    checked_password,
    fold_name,
)
from app.domain.audit import AuditAction
from app.domain.roles import UserRole
from app.domain.text import clean_text, one_line
from app.errors import InvalidInput, WrongCredentials
from app.settings import AppSettings
from app.store.accounts.accounts import AccountRecords
from app.store.accounts.api_keys import ApiKeys
from app.store.accounts.identities import Identities
from app.store.accounts.invitations import Invitations, Link
from app.store.accounts.login_sessions import LoginSessions
from app.store.db.database import Database
from app.store.desk.audit import Audit

INVITATION_DAYS = 7
RESET_HOURS = 24
SETUP_HOURS = 24
KEY_PREFIX = "dmk_"
#: Characters of a key that are stored in the clear, so that its owner can recognise it in the list.
_KEY_BEGINNING = len(KEY_PREFIX) + 4

WRONG = "Incorrect username or password."
TOO_MANY_SIGN_INS = "Too many sign-in attempts."


@dataclass(frozen=True, slots=True)
class Visitor:
    """The client of a request that signs in."""

    address: str
    user_agent: str
    token: str | None  #: from the session cookie that the request carries


class AccountService:
    """Signs users in and changes their accounts, and keeps the caches of this process valid. One per process."""

    def __init__(self, database: Database, settings: AppSettings, *, is_alone: bool = False) -> None:
        """Args:
            is_alone: no other server process uses the same database, so authentication results can be cached.

        Raises:
            ValueError: ``secret_key`` is not set.
        """
        if settings.secret_key is None:
            raise ValueError("Accounts need a secret key.")
        self.records = AccountRecords(database)
        self.sessions = LoginSessions(database, settings.session_days)
        self.keys = ApiKeys(database)
        self.invitations = Invitations(database)
        self.identities = Identities(database)
        self.mint = TokenMint(settings.secret_key.get_secret_value())
        self.cookie = SessionCookie(secure=(settings.public_url or "").startswith("https://"))
        self.proxies = TrustedProxies(settings.trusted_proxies)
        seconds = AUTH_CACHE_SECONDS if is_alone else 0.0
        self.session_cache = AuthCache(self.sessions.find, seconds)
        self.key_cache = AuthCache(self.keys.find, seconds)
        self.revocation_watcher = RevocationWatcher(self.sessions, self.keys)
        self._audit = Audit(database)
        self._passwords = Passwords()
        self._rate_limiter = RateLimiter()

    async def sign_in(self, name: str, password: str, visitor: Visitor) -> str:
        """Starts a session; returns its token.

        A failure does not reveal its cause, neither by its message nor by the time it takes.

        Raises:
            WrongCredentials: the name or the password is wrong, or the account is disabled.
            TooManyRequests: too many attempts from this address or for this account.
        """
        name = fold_name(name)
        self._rate_limiter.hit(SIGN_INS_BY_ADDRESS, visitor.address, TOO_MANY_SIGN_INS)
        self._rate_limiter.hit(SIGN_INS_BY_ACCOUNT, name, TOO_MANY_SIGN_INS)
        known = await self.records.credentials(name)
        hashed = known.password_hash if known is not None and not known.disabled else None
        right, rehashed = await self._passwords.verify(password, hashed)
        if not right or known is None or hashed is None:
            # The audit log must not hold the name as typed: it may be a password.
            target = known.user_id if known is not None else None
            await self._audit.record(None, AuditAction.SIGN_IN_FAILED, target, address=visitor.address)
            raise WrongCredentials(WRONG)
        self._rate_limiter.reset(SIGN_INS_BY_ACCOUNT, name)
        if rehashed is not None:
            await self.records.store_rehashed(known.user_id, hashed, rehashed)
        return await self.begin_session(known.user_id, visitor)

    async def sign_out(self, user_id: str, session_id: str) -> None:
        """Ends one session."""
        await self.sessions.end(user_id, session_id, action=AuditAction.SIGNED_OUT)
        self.changed()

    async def sign_out_everywhere(self, user_id: str, *, actor_id: str | None = None) -> int:
        """Ends all sessions of a user; returns how many."""
        ended = await self.sessions.end_all(user_id, actor_id=actor_id)
        self.changed()
        return ended

    async def end_session(self, user_id: str, session_id: str, *, actor_id: str | None = None) -> None:
        """Revokes one session of a user.

        Raises:
            NotFound: the user has no such session.
        """
        await self.sessions.end(user_id, session_id, action=AuditAction.SESSION_REVOKED, actor_id=actor_id)
        self.changed()

    async def change_password(self, user_id: str, session_id: str | None, before: str, after: str) -> None:
        """Changes the caller's own password and ends all their other sessions.

        Raises:
            InvalidInput: ``before`` is not the current password, or ``after`` is not an acceptable one.
            TooManyRequests: too many attempts for this account.
        """
        person = await self.records.get(user_id)
        self._rate_limiter.hit(SIGN_INS_BY_ACCOUNT, person.name, "Too many attempts.")
        right, _ = await self._passwords.verify(before, await self.records.password_hash(user_id))
        if not right:
            raise InvalidInput("The current password is incorrect.")
        hashed = await self._passwords.hash(checked_password(after, person.name))
        await self.records.set_password(user_id, hashed, except_session=session_id)
        self._rate_limiter.reset(SIGN_INS_BY_ACCOUNT, person.name)
        self.changed()

    async def reset_password(self, user_id: str, password: str) -> None:
        """Sets a user's password without the current one, and ends all their sessions.

        Raises:
            NotFound: there is no such account.
            InvalidInput: the password is not acceptable.
        """
        person = await self.records.get(user_id)
        hashed = await self._passwords.hash(checked_password(password, person.name))
        await self.records.set_password(user_id, hashed)
        self.changed()

    async def set_role(self, user_id: str, role: UserRole, *, actor_id: str | None) -> None:
        """Changes a user's role.

        Raises:
            NotFound, Conflict: as :meth:`app.store.accounts.accounts.AccountRecords.set_role`.
        """
        await self.records.set_role(user_id, role, actor_id=actor_id)
        self.changed()

    async def set_disabled(self, user_id: str, disabled: bool, *, actor_id: str | None) -> None:
        """Disables an account at once, its open streams included, or enables it again.

        Raises:
            NotFound, Conflict: as :meth:`app.store.accounts.accounts.AccountRecords.set_disabled`.
        """
        await self.records.set_disabled(user_id, disabled, actor_id=actor_id)
        self.changed()

    # ---- links

    async def invite(self, role: UserRole, *, actor_id: str, note: str | None, days: int) -> tuple[LinkView, str]:
        """Creates an invitation link; returns it and its token, which is not shown again."""
        token = self.mint.new()
        note = one_line(clean_text(note or ""))[:200] or None
        lifetime = timedelta(days=days)
        link = await self.invitations.invite(
            self.mint.hash(token), role, actor_id=actor_id, lifetime=lifetime, note=note
        )
        return link, token

    async def reset_token(self, user_id: str, *, actor_id: str | None) -> str:
        """Creates a link with which a user sets a new password; returns its token.

        Raises:
            NotFound: there is no such account.
        """
        token = self.mint.new()
        await self.invitations.let_reset(
            self.mint.hash(token), user_id, actor_id=actor_id, lifetime=timedelta(hours=RESET_HOURS)
        )
        return token

    async def setup_token(self) -> str | None:
        """Creates the link for the first admin's account; returns its token, or None if there is an admin already."""
        token = self.mint.new()
        made = await self.invitations.let_set_up(self.mint.hash(token), lifetime=timedelta(hours=SETUP_HOURS))
        return token if made else None

    async def look_at_link(self, token: str, visitor: Visitor) -> Link:
        """Returns what a link is for, without using it.

        Raises:
            NotFound: the link is unknown, used or expired.
            Conflict: the link is for the first admin, and there is an admin.
            TooManyRequests: too many attempts from this address.
        """
        self._rate_limiter.hit(LINKS_BY_ADDRESS, visitor.address, "Too many attempts to open a link.")
        return await self.invitations.look(self.mint.hash(token))

    async def use_link(
        self,
        token: str,
        password: str,
        visitor: Visitor,
        *,
        name: str | None = None,
        display_name: str | None = None,
        with_history: bool = False,
    ) -> str:
        """Creates the account or changes the password, as the link says, and signs in; returns the session's token.

        Raises:
            InvalidInput: the name or the password is not acceptable. The link still works.
            NotFound, Conflict, TooManyRequests: as :meth:`look_at_link`; Conflict also if the name is taken.
            WrongCredentials: the password was changed, but the account is disabled.
        """
        link = await self.look_at_link(token, visitor)
        if link.purpose is Purpose.RESET:
            checked_password(password, link.name or "")
        else:
            name = checked_name(name or "")
            display_name = checked_display_name(display_name, name)
            checked_password(password, name)
        hashed = await self._passwords.hash(password)
        person = await self.invitations.use(
            self.mint.hash(token), hashed, name=name, display_name=display_name, with_history=with_history
        )
        self.changed()
        if person.disabled_at is not None:
            raise WrongCredentials("The password was changed. This account is disabled: ask an admin to enable it.")
        return await self.begin_session(person.id, visitor)

    async def create(
        self, name: str, display_name: str | None, role: UserRole, password: str, *, actor_id: str | None = None
    ) -> AccountView:
        """Creates an account.

        Raises:
            InvalidInput: the name or the password is not acceptable.
            Conflict: the name is taken.
        """
        name = checked_name(name)
        shown = checked_display_name(display_name, name)
        hashed = await self._passwords.hash(checked_password(password, name))
        return await self.records.create(name, shown, role, hashed, actor_id=actor_id)

    # ---- keys

    async def make_key(
        self, user_id: str, name: str, scopes: Collection[Scope], days: int | None
    ) -> tuple[KeyView, str]:
        """Creates an API key; returns it and its secret, which is not shown again.

        Args:
            days: lifetime; None never expires.

        Raises:
            InvalidInput: the name is missing or too long, or there are no scopes.
            Conflict: the user has the maximum number of keys.
        """
        name = one_line(clean_text(name))
        if not name or len(name) > 100:
            raise InvalidInput("Enter a name of at most 100 characters, such as the name of the program.")
        if not scopes:
            raise InvalidInput("Choose at least one scope.")
        token = self.mint.new(KEY_PREFIX)
        made = await self.keys.create(
            user_id,
            self.mint.hash(token),
            name=name,
            beginning=token[:_KEY_BEGINNING],
            scopes=set(scopes),
            expires_at=datetime.now(UTC) + timedelta(days=days) if days is not None else None,
        )
        return made, token

    async def revoke_key(self, user_id: str, id: str) -> None:
        """Revokes an API key at once, its requests in flight included.

        Raises:
            NotFound: the user has no such key.
        """
        await self.keys.revoke(user_id, id)
        self.changed()

    def close(self) -> None:
        """Waits for the password hashes being computed."""
        self._passwords.close()

    async def begin_session(
        self, user_id: str, visitor: Visitor, *, ends_at: datetime | None = None, id_token: str | None = None
    ) -> str:
        """Starts a session; returns its token. Ends the visitor's old one: prevents session fixation.

        Args:
            ends_at, id_token: of a sign-in with a provider; see :meth:`LoginSessions.create`.
        """
        token = self.mint.new()
        if visitor.token is not None:
            await self.sessions.end_token(self.mint.hash(visitor.token))
            self.changed()
        await self.sessions.create(
            user_id,
            self.mint.hash(token),
            user_agent=clean_text(visitor.user_agent),
            address=visitor.address,
            ends_at=ends_at,
            id_token=id_token,
        )
        return token

    async def check_password(self, user_id: str, password: str) -> None:
        """Checks that the caller knows the account's password, if it has one: for changes that outlive the session.

        Raises:
            InvalidInput: it is another one.
            TooManyRequests: too many attempts for this account.
        """
        hashed = await self.records.password_hash(user_id)
        if hashed is None:
            return
        person = await self.records.get(user_id)
        self._rate_limiter.hit(SIGN_INS_BY_ACCOUNT, person.name, "Too many attempts.")
        right, _ = await self._passwords.verify(password, hashed)
        if not right:
            raise InvalidInput("The current password is incorrect.")
        self._rate_limiter.reset(SIGN_INS_BY_ACCOUNT, person.name)

    def changed(self) -> None:
        """Applies a change of credentials or permissions at once: empties the caches and checks open responses."""
        self.session_cache.invalidate()
        self.key_cache.invalidate()
        self.revocation_watcher.check_now()
