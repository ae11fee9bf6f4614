"""The people of a desk with accounts: how they come in, and what they hold."""

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
from app.store.accounts.invitations import Invitations, Link
from app.store.accounts.login_sessions import LoginSessions
from app.store.db.database import Database
from app.store.desk.audit import Audit

INVITATION_DAYS = 7
RESET_HOURS = 24
SETUP_HOURS = 24
KEY_PREFIX = "dmk_"
_KEY_BEGINNING = len(KEY_PREFIX) + 4

WRONG = "The name or the password is not right."
TOO_MANY_SIGN_INS = "There were too many sign-ins."


@dataclass(frozen=True, slots=True)
class Visitor:
    """From where somebody comes who is not known yet."""

    address: str
    user_agent: str
    token: str | None  #: of the cookie they bring


class AccountService:
    """One per process."""

    def __init__(self, database: Database, settings: AppSettings, *, is_alone: bool = False) -> None:
        """Args:
            is_alone: no other server lets people in by the same database, or shuts them out.

        Raises:
            ValueError: there is no secret key.
        """
        if settings.secret_key is None:
            raise ValueError("Accounts need a secret key.")
        self.records = AccountRecords(database)
        self.sessions = LoginSessions(database, settings.session_days)
        self.keys = ApiKeys(database)
        self.invitations = Invitations(database)
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
        """Begin a session; returns its token.

        What is wrong is never said, and takes as long whatever it is.

        Raises:
            WrongCredentials: the name, the password, or the account is not (or not any more) one to sign in with.
            TooManyRequests: this address or this account was tried too often.
        """
        name = fold_name(name)
        self._rate_limiter.hit(SIGN_INS_BY_ADDRESS, visitor.address, TOO_MANY_SIGN_INS)
        self._rate_limiter.hit(SIGN_INS_BY_ACCOUNT, name, TOO_MANY_SIGN_INS)
        known = await self.records.credentials(name)
        hashed = known.password_hash if known is not None and not known.disabled else None
        right, rehashed = await self._passwords.verify(password, hashed)
        if not right or known is None or hashed is None:
            # Not the name that was typed: it may be a password.
            target = known.user_id if known is not None else None
            await self._audit.record(None, AuditAction.SIGN_IN_FAILED, target, address=visitor.address)
            raise WrongCredentials(WRONG)
        self._rate_limiter.reset(SIGN_INS_BY_ACCOUNT, name)
        if rehashed is not None:
            await self.records.store_rehashed(known.user_id, hashed, rehashed)
        return await self._begin(known.user_id, visitor)

    async def sign_out(self, user_id: str, session_id: str) -> None:
        """End one session."""
        await self.sessions.end(user_id, session_id, action=AuditAction.SIGNED_OUT)
        self._changed()

    async def sign_out_everywhere(self, user_id: str, *, actor_id: str | None = None) -> int:
        """End all sessions of somebody's; returns how many."""
        ended = await self.sessions.end_all(user_id, actor_id=actor_id)
        self._changed()
        return ended

    async def end_session(self, user_id: str, session_id: str, *, actor_id: str | None = None) -> None:
        """End another session of somebody's.

        Raises:
            NotFound: there is no such session.
        """
        await self.sessions.end(user_id, session_id, action=AuditAction.SESSION_REVOKED, actor_id=actor_id)
        self._changed()

    async def change_password(self, user_id: str, session_id: str | None, before: str, after: str) -> None:
        """Change one's own password: all other sessions end.

        Raises:
            InvalidInput: ``before`` is not the password, or ``after`` cannot be one.
            TooManyRequests: it was tried too often.
        """
        person = await self.records.get(user_id)
        self._rate_limiter.hit(SIGN_INS_BY_ACCOUNT, person.name, "There were too many tries.")
        right, _ = await self._passwords.verify(before, await self.records.password_hash(user_id))
        if not right:
            raise InvalidInput("The present password is not right.")
        hashed = await self._passwords.hash(checked_password(after, person.name))
        await self.records.set_password(user_id, hashed, except_session=session_id)
        self._rate_limiter.reset(SIGN_INS_BY_ACCOUNT, person.name)
        self._changed()

    async def reset_password(self, user_id: str, password: str) -> None:
        """Give somebody another password, without the present one: all their sessions end.

        Raises:
            NotFound: there is no such account.
            InvalidInput: it cannot be one.
        """
        person = await self.records.get(user_id)
        hashed = await self._passwords.hash(checked_password(password, person.name))
        await self.records.set_password(user_id, hashed)
        self._changed()

    async def set_role(self, user_id: str, role: UserRole, *, actor_id: str | None) -> None:
        """Raises:
        NotFound, Conflict: as :meth:`app.store.accounts.accounts.Accounts.set_role`.
        """
        await self.records.set_role(user_id, role, actor_id=actor_id)
        self._changed()

    async def set_disabled(self, user_id: str, disabled: bool, *, actor_id: str | None) -> None:
        """Shut somebody out at once, streams under way included; or let them in again.

        Raises:
            NotFound, Conflict: as :meth:`app.store.accounts.accounts.Accounts.set_disabled`.
        """
        await self.records.set_disabled(user_id, disabled, actor_id=actor_id)
        self._changed()

    # ---- links

    async def invite(self, role: UserRole, *, actor_id: str, note: str | None, days: int) -> tuple[LinkView, str]:
        """A link for somebody who gets an account, and its token, which is not shown again."""
        token = self.mint.new()
        note = one_line(clean_text(note or ""))[:200] or None
        lifetime = timedelta(days=days)
        link = await self.invitations.invite(
            self.mint.hash(token), role, actor_id=actor_id, lifetime=lifetime, note=note
        )
        return link, token

    async def reset_token(self, user_id: str, *, actor_id: str | None) -> str:
        """The token of a link with which somebody chooses another password.

        Raises:
            NotFound: there is no such account.
        """
        token = self.mint.new()
        await self.invitations.let_reset(
            self.mint.hash(token), user_id, actor_id=actor_id, lifetime=timedelta(hours=RESET_HOURS)
        )
        return token

    async def setup_token(self) -> str | None:
        """The token of a link to the first admin's account; None where there is an admin."""
        token = self.mint.new()
        made = await self.invitations.let_set_up(self.mint.hash(token), lifetime=timedelta(hours=SETUP_HOURS))
        return token if made else None

    async def look_at_link(self, token: str, visitor: Visitor) -> Link:
        """What a link is for.

        Raises:
            NotFound: it does not work (any more).
            Conflict: it is for the first admin, and there is one.
            TooManyRequests: this address tries too many.
        """
        self._rate_limiter.hit(LINKS_BY_ADDRESS, visitor.address, "Too many links were tried.")
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
        """Do what the link is for, and sign in; returns the session's token.

        Raises:
            InvalidInput: the name or the password cannot be one. The link still works.
            NotFound, Conflict, TooManyRequests: as :meth:`look_at_link`; Conflict also where the name is taken.
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
        self._changed()
        if person.disabled_at is not None:
            raise WrongCredentials("The password was changed. This account is disabled: ask an admin to enable it.")
        return await self._begin(person.id, visitor)

    async def create(
        self, name: str, display_name: str | None, role: UserRole, password: str, *, actor_id: str | None = None
    ) -> AccountView:
        """Make an account.

        Raises:
            InvalidInput: the name or the password cannot be one.
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
        """A key for a program of somebody's, and what makes it one, which is not shown again.

        Args:
            days: after which it ends; None is never.

        Raises:
            InvalidInput: it has no name, or opens nothing.
            Conflict: they have as many as anybody may.
        """
        name = one_line(clean_text(name))
        if not name or len(name) > 100:
            raise InvalidInput("Give the key a name of at most 100 characters, such as that of the program.")
        if not scopes:
            raise InvalidInput("Choose what the key is for.")
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
        """Raises:
        NotFound: there is no such key.
        """
        await self.keys.revoke(user_id, id)
        self._changed()

    def close(self) -> None:
        """Wait for what is being computed."""
        self._passwords.close()

    async def _begin(self, user_id: str, visitor: Visitor) -> str:
        """A new session with a new token: one that was planted in the browser before is worth nothing."""
        token = self.mint.new()
        if visitor.token is not None:
            await self.sessions.end_token(self.mint.hash(visitor.token))
            self._changed()
        await self.sessions.create(
            user_id, self.mint.hash(token), user_agent=clean_text(visitor.user_agent), address=visitor.address
        )
        return token

    def _changed(self) -> None:
        """Somebody may come in no more, or may do something else by now: it holds from here on."""
        self.session_cache.invalidate()
        self.key_cache.invalidate()
        self.revocation_watcher.check_now()
