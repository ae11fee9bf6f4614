"""The prefix cache serves a user's own text to that user alone; the template and shared system prompts to everyone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import Caller, ChatMessage, Engine, EngineSettings, SamplingParams
from testing.models import make_model
from tests.engine.scheduling.test_scheduler import SimulatedCache, make_request, make_scheduler, run_to_end

ANN, BOB = Caller("ann"), Caller("bob")
SHORT = SamplingParams(max_tokens=2, temperature=0, ignore_eos=True)
DESK = "You answer for the desk. " * 6
SECRET = "My account number is 4711 and my dog is called Rex, please cancel everything today."


@pytest.fixture(scope="module", params=[8, 64, 512], ids="blocks of {}".format)
def block_size(request: pytest.FixtureRequest) -> int:
    size: int = request.param
    return size


@pytest.fixture
async def engine(tmp_path: Path, block_size: int) -> AsyncIterator[Engine]:
    model = make_model(tmp_path / "model", "qwen2", eos=False, max_position_embeddings=1024)
    settings = EngineSettings(model=str(model), dtype="float32", native=False, kv_block_size=block_size)
    async with Engine(settings) as running:
        yield running


async def cached(engine: Engine, messages: list[ChatMessage], caller: Caller | None) -> int:
    """Prompt tokens that the cache held, as users are told."""
    last = [delta async for delta in engine.chat(messages, SHORT, caller=caller)][-1]
    engine._core.check()
    assert last.timings is not None
    return last.timings.cached_prompt_tokens or 0


def said(text: str, system: str | None = None, *, shared: bool = False) -> list[ChatMessage]:
    messages = [ChatMessage(role="user", content=text)]
    if system is not None:
        messages.insert(0, ChatMessage(role="system", content=system))
        if shared:
            messages[0]["shared"] = True
    return messages


@pytest.mark.parametrize("shared", [True, False])
async def test_a_guessed_message_hits_as_little_as_any_other(engine: Engine, shared: bool) -> None:
    await cached(engine, said(SECRET, DESK, shared=shared), ANN)
    wrong = await cached(engine, said("Something else entirely.", DESK, shared=shared), BOB)
    for guess in (SECRET, SECRET[:40], SECRET[:12] + "no"):
        assert await cached(engine, said(guess, DESK, shared=shared), Caller(f"bob {len(guess)}")) == wrong
    assert await cached(engine, said(SECRET, DESK, shared=shared), ANN) > wrong  # her own she finds again


async def test_a_system_prompt_that_a_user_wrote_is_that_users(engine: Engine) -> None:
    await cached(engine, said("Hi", SECRET), ANN)
    other = await cached(engine, said("Hi", "Something else."), BOB)
    assert await cached(engine, said("Hi", SECRET), Caller("bob 2")) == other


async def test_a_shared_system_prompt_is_found_as_far_as_without_users(engine: Engine) -> None:
    await cached(engine, said("Who are you?", DESK, shared=True), ANN)
    with_users = await cached(engine, said("Is it open?", DESK, shared=True), BOB)
    await cached(engine, said("Who are you?", DESK), None)
    assert with_users == await cached(engine, said("Is it open?", DESK), None) > 100


async def test_no_user_finds_what_was_cached_without_one_and_the_other_way_round(engine: Engine) -> None:
    await cached(engine, said(SECRET), None)
    low = await cached(engine, said("Else."), ANN)
    assert await cached(engine, said(SECRET), BOB) == low
    assert await cached(engine, said("My account number is 12"), Caller("carl")) == low


async def test_plain_prompts_are_a_users_from_the_first_token(engine: Engine) -> None:
    prompt = list(range(20, 150))

    async def asked(caller: Caller | None) -> int:
        last = [delta async for delta in engine.complete(prompt, SHORT, caller=caller)][-1]
        assert last.timings is not None
        return last.timings.cached_prompt_tokens or 0

    assert await asked(ANN) == 0
    assert await asked(BOB) == 0
    assert await asked(Caller("ann", "salted")) == 0
    assert await asked(ANN) == len(prompt) - 1


def test_salts_do_not_meet() -> None:
    callers = [Caller("a"), Caller("a", "b"), Caller("ab"), Caller("a", "1 b"), Caller("1 a"), Caller("", "a")]
    assert len({caller.salt for caller in callers}) == len(callers)


@given(
    prompts=st.lists(
        st.tuples(st.sampled_from(["ann", "bob", "carl"]), st.integers(0, 9), st.lists(st.integers(0, 2), max_size=14)),
        min_size=2,
        max_size=8,
    ),
    block_size=st.sampled_from([1, 2, 4, 8]),
)
def test_hits_are_the_shared_tokens_and_the_users_own(
    prompts: list[tuple[str, int, list[int]]], block_size: int
) -> None:
    """However prompts resemble one another: a request hits no more than its shared tokens, or what its user sent."""
    scheduler, cache = make_scheduler(num_blocks=200, block_size=block_size, max_len=64), SimulatedCache(block_size)
    sent: dict[str, list[list[int]]] = {}
    for number, (user, num_shared, own) in enumerate(prompts):
        shared = [1, 2, 0, 1, 1, 2, 0, 0, 1][:num_shared]
        request = make_request(f"r{number}", [*shared, *own, 3], 1)
        request.private_salt, request.num_shared_tokens = user.encode(), len(shared)
        scheduler.add(request)
        run_to_end(scheduler, cache)
        mine = max((_num_common(request.token_ids, other) for other in sent.get(user, ())), default=0)
        allowed = max(mine, len(shared))
        assert request.num_cached_tokens <= allowed
        sent.setdefault(user, []).append(list(request.token_ids))


def test_a_request_of_no_user_goes_on_in_a_block_that_a_users_request_began() -> None:
    """Both make the block findable behind the same parent; giving it to a third one forgets it once."""
    scheduler, cache = make_scheduler(num_blocks=4, block_size=4, max_len=8), SimulatedCache(4)
    for user, prompt in (("ann", [1, 2]), ("", [1, 2, 3]), ("bob", [3, 3, 3, 3, 3])):
        request = make_request(user, prompt, 1)
        request.private_salt, request.num_shared_tokens = user.encode(), 2 if user == "ann" else 0
        scheduler.add(request)
        run_to_end(scheduler, cache)
        scheduler.check()
    for block in scheduler.pool.allocate(3):
        scheduler.pool.release([block])
    scheduler.check()


def _num_common(one: list[int], other: list[int]) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
