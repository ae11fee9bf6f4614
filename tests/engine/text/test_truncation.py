"""What is left out of a conversation that is longer than the context window."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import ChatMessage, ContextLengthError, PreparedPrompt, SamplingParams, Truncation
from engine.text.truncation import ContextBudget, count_turns_to_omit, prepare_truncated


def prompt_tokens(sizes: list[int], newest: int, system: int, left_out: int) -> int:
    return system + sum(sizes[left_out:]) + newest


def leave_out(
    sizes: list[int],
    newest: int,
    system: int,
    already: int,
    budget: ContextBudget,
    guessed: list[int] | None = None,
) -> int:
    async def count(left_out: int) -> int:
        assert 0 <= left_out <= len(sizes)
        return prompt_tokens(sizes, newest, system, left_out)

    return asyncio.run(count_turns_to_omit(count, guessed or sizes, already=already, budget=budget))


@given(
    sizes=st.lists(st.integers(1, 60), max_size=12),
    newest=st.integers(1, 250),
    system=st.integers(0, 250),
    already=st.integers(0, 14),
    budget=st.builds(ContextBudget, st.integers(8, 200), st.none() | st.integers(1, 300)),
    data=st.data(),
)
def test_what_is_sent_fits_unless_the_message_alone_does_not(
    sizes: list[int], newest: int, system: int, already: int, budget: ContextBudget, data: st.DataObject
) -> None:
    """However wrong the turns' sizes are guessed."""
    guessed = data.draw(st.lists(st.integers(0, 10**6), min_size=len(sizes), max_size=len(sizes)))
    left_out = leave_out(sizes, newest, system, already, budget, guessed)
    tokens = prompt_tokens(sizes, newest, system, left_out)
    assert left_out <= len(sizes)
    assert tokens <= budget.for_prompt or left_out == len(sizes)
    assert 1 <= budget.for_reply <= budget.context_length // 4
    if left_out > already:  # never more than it takes to have three quarters of the budget
        more = prompt_tokens(sizes, newest, system, left_out - 1)
        history = more - newest - system
        assert more > budget.for_prompt or 4 * (history + 1) > 3 * (budget.for_prompt - newest - system)


@given(sizes=st.lists(st.integers(5, 20), min_size=40, max_size=60))
def test_the_beginning_stays_the_same_for_several_turns(sizes: list[int]) -> None:
    """Each time something is left out, turns for a quarter of the budget come before the next time."""
    budget = ContextBudget(200, 50)
    already, sent_since = 0, 0
    for turn in range(len(sizes)):
        left_out = leave_out(sizes[:turn], 5, 10, already, budget)
        if left_out != already:
            assert already == 0 or sent_since >= (budget.for_prompt - 15) // 4 - 2 * 20
            sent_since = 0
        already = left_out
        sent_since += sizes[turn]
    assert already > 0


@given(
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=12),
    newest=st.integers(1, 50),
    already=st.integers(1, 14),
)
def test_turns_come_back_where_there_is_room_for_them_again(sizes: list[int], newest: int, already: int) -> None:
    """What is said to be left out for want of room is not left out beside free room."""
    budget = ContextBudget(400, 100)
    left_out = leave_out(sizes, newest, 0, already, budget)
    if left_out:
        assert prompt_tokens(sizes, newest, 0, left_out - 1) > 0.75 * budget.for_prompt


@pytest.mark.parametrize("error", [0.0, 0.3, 1000.0])
def test_good_guesses_spare_most_counts_and_bad_ones_cost_few(error: float) -> None:
    sizes = [40 + 13 * number % 60 for number in range(1000)]
    guessed = [int(size * (1 + error * (number % 2))) for number, size in enumerate(sizes)]
    counted: list[int] = []

    async def count(left_out: int) -> int:
        counted.append(left_out)
        return prompt_tokens(sizes, 5, 10, left_out)

    asyncio.run(count_turns_to_omit(count, guessed, already=0, budget=ContextBudget(20_000, 500)))
    assert len(counted) == len(set(counted)) <= 6


def message(role: str, content: str) -> ChatMessage:
    return {"role": role, "content": content}


CONVERSATIONS = st.builds(
    lambda systems, turns, last: [
        *[message("system", "s" * length) for length in systems],
        *[message(role, "x" * length) for turn in turns for role, length in turn],
        *[message(role, "y" * length) for role, length in last],
    ],
    st.lists(st.integers(0, 20), max_size=2),
    st.lists(
        st.integers(0, 30).map(lambda length: [("user", length), ("assistant", length // 2), ("assistant", 1)]),
        max_size=8,
    ),
    st.sampled_from([[("user", 5)], [("user", 5), ("assistant", 3)], [("user", 80)]]),
)


@given(messages=CONVERSATIONS, already=st.none() | st.integers(0, 40))
def test_whole_turns_go_and_the_rest_stays_in_order(messages: list[ChatMessage], already: int | None) -> None:
    limit = 60

    async def prepare(kept: Sequence[ChatMessage]) -> PreparedPrompt:
        tokens = sum(len(one["content"]) for one in kept)
        if tokens >= limit:
            raise ContextLengthError("too long", prompt_tokens=tokens, max_model_len=limit)
        return PreparedPrompt(
            messages=tuple(kept),
            caller=None,
            requested_params=None,
            params=SamplingParams(),
            num_prompt_tokens=tokens,
            max_model_len=limit,
        )

    truncation = None if already is None else Truncation(already)
    num_system = sum(one["role"] == "system" for one in messages)
    last = max(index for index, one in enumerate(messages) if one["role"] == "user")
    shortest = messages[:num_system] + messages[last:]
    work = prepare_truncated(prepare, messages, truncation, ContextBudget(limit, 10))
    least = messages if truncation is None else shortest
    if (tokens := sum(len(one["content"]) for one in least)) >= limit:
        with pytest.raises(ContextLengthError) as refused:
            asyncio.run(work)
        assert refused.value.prompt_tokens == tokens
        return
    prepared = asyncio.run(work)
    kept, omitted = list(prepared.messages), prepared.num_omitted_messages
    assert kept == messages[:num_system] + messages[num_system + omitted :]
    assert kept[num_system]["role"] == "user"
    assert kept[-len(shortest) + num_system :] == messages[last:]
    if truncation is None:
        assert omitted == 0
    else:
        if prepared.num_prompt_tokens > 50:
            assert kept == shortest
