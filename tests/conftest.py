"""Both databases; and how processes share the tests (``make test`` starts three): the browser's on two, those that kill
servers together, the guide's too, others file by file, the longest first."""

from __future__ import annotations

import gc
import ssl
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path

import hypothesis
import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

import engine  # noqa: F401  before any test imports PyTorch: it says how long OpenMP's threads spin
from app.concurrency.garbage_collection import paused_gc
from app.ui.gradio_patches import disable_type_stubs
from testing.databases import PostgresServer, postgres_server

disable_type_stubs()  # before any test imports Gradio, whose import takes twice as long with them

# A busy machine may take its time.
hypothesis.settings.register_profile("deskmate", deadline=None)
hypothesis.settings.load_profile("deskmate")

TESTS = Path(__file__).parent
#: The browser's tests that need the servers of all, the guide's among them; the others start most of their own.
USE_SHARED_SERVERS = (
    *("bad_input", "chatting", "context_trimming", "conversation_list", "hostile_text", "large_texts", "message_tree"),
    *("settings_panel", "slow_answers"),
)


#: What one process takes longest for, folders and files, the longest first. What is not here takes a few seconds.
LONGEST = (
    *("e2e/test_other_gradios.py", "e2e", "faults", "engine/runtime/test_soak.py", "app/store/test_copy.py"),
    *("app/upgrade", "test_setup.py", "models", "engine/sampling/test_sampler.py", "app/store/test_checked_backup.py"),
    *("engine/execution/test_greedy_equality.py", "app/api/test_openai_invalid_fields.py", "app/turns"),
    *("engine/execution/test_native_families.py", "engine/execution/test_verified.py"),
    *("engine/execution/test_triton.py", "app/api/test_fuzz.py", "app/store/test_migrations.py"),
    *("engine/execution/test_overlapped.py", "engine/execution/test_native_gemm.py", "app/cli"),
    *("app/transfer/test_import_bounds.py", "app/server/test_serving.py", "engine/model/test_linears.py"),
    *("app/store/test_backup.py", "engine/execution/test_batch_invariance.py", "engine/execution/test_speculation.py"),
    *("app/cases/test_webhooks.py", "engine/execution/test_lora.py", "engine/execution/test_native_kernels.py"),
    *("engine/execution/test_block_products.py", "app/store/test_database.py", "engine/runtime/test_beam_search.py"),
    *("app/ui/test_gradio_patches.py", "engine/runtime/test_sleep_and_swap.py", "app/api/test_extreme_values.py"),
    *("app/auth/test_accounts.py", "engine/text/test_word_filter.py", "clients"),
)


class SchedulingByFolder(LoadScopeScheduling):
    """What shares a browser or servers stays in one process, everything else goes file by file."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        if file == "tests/e2e/test_other_gradios.py":
            return file  # it starts its own browsers
        if file.startswith("tests/e2e/"):
            return (
                "browser 1" if file.endswith(tuple(f"test_{name}.py" for name in USE_SHARED_SERVERS)) else "browser 2"
            )
        return next((room for room in ("tests/faults/", "tests/models/") if file.startswith(room)), file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> SchedulingByFolder:
    config.option.loadscopereorder = False  # by size; here the order is that of the items
    return SchedulingByFolder(config, log)


@cache
def _place(file: Path) -> int:
    return next((place for place, name in enumerate(LONGEST) if file.is_relative_to(TESTS / name)), len(LONGEST))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None]:
    """Imports leave little garbage, and looking for it takes a fifth of the collection."""
    with paused_gc():
        return (yield)


def _uses_postgres(item: pytest.Item) -> bool:
    params = item.callspec.params.values() if isinstance(item, pytest.Function) and hasattr(item, "callspec") else ()
    return "postgres" in getattr(item, "fixturenames", ()) or "postgresql" in params


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs PostgreSQL, and begin with what takes longest, so that all processes end together."""
    for item in items:
        if _uses_postgres(item):
            item.add_marker(pytest.mark.postgres)
    items.sort(key=lambda item: _place(item.path))


@pytest.fixture(scope="module", autouse=True)
def freeze_garbage() -> None:
    """An engine that stops collects garbage, and would each time look through all that was ever imported, and through
    what the files before have left."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def cache_ssl_context() -> Iterator[None]:
    """Each HTTP client would read those of all authorities again, which is most of what its start takes."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ssl, "create_default_context", cache(ssl.create_default_context))
        yield


@pytest.fixture(scope="session")
def postgres(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    if "not postgres" in request.config.option.markexpr:
        pytest.fail("This test needs the marker postgres: it starts PostgreSQL in a run without it.", pytrace=False)
    with postgres_server() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest) -> Iterator[str | None]:
    """For ``AppSettings``: a fresh database of each kind."""
    if request.param == "sqlite":
        yield None
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    url = server.migrated()
    yield url
    server.recycle(url)


@pytest.fixture
def single_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """One at a time, each with a call of what a test has put in its place; models this small take several at once."""
    monkeypatch.setattr("engine.execution.steps.multi_step.MAX_STEPS", 1)
