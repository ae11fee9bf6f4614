"""The services that route handlers use: one instance of each per process, opened and closed with it."""

from __future__ import annotations

import asyncio
import logging
from contextlib import ExitStack
from dataclasses import dataclass

from app.auth.accounts import AccountService
from app.auth.oidc.service import OidcSignIn
from app.auth.quotas import Quotas
from app.cases.bot import CaseBot
from app.cases.bot_replies import BotReplies
from app.cases.case_drafts import CaseDrafts
from app.cases.cases import Cases
from app.cases.live_replies import LiveReplies
from app.cases.mail_sender import CLOSE_SECONDS, MailSender
from app.cases.sweeper import sweep_cases
from app.cases.webhook_sender import LEASE_SECONDS, WebhookSender
from app.concurrency.background import BackgroundTasks
from app.domain.ids import new_id
from app.domain.welcome import WelcomeTexts
from app.egress.policy import EgressPolicy
from app.errors import EngineUnavailable, StartupError, StorageUnavailable
from app.services.adapters import Adapters
from app.services.backups import Backups
from app.services.chats import Chats, TemporaryChats
from app.services.desk import Desk
from app.services.housekeeping import Housekeeping
from app.services.knowledge import Knowledge, make_sources
from app.services.models import Models
from app.services.response_writer import ResponseWriter
from app.services.widget import Widget
from app.settings import AppSettings
from app.store.accounts.accounts import AccountRecords
from app.store.accounts.token_use import TokenUsageRecords
from app.store.cases.delivery_queue import DeliveryQueue
from app.store.chat.bulk_changes import BulkChanges
from app.store.chat.conversations import Conversations
from app.store.chat.deletions import Deletions
from app.store.chat.feedback import FeedbackRecords
from app.store.chat.folders import Folders
from app.store.chat.leases import Leases
from app.store.chat.own_presets import OwnPresets
from app.store.chat.reply_drafts import DraftRecords
from app.store.chat.responses import ResponseRecords
from app.store.chat.storage_use import StorageUsageRecords
from app.store.chat.transfer import TransferRecords
from app.store.chat.turn_contexts import TurnContexts
from app.store.chat.turn_records import TurnRecords
from app.store.db.database import Database
from app.store.db.notifications import Notifications
from app.store.desk.audit import Audit
from app.store.desk.template_versions import TemplateVersions
from app.store.knowledge.indexing import ChunkIndex
from app.store.knowledge.source_rights import SourceRights
from app.store.knowledge.stale_chunks import StaleChunks
from app.store.maintenance.migrate import migrate, sqlite_file
from app.store.maintenance.process_lock import claim_database
from app.store.maintenance.retention import Retention
from app.templates.catalog import Templates
from app.templates.files import read_templates, read_welcome
from app.tools.chat_tools import ChatTools
from app.tools.mcp_file import McpFileError, McpServer, read_mcp_file
from app.tools.servers import ToolServers
from app.transfer.service import Transfers
from app.turns.admission import Admission, UnlimitedAdmission
from app.turns.articles import ArticleWriter
from app.turns.cases import CaseModel
from app.turns.drafts import Drafts
from app.turns.engine_requests import EngineRequests
from app.turns.service import Turns
from app.turns.sources import Sources
from app.turns.storage_quota import StorageQuota
from app.turns.summaries import Summaries
from app.turns.sweeper import sweep_expired
from app.turns.titles import Titles
from app.turns.tool_offers import ToolOffers
from engine import ChatEngine

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """All services of the application. Create it with :meth:`open`."""

    settings: AppSettings
    engine: ChatEngine
    chats: Chats
    temporary: TemporaryChats
    presets: OwnPresets
    folders: Folders
    bulk_changes: BulkChanges
    responses: ResponseRecords
    response_writer: ResponseWriter
    transfers: Transfers
    templates: Templates
    welcome: WelcomeTexts
    tools: ChatTools
    sources: Sources
    summaries: Summaries
    article_writer: ArticleWriter
    audit: Audit
    models: Models
    adapters: Adapters
    desk: Desk
    knowledge: Knowledge
    cases: Cases
    case_drafts: CaseDrafts
    widget: Widget | None  #: None without accounts
    backups: Backups
    accounts: AccountService | None  #: None without accounts
    oidc: OidcSignIn | None  #: None without a sign-in provider
    admission: Admission
    storage: StorageQuota
    database: Database
    _bot: CaseBot
    _mail_sender: MailSender | None
    _quotas: Quotas | None
    _background: BackgroundTasks
    _claim: ExitStack

    @classmethod
    async def open(cls, settings: AppSettings, engine: ChatEngine) -> Services:
        """Claims and migrates the database, and marks the turns that a dead process left running as interrupted.

        Raises:
            StartupError: the data folder, the database, a prompt file or mcp.json cannot be used; the message says
                what to do.
        """
        files, welcome = read_templates(), read_welcome()
        egress = EgressPolicy.allowing(settings.egress_allow)
        servers = ToolServers(_mcp_servers(settings), egress)
        url = settings.resolved_database_url
        with ExitStack() as claim:
            claim.enter_context(claim_database(url))
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
            closed_documents = SourceRights(database).closed
            conversations = Conversations(database, closed_documents, limits)
            storage = StorageQuota(StorageUsageRecords(database), limits)
            deletions = Deletions(database, limits)
            responses = ResponseRecords(database)
            titles = Titles(engine, conversations, accounts=settings.accounts) if settings.auto_titles else None
            notifications = Notifications(url)
            background = BackgroundTasks()
            is_alone = sqlite_file(url) is not None  # PostgreSQL may be shared with other processes
            if not is_alone:
                background.start(notifications.listen(), "notifications")
            templates = Templates(files, TemplateVersions(database))
            tools = ChatTools(servers)
            tool_offers = ToolOffers(tools, templates, engine, accounts=settings.accounts)
            knowledge = Knowledge.create(database, settings, engine, owner)
            sources = make_sources(knowledge.search, engine, settings)
            temporary = TemporaryChats(settings, engine, templates, tool_offers, sources, closed_documents)
            accounts = AccountService(database, settings, is_alone=is_alone) if settings.accounts else None
            account_store = accounts or AccountRecords(database)

            def stored_replies(user_id: str) -> int:
                return turns.count_running(user_id)

            uses = TokenUsageRecords(database)
            quotas = None
            if settings.accounts:
                quotas = Quotas(settings, uses, temporary.count_running, stored_replies, is_alone=is_alone)
            admission = temporary.admission = quotas or UnlimitedAdmission()
            if accounts is not None:
                background.start(accounts.revocation_watcher.run(), "revocation watcher")
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
                tool_offers,
                sources,
            )
            cases = Cases.create(
                database,
                notifications,
                conversations.index,
                owner,
                lease_seconds,
                max_message_chars=settings.max_message_chars,
                mail_delay=settings.mail_server.delay if settings.mail_server is not None else None,
            )
            mail_sender = None
            if settings.mail_server is not None:
                mail_sender = MailSender(cases.mails, settings.mail_server)
                background.start(mail_sender.run(), "mails")
            if settings.accounts:
                background.start(sweep_cases(cases.snoozes, cases.visitors), "cases")
                sender = WebhookSender(DeliveryQueue(database, LEASE_SECONDS), egress)
                background.start(sender.run(), "webhooks")
            live_replies = LiveReplies()
            bot_requests = EngineRequests(engine, UnlimitedAdmission(), accounts=settings.accounts)
            bot_replies = BotReplies(
                settings,
                cases,
                records,
                bot_requests,
                templates,
                sources,
                knowledge.collections,
                live_replies,
                count_tokens=admission.record_tokens,
            )
            bot = CaseBot(cases, bot_replies, max_replies=settings.bot_replies)

            def alive() -> set[str]:
                return {*turns.running_turn_ids(), *live_replies.turn_ids}

            if not is_alone:
                background.start(sweep_expired(leases, lease_seconds, alive), "sweeper")
            widget = None
            if accounts is not None:
                # Alone, no other process can be about to answer what the last one has left.
                if given := await bot.hand_over_silent(0.0 if is_alone else 2 * lease_seconds):
                    _log.info("%d cases went to people: the server stopped while their bot answered", given)
                background.start(bot.sweep(lease_seconds), "bot")
                widget = Widget(cases, accounts, bot, live_replies)
            requests = EngineRequests(engine, admission, accounts=settings.accounts)
            case_model = CaseModel(requests)
            housekeeping = Housekeeping(
                conversations.index,
                ChunkIndex(database),
                StaleChunks(database),
                deletions,
                Retention(database),
                temporary,
                accounts.sessions if accounts is not None else None,
                retention_days=settings.retention_days,
                response_days=settings.response_days,
            )
            background.start(housekeeping.run_indexing(), "search index")
            background.start(housekeeping.run_cleanup(), "cleanup")
            backups = Backups(database, settings, owner)
            if backups.plan is not None:
                background.start(backups.run(), "scheduled backups")
            drafts = Drafts(settings, requests, templates, sources, DraftRecords(database), storage)
            background.start(knowledge.dense.run(), "search by meaning")
            knowledge.ingest.start()
            if knowledge.folder is not None:
                background.start(knowledge.folder.run(), "knowledge folder")
            return cls(
                settings=settings,
                engine=engine,
                chats=Chats(
                    conversations=conversations,
                    turns=turns,
                    deletions=deletions,
                    feedback=FeedbackRecords(database),
                    drafts=drafts,
                ),
                temporary=temporary,
                presets=OwnPresets(database),
                folders=Folders(database),
                bulk_changes=BulkChanges(database, limits),
                responses=responses,
                response_writer=ResponseWriter(responses, storage),
                transfers=Transfers(
                    TransferRecords(database, closed_documents, limits),
                    responses,
                    max_import_mb=settings.max_import_mb,
                    max_message_chars=settings.max_message_chars,
                ),
                templates=templates,
                welcome=welcome,
                tools=tools,
                sources=sources,
                summaries=Summaries(case_model, templates, sources),
                article_writer=ArticleWriter(case_model, templates, sources),
                audit=(audit := Audit(database)),
                models=(models := Models(settings, engine, audit)),
                adapters=Adapters(models, audit),
                desk=Desk.create(
                    database,
                    disable_account=lambda user_id, by: account_store.set_disabled(user_id, True, actor_id=by),
                    delete_conversation=turns.delete_conversation,
                    delete_temporary_chats=temporary.delete_for_user,
                ),
                knowledge=knowledge,
                cases=cases,
                case_drafts=CaseDrafts(cases.details, cases.inboxes, knowledge.collections, drafts),
                widget=widget,
                backups=backups,
                accounts=accounts,
                oidc=(
                    OidcSignIn(accounts, database, settings)
                    if accounts is not None and settings.oidc_issuer is not None
                    else None
                ),
                admission=admission,
                storage=storage,
                database=database,
                _bot=bot,
                _mail_sender=mail_sender,
                _quotas=quotas,
                _background=background,
                _claim=claim.pop_all(),
            )

    @property
    def conversations(self) -> Conversations:
        """The persistent conversations."""
        return self.chats.conversations

    @property
    def turns(self) -> Turns:
        """The turns of persistent conversations."""
        return self.chats.turns

    @property
    def deletions(self) -> Deletions:
        """The deletions in persistent conversations, which can be undone."""
        return self.chats.deletions

    async def chats_with(self, id: str) -> Chats:
        """Returns the chats, temporary or persistent, that hold the conversation, message, turn or deletion ``id``.

        An unknown id belongs to the persistent ones.
        """
        return await self.temporary.find(id) or self.chats

    def answer_case(self, case_id: str) -> None:
        """Lets the bot answer a case that it has."""
        self._bot.answer(case_id)

    async def close(self) -> None:
        """Ends the replies in flight within ``shutdown_seconds``, then closes the database. Leaves the engine open."""
        try:
            await asyncio.gather(
                self.turns.close(),
                self.temporary.close(),
                self.models.close(),
                self.response_writer.close(),
                self._bot.close(self.settings.shutdown_seconds),
                self._close_mail_sender(),
            )
            if self._quotas is not None:
                await self._quotas.close()
        finally:
            await self.knowledge.ingest.close()
            await self._background.close()
            await self.tools.close()
            if self.oidc is not None:
                await self.oidc.close()
            if self.accounts is not None:
                self.accounts.close()
            await self.database.close()
            self._claim.close()

    async def _close_mail_sender(self) -> None:
        if self._mail_sender is not None:
            await self._mail_sender.close(min(CLOSE_SECONDS, self.settings.shutdown_seconds))

    async def ready(self) -> None:
        """Checks that messages can be answered and saved now.

        Raises:
            EngineUnavailable: the engine takes no requests; the message says why.
            StorageUnavailable: the database does not respond.
        """
        health = self.engine.health()
        if not health.ready:
            raise EngineUnavailable(health.error or "The engine is not ready.")
        await self.database.ping()


def _mcp_servers(settings: AppSettings) -> dict[str, McpServer]:
    try:
        return read_mcp_file(settings.mcp_file)
    except McpFileError as error:
        raise StartupError(str(error)) from error
