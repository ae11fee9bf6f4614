"""Application configuration: every field is an ``APP_*`` environment variable and a ``deskmate serve`` flag."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from app.domain.long_talks import ContextPolicy


class AppSettings(BaseSettings):
    """Where the application listens, what it stores and how patient it is."""

    model_config = SettingsConfigDict(env_prefix="APP_", env_file=".env", extra="ignore", frozen=True)

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

    @field_validator("allowed_hosts", mode="before")
    @classmethod
    def _split_at_commas(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(host.strip() for host in value.split(",") if host.strip())
        return value

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
