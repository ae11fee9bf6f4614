"""The log never holds what people write, not even when something breaks."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import structlog
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from app.server.logs import configure_logging
from app.store.db.database import sqlite_engine

SECRET = "dear diary, nobody may read this"


@pytest.fixture(autouse=True)
def _put_back() -> Iterator[None]:
    root = logging.getLogger()
    before = root.handlers[:], root.level, structlog.get_config()
    yield
    root.handlers[:], level, config = before
    root.setLevel(level)
    structlog.configure(**config)


def break_down(message: str) -> None:
    raise RuntimeError(f"broke on a text of {len(message)} characters")


def test_a_traceback_shows_no_values(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("debug")
    try:
        break_down(SECRET)
    except RuntimeError:
        structlog.get_logger("app.test").exception("request failed")
        logging.getLogger("some.library").exception("failed")
    shown = capsys.readouterr().err
    assert shown.count("RuntimeError: broke on a text of 32 characters") == 2
    assert SECRET not in shown


def test_a_database_error_shows_no_values(
    capsys: pytest.CaptureFixture[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    configure_logging("debug")
    engine = sqlite_engine(f"sqlite:///{tmp_path_factory.mktemp('data') / 'x.db'}", connections=1)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE note (body TEXT UNIQUE)"))
    try:
        with engine.begin() as connection:
            for _ in range(2):
                connection.execute(text("INSERT INTO note VALUES (:body)"), {"body": SECRET})
    except DBAPIError:
        logging.getLogger("app.test").exception("failed")
    engine.dispose()
    shown = capsys.readouterr().err
    assert "UNIQUE constraint failed" in shown
    assert SECRET not in shown


@pytest.mark.parametrize("library", ["httpx", "httpx2"])
def test_every_request_to_somebody_else_is_not_logged(capsys: pytest.CaptureFixture[str], library: str) -> None:
    configure_logging("info")
    logging.getLogger(library).info("HTTP Request: GET https://example.com")
    logging.getLogger(library).warning("example.com does not answer")
    shown = capsys.readouterr().err
    assert "HTTP Request" not in shown
    assert "does not answer" in shown


def test_levels(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("warning")
    structlog.get_logger("app.test").info("quiet")
    structlog.get_logger("app.test").warning("loud")
    logging.getLogger("uvicorn.error").info("Started server process")
    shown = capsys.readouterr().err
    assert "loud" in shown
    assert "quiet" not in shown
    assert "Started" not in shown
