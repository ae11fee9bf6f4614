"""Application configuration: every field is an ``APP_*`` environment variable and a ``deskmate serve`` flag."""

from __future__ import annotations

import ipaddress
from datetime import time, timedelta
from email.utils import parseaddr
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from app.domain.backups import BackupPlan, BackupRetention
from app.domain.group_roles import GroupRoles
from app.domain.origins import origin_of
from app.domain.reply_mails import PORTS, MailServer, MailTls, is_address
from app.domain.secret_strength import HOW_TO_MAKE_ONE, weakness_of
from app.domain.storage import MAX_TAGS, MIB, StorageLimits

#: What to do with a conversation that exceeds the model's context.
ContextPolicy = Literal["drop_oldest", "refuse"]


class AppSettings(BaseSettings):
    """The application's settings: where it listens, what it stores, and its limits and timeouts."""

    model_config = SettingsConfigDict(
        env_prefix="APP_", env_file=".env", extra="ignore", frozen=True, env_ignore_empty=True
    )

    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(7860, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    data_dir: Path = Field(Path("data"), description="Folder for the database and its backups.")
    database_url: str | None = Field(
        None,
        description="Database, such as postgresql://user:password@host/name; default: deskmate.db in the data folder.",
    )
    allowed_hosts: Annotated[tuple[str, ...], NoDecode] = Field(
        (), description="Host names besides localhost that browsers may use for the page, separated by commas."
    )
    accounts: bool = Field(
        False,
        description="Require users to sign in. Without accounts there is one local user, and the server listens on "
        "this machine only.",
    )
    secret_key: SecretStr | None = Field(
        None,
        description="With accounts: the key that hashes sessions, links and API keys, at least 32 characters. Changing "
        "it signs all users out and invalidates every link and key.",
    )
    public_url: str | None = Field(
        None,
        description="The address that users open, such as https://desk.example.com. With https, cookies are Secure.",
    )
    trusted_proxies: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="Addresses or networks of proxies whose X-Forwarded-For and X-Forwarded-Proto are trusted, "
        "separated by commas.",
    )
    api_key: SecretStr | None = Field(
        None,
        description="Without accounts: the bearer token that programs must send to /v1, at least 32 characters. The "
        "page on this machine needs none.",
    )
    cors_origins: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="Origins whose pages may call /v1 from a browser, such as https://app.example.com, separated by "
        "commas; default: none.",
    )
    metrics_token: SecretStr | None = Field(
        None,
        description="With accounts: the bearer token for /metrics; default: /metrics is closed.",
    )
    session_days: int = Field(14, ge=1, le=400, description="Days without a visit after which a session expires.")
    oidc_issuer: str | None = Field(
        None,
        description="With accounts: the address of a sign-in provider that speaks OpenID Connect, exactly as it names "
        "itself; default: none. See docs/desk.md.",
    )
    oidc_client_id: str | None = Field(None, description="The id under which the provider knows this desk.")
    oidc_client_secret: SecretStr | None = Field(
        None, description="The secret that the provider gave to this desk; default: none, as for a public client."
    )
    oidc_scopes: str = Field(
        "openid profile email", description="What the desk asks the provider for, separated by spaces."
    )
    oidc_groups_claim: str = Field(
        "groups",
        description="The claim that names a user's groups, or its path with dots, such as realm_access.roles.",
    )
    oidc_roles: str | None = Field(
        None,
        description="The roles of the provider's groups, such as desk-admins=admin, staff=agent; the strongest counts, "
        "at each sign-in. *=viewer is for all other users, who are refused without it. With semicolons between them, "
        "names may have commas.",
    )
    oidc_name: str = Field(
        "single sign-on", max_length=60, description="The provider's name on the sign-in page's button."
    )
    oidc_session_hours: int = Field(
        24,
        ge=1,
        le=9600,
        description="Hours after which a user who has signed in with the provider must do so again, so that a changed "
        "group takes effect.",
    )
    mail_host: str | None = Field(
        None,
        description="SMTP server by which visitors who have gone get agents' replies; default: none is mailed. See "
        "docs/support-desk.md.",
    )
    mail_port: int | None = Field(
        None, ge=1, le=65535, description="Its port; default: 587, or 465 or 25 as APP_MAIL_TLS says."
    )
    mail_tls: MailTls = Field(
        "starttls",
        description="How the connection to it is encrypted: starttls, tls from the start, or none, for a server on "
        "this machine or its network.",
    )
    mail_user: str | None = Field(None, description="User at the SMTP server; default: no sign-in.")
    mail_password: SecretStr | None = Field(None, description="The user's password.")
    mail_from: str | None = Field(
        None, description="Address that the mails are from, such as Shop <desk@shop.example>."
    )
    mail_delay_minutes: int = Field(
        10, ge=1, le=1440, description="Minutes after the last reply, within which it may be read in the widget."
    )
    messages_per_minute: int | None = Field(
        30, ge=1, description="With accounts: maximum messages per user and minute."
    )
    concurrent_replies: int | None = Field(4, ge=1, description="With accounts: maximum replies in flight per user.")
    tokens_per_day: int | None = Field(
        None,
        ge=1,
        description="With accounts: maximum tokens per user and day (UTC), prompts and replies together; default: no "
        "limit.",
    )
    storage_mb_per_user: int = Field(
        1024,
        ge=0,
        description="With accounts: maximum size of a user's conversations in MiB: their texts, and 1 KiB for each "
        "message; 0 is no limit.",
    )
    conversations_per_user: int = Field(
        20_000, ge=0, description="With accounts: maximum conversations per user; 0 is no limit."
    )
    checkpoint_seconds: float = Field(
        1.5, gt=0, le=60, description="Seconds between two saves of a reply in flight to the database."
    )
    lease_seconds: float = Field(
        15.0,
        gt=0,
        le=600,
        description="Seconds without a heartbeat after which other processes on the same PostgreSQL consider a process "
        "that writes a reply dead.",
    )
    shutdown_seconds: float = Field(
        8.0, ge=0, le=600, description="Seconds that replies in flight get to finish when the server shuts down."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Minimum level of log messages: debug, info, warning or error."
    )
    context_policy: ContextPolicy = Field(
        "drop_oldest",
        description="For conversations longer than the model's context: drop_oldest omits the oldest turns, refuse "
        "rejects the message.",
    )
    auto_titles: bool = Field(
        True, description="Let the model generate conversation titles; otherwise the first message is the title."
    )
    retention_days: int | None = Field(
        None,
        ge=1,
        description="Days without a message after which a conversation is deleted, pinned ones too; default: never.",
    )
    response_retention_days: int | None = Field(
        30,
        ge=1,
        description="Days after which a conversation that /v1/responses has stored is deleted, counted from its last "
        "response; empty: never. A shorter APP_RETENTION_DAYS applies to them, too.",
    )
    strict_fields: bool = Field(
        False,
        description="Let /v1 reject requests with unknown fields; otherwise it ignores them and lists them in the "
        "X-Ignored-Fields header.",
    )
    backup_at: time | None = Field(
        None,
        description="Time of the day at which the server makes a backup, such as 02:30, in its time zone; default: "
        "none. See docs/deploy.md.",
    )
    backup_every_hours: int | None = Field(
        None, ge=1, le=168, description="Instead of APP_BACKUP_AT: hours between two backups."
    )
    backup_dir: Path | None = Field(
        None, description="Folder for scheduled backups; default: backups in the data folder."
    )
    backup_keep: str = Field(
        "7/4",
        description="Scheduled backups that are kept: the newest of so many days, and of so many weeks, besides those "
        "of the last 24 hours.",
    )
    max_message_chars: int = Field(200_000, ge=1, description="Maximum length of a message in characters.")
    mcp_file: Path = Field(
        Path("mcp.json"), description="File that defines MCP servers, whose tools chats may call; see docs/tools.md."
    )
    knowledge_dir: Path | None = Field(
        None,
        description="Folder that the collection Knowledge follows while the server runs; default: none. See "
        "docs/knowledge.md.",
    )
    knowledge_passages: int = Field(
        6, ge=1, le=50, description="Maximum passages of documents that a reply with sources is given."
    )
    knowledge_tokens: int = Field(
        1500,
        ge=100,
        description="Maximum length of these passages in tokens; a quarter of the model's context at most. What does "
        "not fit is dropped, the worst match first.",
    )
    knowledge_min_score: float = Field(
        0.30,
        ge=0,
        le=1,
        description="Passages with a lower score are not used; if there are no others, a reply says that nothing was "
        "found. 0 uses whatever shares a word.",
    )
    knowledge_synonyms: Path | None = Field(
        None,
        description="YAML file with a desk's own synonyms, such as `- [RMA, return]`, beside those in "
        "prompts/knowledge/synonyms.yaml; default: none.",
    )
    knowledge_min_parameters: int = Field(
        1_000_000_000,
        ge=0,
        description="Parameters of the smallest model that answers from sources. With a smaller one, a reply shows the "
        "passages themselves.",
    )
    knowledge_rerank: int = Field(
        0,
        ge=0,
        le=50,
        description="Passages of a search that are sorted anew before a reply with sources, also by how likely the "
        "chat model finds the question after each; 0 is off. The model has to run on this machine. What it gains is "
        "measured by `deskmate kb eval --rerank`.",
    )
    knowledge_rewrite: bool = Field(
        False,
        description="The chat model writes a follow-up such as `And for Germany?` as a question of its own, which is "
        "then searched for.",
    )
    bot_replies: int = Field(
        4,
        ge=1,
        description="Maximum replies to visitors of websites that the bot writes at a time; others wait, and go to "
        "people after half a minute.",
    )
    egress_allow: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="Hosts, addresses or networks such as 10.0.0.0/8 that tool servers at an address may have although "
        "they are private, separated by commas.",
    )
    max_import_mb: int = Field(
        200,
        ge=1,
        description="Maximum size of an imported file in MiB, both as uploaded and unpacked.",
    )
    knowledge_max_file_mb: int = Field(
        50, ge=1, le=200, description="Maximum size of a document of the knowledge base in MiB."
    )
    knowledge_max_documents: int = Field(
        20_000, ge=0, description="Maximum documents of a collection of the knowledge base; 0 is no limit."
    )
    knowledge_max_mb: int = Field(
        4096,
        ge=0,
        description="Maximum size of a collection's files in MiB, old versions included; 0 is no limit.",
    )

    @field_validator("data_dir")
    @classmethod
    def _fits_into_a_url(cls, value: Path) -> Path:
        if "?" in str(value.absolute()):
            raise ValueError("must not contain a question mark, which starts the options in the database's URL")
        return value

    @field_validator("allowed_hosts", "trusted_proxies", "cors_origins", "egress_allow", mode="before")
    @classmethod
    def _split_at_commas(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(host.strip() for host in value.split(",") if host.strip())
        return value

    @field_validator(
        "secret_key",
        "api_key",
        "public_url",
        "metrics_token",
        "oidc_issuer",
        "oidc_client_id",
        "oidc_client_secret",
        "oidc_roles",
        "mail_host",
        "mail_port",
        "mail_user",
        "mail_password",
        "mail_from",
        "knowledge_dir",
        "knowledge_synonyms",
        "backup_at",
        "backup_every_hours",
        "backup_dir",
        "retention_days",
        "response_retention_days",
        "tokens_per_day",
        mode="before",
    )
    @classmethod
    def _empty_is_none(cls, value: object) -> object:
        return None if value == "" else value  # compose files pass unset variables as empty strings

    @field_validator("secret_key", "api_key", "metrics_token")
    @classmethod
    def _cannot_be_guessed(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and (weakness := weakness_of(value.get_secret_value())) is not None:
            raise ValueError(f"{weakness}. {HOW_TO_MAKE_ONE}")
        return value

    @field_validator("public_url")
    @classmethod
    def _is_an_address(cls, value: str | None) -> str | None:
        if value is None:
            return None
        parts = urlsplit(value)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/") or parts.query:
            raise ValueError("must be an address without a path, such as https://desk.example.com")
        return f"{parts.scheme}://{parts.netloc}"

    @field_validator("oidc_issuer")
    @classmethod
    def _is_an_issuer(cls, value: str | None) -> str | None:
        parts = urlsplit(value or "")
        is_local = parts.scheme == "http" and parts.hostname in ("127.0.0.1", "localhost", "::1")
        if value is not None and (not (parts.scheme == "https" or is_local) or not parts.hostname or parts.query):
            raise ValueError("must be an https address such as https://login.example.com/realms/desk")
        return value

    @field_validator("oidc_scopes")
    @classmethod
    def _asks_for_an_id_token(cls, value: str) -> str:
        if "openid" not in value.split():
            raise ValueError("must have the scope openid, without which a provider tells nothing about a user")
        return " ".join(value.split())

    @field_validator("oidc_roles")
    @classmethod
    def _map_groups(cls, value: str | None) -> str | None:
        if value is not None:
            GroupRoles.parse(value)
        return value

    @field_validator("mail_from")
    @classmethod
    def _is_a_sender(cls, value: str | None) -> str | None:
        is_one = value is None or (value.isprintable() and value.count("@") == 1 and is_address(parseaddr(value)[1]))
        if not is_one:
            raise ValueError("must be an address such as desk@shop.example, or Shop <desk@shop.example>")
        return value

    @field_validator("backup_keep")
    @classmethod
    def _keeps_some(cls, value: str) -> str:
        BackupRetention.parse(value)
        return value

    @field_validator("cors_origins")
    @classmethod
    def _are_origins(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(origin_of(one) for one in value)

    @field_validator("trusted_proxies")
    @classmethod
    def _are_networks(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for one in value:
            try:
                ipaddress.ip_network(one, strict=False)
            except ValueError:
                raise ValueError(f"must be addresses or networks such as 10.0.0.0/8, and '{one}' is neither") from None
        return value

    @model_validator(mode="after")
    def _keys_belong_together(self) -> AppSettings:
        if self.accounts and self.secret_key is None:
            raise ValueError(f"Accounts need a secret: set APP_SECRET_KEY. {HOW_TO_MAKE_ONE}")
        if self.oidc_issuer is not None:
            if not self.accounts:
                raise ValueError("APP_OIDC_ISSUER is for a server with accounts. Set APP_ACCOUNTS=true, or unset it")
            needed = {"APP_OIDC_CLIENT_ID": self.oidc_client_id, "APP_OIDC_ROLES": self.oidc_roles}
            if missing := [name for name, value in needed.items() if value is None]:
                raise ValueError(f"Sign-in with a provider needs {' and '.join(missing)} beside APP_OIDC_ISSUER")
        if self.mail_host is not None:
            if not self.accounts:
                raise ValueError("APP_MAIL_HOST is for a server with accounts. Set APP_ACCOUNTS=true, or unset it")
            if self.mail_from is None:
                raise ValueError("Mails need a sender: set APP_MAIL_FROM beside APP_MAIL_HOST")
            if (self.mail_user is None) != (self.mail_password is None):
                raise ValueError("APP_MAIL_USER and APP_MAIL_PASSWORD need each other. Set both, or none")
        if self.backup_at is not None and self.backup_every_hours is not None:
            raise ValueError("APP_BACKUP_AT and APP_BACKUP_EVERY_HOURS exclude each other. Unset one of them")
        if self.accounts and self.api_key is not None:
            raise ValueError(
                "APP_API_KEY is for a server without accounts: with them, users create API keys at /account. Unset it"
            )
        return self

    @property
    def storage_limits(self) -> StorageLimits:
        """The storage limits of each user; unlimited without accounts, for the one local user."""
        if not self.accounts:
            return StorageLimits()
        return StorageLimits(
            max_bytes=self.storage_mb_per_user * MIB or None,
            max_conversations=self.conversations_per_user or None,
            max_tags=MAX_TAGS,
        )

    @property
    def response_days(self) -> int | None:
        """Days after which stored responses are deleted; None keeps them."""
        return min((days for days in (self.retention_days, self.response_retention_days) if days), default=None)

    @property
    def mail_server(self) -> MailServer | None:
        """The server that mails are sent by; None: none are."""
        if self.mail_host is None or self.mail_from is None:
            return None
        return MailServer(
            host=self.mail_host,
            port=self.mail_port or PORTS[self.mail_tls],
            tls=self.mail_tls,
            sender=self.mail_from,
            user=self.mail_user,
            password=self.mail_password.get_secret_value() if self.mail_password is not None else None,
            delay=timedelta(minutes=self.mail_delay_minutes),
        )

    @property
    def backup_plan(self) -> BackupPlan | None:
        """When backups are made; None: never."""
        if self.backup_every_hours is not None:
            return BackupPlan(every=timedelta(hours=self.backup_every_hours))
        return BackupPlan(at=self.backup_at) if self.backup_at is not None else None

    @property
    def backup_folder(self) -> Path:
        """Where scheduled backups go."""
        return (self.backup_dir or self.data_dir / "backups").absolute()

    @property
    def public_host(self) -> str | None:
        """The host name in ``public_url``, which browsers send as ``Host``."""
        return urlsplit(self.public_url).hostname if self.public_url else None

    @property
    def resolved_database_url(self) -> str:
        """The database's URL with an explicit driver: ``sqlite:///...`` or ``postgresql+psycopg://...``."""
        if not self.database_url:
            return f"sqlite:///{(self.data_dir / 'deskmate.db').absolute()}"
        return with_driver(self.database_url)


def with_driver(url: str) -> str:
    """Adds the driver that Deskmate uses (psycopg) to a PostgreSQL URL as users write it."""
    scheme, separator, rest = url.partition("://")
    if scheme in ("postgres", "postgresql"):
        scheme = "postgresql+psycopg"
    return f"{scheme}{separator}{rest}"
