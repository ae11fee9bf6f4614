"""What a caller asked for, as the scheduler sees it."""

from __future__ import annotations

from unittest.mock import Mock

from engine import Caller, SamplingParams
from engine.execution.submission import make_submission
from engine.scheduling.request import Request
from tests.engine.scheduling.test_scheduler import SimulatedCache, make_scheduler, sampled

PARAMS = SamplingParams.neutral(temperature=0.0)


def submitted(name: str, caller: Caller | None) -> Request:
    return make_submission(
        name,
        [1, 2, 3, 4],
        PARAMS,
        make_grammar=lambda request: None,
        bans=lambda request: (),
        make_detokenizer=Mock,
        max_tokens=9,
        stop_token_ids=frozenset(),
        arrival=0.0,
        deadline=None,
        priority=0,
        cache_salt=b"",
        caller=caller,
    ).request


def test_a_cache_salt_without_accounts_makes_no_other_user() -> None:
    """All requests are one user's, so those that run keep their seats."""
    scheduler, cache = make_scheduler(seqs=2, clock=lambda: 0.0), SimulatedCache(4)
    for name, caller in (("salted", Caller("", "salt")), ("plain", None)):
        for number in range(2):
            scheduler.add(submitted(f"{name} {number}", caller))
        plan = scheduler.plan()
        cache.execute(plan)
        scheduler.commit(plan, dict.fromkeys(sampled(plan), 1))
    assert [request.id for request in scheduler.running] == ["salted 0", "salted 1"]
    assert scheduler.counters.preemptions == 0
