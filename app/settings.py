"""Application configuration: every field is an ``APP_*`` environment variable and a ``deskmate serve`` flag."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from app.domain.long_talks import ContextPolicy
from app.domain.origins import origin_of
from app.domain.secret_strength import HOW_TO_MAKE_ONE, weakness_of
from app.domain.storage import MAX_TAGS, MIB, StorageLimits


class AppSettings(BaseSettings):
    """Where the application listens, what it stores and how patient it is."""

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
        (), description="Host names besides localhost under which browsers may reach the page, separated by commas."
    )
    accounts: bool = Field(
        False,
        description="Whether people sign in. Without, there is one local user, and the server listens on this machine "
        "only.",
    )
    secret_key: SecretStr | None = Field(
        None,
        description="With accounts: what sessions, links and API keys are kept under, at least 32 characters. Another "
        "one signs everybody out and ends every link and key.",
    )
    public_url: str | None = Field(
        None,
        description="The address that people use, such as https://desk.example.com. With https, cookies are Secure.",
    )
    trusted_proxies: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="Addresses or networks of proxies whose X-Forwarded-For and X-Forwarded-Proto are believed, "
        "separated by commas.",
    )
    api_key: SecretStr | None = Field(
        None,
        description="Without accounts: programs must send it to /v1 as a bearer token, at least 32 characters. The "
        "page on this machine needs none.",
    )
    cors_origins: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="Origins whose pages may call /v1 from a browser, such as https://app.example.com, separated by "
        "commas; default: none may.",
    )
    metrics_token: SecretStr | None = Field(
        None,
        description="With accounts, /metrics wants it as a bearer token; default: nobody gets them.",
    )
    session_days: int = Field(14, ge=1, le=400, description="For so many days without a visit a sign-in lasts.")
    messages_per_minute: int | None = Field(
        30, ge=1, description="With accounts: most messages that one person may send in a minute."
    )
    concurrent_replies: int | None = Field(
        4, ge=1, description="With accounts: most replies that may be written for one person at a time."
    )
    tokens_per_day: int | None = Field(
        None,
        ge=1,
        description="With accounts: most tokens that one person's replies may take in a day (UTC), read and written; "
        "default: no limit.",
    )
    storage_mb_per_user: int = Field(
        1024,
        ge=0,
        description="With accounts: most MiB that one person's conversations may take: their texts, and 1 KiB for each "
        "message; 0 is no limit.",
    )
    conversations_per_user: int = Field(
        20_000, ge=0, description="With accounts: most conversations that are kept for one person; 0 is no limit."
    )
    checkpoint_seconds: float = Field(
        1.5, gt=0, le=60, description="How often a reply in flight is written to the database."
    )
    lease_seconds: float = Field(
        15.0,
        gt=0,
        le=600,
        description="How long a process that writes a reply may give no sign of life before another one on the same "
        "PostgreSQL takes it for dead.",
    )
    shutdown_seconds: float = Field(
        8.0, ge=0, le=600, description="How long replies in flight may go on when the server shuts down."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="How much is logged: debug, info, warning or error."
    )
    context_policy: ContextPolicy = Field(
        "drop_oldest",
        description="For conversations longer than the model's context: drop_oldest turns, or refuse the message.",
    )
    auto_titles: bool = Field(
        True, description="Whether the model is asked for the titles of conversations; else the first message is one."
    )
    retention_days: int | None = Field(
        None,
        ge=1,
        description="Conversations without a message for so many days are deleted, pinned ones too; default: none are.",
    )
    strict_fields: bool = Field(
        False,
        description="Whether /v1 refuses requests with fields that it does not know. Else it ignores the fields, and "
        "lists them in the header X-Ignored-Fields.",
    )
    max_message_chars: int = Field(200_000, ge=1, description="Longest message that is accepted, in characters.")
    max_import_mb: int = Field(
        200,
        ge=1,
        description="Largest file that is imported, in MiB, and most that is unpacked of it.",
    )

    @field_validator("data_dir")
    @classmethod
    def _fits_into_a_url(cls, value: Path) -> Path:
        if "?" in str(value.absolute()):
            raise ValueError("must not contain a question mark: in the database's URL, options would begin there")
        return value

    @field_validator("allowed_hosts", "trusted_proxies", "cors_origins", mode="before")
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
        "retention_days",
        "tokens_per_day",
        mode="before",
    )
    @classmethod
    def _empty_is_none(cls, value: object) -> object:
        return None if value == "" else value  # as compose files hand on what is not set

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
                raise ValueError(f"must be addresses or networks such as 10.0.0.0/8, and '{one}' is none") from None
        return value

    @model_validator(mode="after")
    def _keys_belong_together(self) -> AppSettings:
        if self.accounts and self.secret_key is None:
            raise ValueError(f"Accounts need a secret: set APP_SECRET_KEY. {HOW_TO_MAKE_ONE}")
        if self.accounts and self.api_key is not None:
            raise ValueError(
                "APP_API_KEY is for a server without accounts: with them each person makes keys at /account. Unset it"
            )
        return self

    @property
    def storage_limits(self) -> StorageLimits:
        """What each user may store. Without accounts the one at this computer has all of it."""
        if not self.accounts:
            return StorageLimits()
        return StorageLimits(
            max_bytes=self.storage_mb_per_user * MIB or None,
            max_conversations=self.conversations_per_user or None,
            max_tags=MAX_TAGS,
        )

    @property
    def public_host(self) -> str | None:
        """The name in ``public_url``, which browsers send as ``Host``."""
        return urlsplit(self.public_url).hostname if self.public_url else None

    @property
    def resolved_database_url(self) -> str:
        """The database's URL with its driver named: ``sqlite:///...`` or ``postgresql+psycopg://...``."""
        if not self.database_url:
            return f"sqlite:///{(self.data_dir / 'deskmate.db').absolute()}"
        return with_driver(self.database_url)


def with_driver(url: str) -> str:
    """A database's URL as people write it, with the driver named that this program uses."""
    scheme, separator, rest = url.partition("://")
    if scheme in ("postgres", "postgresql"):
        scheme = "postgresql+psycopg"
    return f"{scheme}{separator}{rest}"
