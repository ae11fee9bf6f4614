"""Everything a handler may use: one of each per process, opened and closed with it."""

from __future__ import annotations

import asyncio
import logging
from contextlib import ExitStack
from dataclasses import dataclass

from app.auth.accounts import People
from app.auth.quotas import Quotas
from app.concurrency.background import BackgroundTasks
from app.domain.ids import new_id
from app.errors import EngineUnavailable, StartupError, StorageUnavailable
from app.services.chats import Chats, TemporaryChats
from app.services.desk import Desk
from app.services.housekeeping import Housekeeping
from app.settings import AppSettings
from app.store.accounts.accounts import Accounts
from app.store.accounts.token_use import TokenUses
from app.store.chat.conversations import Conversations
from app.store.chat.deletions import Deletions
from app.store.chat.feedback import FeedbackRecords
from app.store.chat.leases import Leases
from app.store.chat.storage_use import StorageUses
from app.store.chat.transfer import TransferRecords
from app.store.chat.turn_contexts import TurnContexts
from app.store.chat.turn_records import TurnRecords
from app.store.db.database import Database
from app.store.db.notifications import Notifications
from app.store.desk.audit import Audit
from app.store.desk.template_versions import TemplateVersions
from app.store.maintenance.migrate import migrate, sqlite_file
from app.store.maintenance.process_lock import claimed
from app.store.maintenance.retention import Retention
from app.templates.catalog import Templates
from app.templates.files import read_templates
from app.transfer.service import Transfers
from app.turns.admission import Admission, Unlimited
from app.turns.service import Turns
from app.turns.storage_quota import StorageRoom
from app.turns.sweeper import sweep_expired
from app.turns.titles import Titles
from engine import ChatEngine

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The rooms behind the doors. Make it with :meth:`open`."""

    settings: AppSettings
    engine: ChatEngine
    chats: Chats
    temporary: TemporaryChats
    transfers: Transfers
    templates: Templates
    audit: Audit
    desk: Desk
    people: People | None  #: None without accounts
    admission: Admission
    storage: StorageRoom
    database: Database
    _quotas: Quotas | None
    _background: BackgroundTasks
    _claim: ExitStack

    @classmethod
    async def open(cls, settings: AppSettings, engine: ChatEngine) -> Services:
        """Claim and migrate the database, and mark what a dead process left running.

        Raises:
            StartupError: the data folder, the database or a prompt file cannot be used; says what to do.
        """
        files = read_templates()
        url = settings.resolved_database_url
        with ExitStack() as claim:
            claim.enter_context(claimed(url))
            await asyncio.to_thread(migrate, url)
            database = Database(url)
            owner, lease_seconds = new_id(), settings.lease_seconds
            leases = Leases(database, owner, lease_seconds)
            try:
                swept = await leases.sweep_at_start()
            except StorageUnavailable as error:
                await database.close()
                raise StartupError(error.message) from error
            if swept:
                _log.info("%d replies were interrupted when the server last stopped", swept)
            records = TurnRecords(database, owner, lease_seconds)
            limits = settings.storage_limits
            conversations = Conversations(database, limits)
            storage = StorageRoom(StorageUses(database), limits)
            deletions = Deletions(database)
            titles = Titles(engine, conversations, accounts=settings.accounts) if settings.auto_titles else None
            notifications = Notifications(url)
            background = BackgroundTasks()
            is_alone = sqlite_file(url) is not None  # else there may be other processes
            if not is_alone:
                background.start(notifications.listen(), "notifications")
            templates = Templates(files, TemplateVersions(database))
            temporary = TemporaryChats(settings, engine, templates)
            people = People(database, settings, is_alone=is_alone) if settings.accounts else None
            accounts = people or Accounts(database)

            def replies_here(user_id: str) -> int:
                return temporary.writing_for(user_id) + (turns.writing_for(user_id) if is_alone else 0)

            uses = TokenUses(database)
            quotas = Quotas(settings, uses, replies_here, is_alone=is_alone) if settings.accounts else None
            admission = temporary.admission = quotas or Unlimited()
            if people is not None:
                background.start(people.watch.run(), "watch over sessions")
            turns = Turns(
                settings,
                engine,
                records,
                TurnContexts(database),
                templates,
                notifications,
                titles,
                admission,
                storage,
                is_alone=is_alone,
            )
            if not is_alone:
                background.start(sweep_expired(leases, lease_seconds, turns.being_written), "sweeper")
            housekeeping = Housekeeping(
                conversations.index,
                deletions,
                Retention(database),
                temporary,
                people.sessions if people is not None else None,
                retention_days=settings.retention_days,
            )
            background.start(housekeeping.index_for_ever(), "search index")
            background.start(housekeeping.clean_for_ever(), "cleaning")
            return cls(
                settings=settings,
                engine=engine,
                chats=Chats(
                    conversations=conversations,
                    turns=turns,
                    deletions=deletions,
                    feedback=FeedbackRecords(database),
                ),
                temporary=temporary,
                transfers=Transfers(
                    TransferRecords(database, limits),
                    max_import_mb=settings.max_import_mb,
                    max_message_chars=settings.max_message_chars,
                ),
                templates=templates,
                audit=Audit(database),
                desk=Desk.over(
                    database,
                    shut_out=lambda user_id, by: accounts.set_disabled(user_id, True, actor_id=by),
                    delete_conversation=turns.delete_conversation,
                    forget_temporary=temporary.forget,
                ),
                people=people,
                admission=admission,
                storage=storage,
                database=database,
                _quotas=quotas,
                _background=background,
                _claim=claim.pop_all(),
            )

    @property
    def conversations(self) -> Conversations:
        """Those that last."""
        return self.chats.conversations

    @property
    def turns(self) -> Turns:
        """The replies in them."""
        return self.chats.turns

    @property
    def deletions(self) -> Deletions:
        """What was deleted from them."""
        return self.chats.deletions

    async def chats_with(self, id: str) -> Chats:
        """Where the conversation, message, turn or deletion of this id is: among the temporary chats, or the others."""
        return await self.temporary.holding(id) or self.chats

    async def close(self) -> None:
        """End the replies in flight within ``shutdown_seconds``, then let go of the database. The engine stays."""
        try:
            await asyncio.gather(self.turns.close(), self.temporary.close())
            if self._quotas is not None:
                await self._quotas.close()
        finally:
            await self._background.close()
            if self.people is not None:
                self.people.close()
            await self.database.close()
            self._claim.close()

    async def ready(self) -> None:
        """Whether messages can be answered and saved now.

        Raises:
            EngineUnavailable: the engine takes no requests; says why.
            StorageUnavailable: the database does not answer.
        """
        health = self.engine.health()
        if not health.ready:
            raise EngineUnavailable(health.error or "The engine is not ready.")
        await self.database.ping()
