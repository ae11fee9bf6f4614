"""Whatever a request says, as the API's own description allows it or not: the answer is never an error of ours."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from app.domain.roles import UserRole
from tests.app.desk import desk

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]

EXAMPLES = 20
#: They would end the session that asks, or last until somebody leaves; or want a token, or tell that all is asleep.
LEFT_OUT = (
    *("/api/account/sign-out", "/api/account/sign-out-everywhere"),
    *("/api/events", "/api/turns/{turn_id}/events"),
    *("/metrics", "/ready"),
)
#: Of what a fuzz may really bring about: the engine is put to sleep, and what is not here is asked for.
EXPECTED = {"engine_unavailable", "not_supported", "overloaded"}


@contextmanager
def running(data_dir: Path) -> Iterator[tuple[str, str]]:
    """A desk in a thread of its own: its address, and the cookie of an admin."""
    ready, over = threading.Event(), threading.Event()
    told: list[str] = []

    async def serve() -> None:
        async with desk(data_dir, messages_per_minute=None, concurrent_replies=None) as here:
            http = await here.add("ada", UserRole.ADMIN)
            told.extend((here.live.url, f"deskmate_session={http.cookies['deskmate_session']}"))
            ready.set()
            await asyncio.to_thread(over.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert ready.wait(60)
    try:
        yield told[0], told[1]
    finally:
        over.set()
        thread.join(60)


def test_no_request_is_answered_with_an_error_of_ours(tmp_path: Path) -> None:
    import schemathesis

    with running(tmp_path) as (url, cookie):
        headers = {"Cookie": cookie}
        schema = schemathesis.openapi.from_url(f"{url}/api/openapi.json", headers=headers)
        operations = [one.ok() for one in schema.get_all_operations()]
        fuzzed = [one for one in operations if one.path not in LEFT_OUT]
        assert len(fuzzed) > 40
        reached: set[int] = set()
        for operation in fuzzed:

            @settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
            @given(case=operation.as_strategy())
            def fuzz(case: schemathesis.Case) -> None:
                answer = case.call(headers=headers, timeout=30)
                reached.add(answer.status_code)
                if answer.status_code >= 500:
                    assert answer.json()["error"]["code"] in EXPECTED, f"{case.method} {case.path}: {answer.text}"
                signed_out = answer.status_code == 401 and answer.json()["error"]["code"] == "not_signed_in"
                assert not signed_out, f"{case.method} {case.path} ended the session"

            fuzz()
        assert {200, 404, 422} <= reached
