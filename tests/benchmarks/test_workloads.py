"""What every engine is asked to do, and what is read off its replies."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from benchmarks.peers.protocol import Chat, TimedReply
from benchmarks.workloads import Workload, interruption, make_workloads


def asked(work: Workload, turn: int) -> list[list[Chat]]:
    """The chats of a repetition, answered by a token each tenth of a second: 5, 6, 7 and so on."""
    seen: list[list[Chat]] = []

    def run(chats: Sequence[Chat]) -> list[TimedReply]:
        seen.append(list(chats))
        return [
            TimedReply(0.0, [0.5 + step / 10 for step in range(chat.new_tokens)], list(range(5, 5 + chat.new_tokens)))
            for chat in chats
        ]

    figures = work.measure(run, turn)
    assert {figure.key for figure in work.figures} <= figures.keys()
    seen_figures.update(figures)
    return seen


seen_figures: dict[str, float] = {}


@pytest.fixture(autouse=True)
def _forget() -> None:
    seen_figures.clear()


def test_the_prompts_are_those_of_the_published_figures() -> None:
    found = make_workloads(32_000)
    (eight,), (many,) = asked(found["8 chats"], 1), asked(found["32 chats"], 1)
    assert [sum(chat.new_tokens for chat in chats) for chats in (eight, many)] == [704, 3032]
    assert all(32 <= len(chat.prompt) <= 256 for chat in (*eight, *many))
    assert all(10 <= token < 31_990 for chat in many for token in chat.prompt)


def test_no_repetition_finds_the_prompts_of_another_in_a_cache() -> None:
    (first,), (second,) = (asked(make_workloads(3072)["8 chats"], turn)[:1] for turn in (0, 1))
    assert {chat.prompt[0] for chat in first}.isdisjoint(chat.prompt[0] for chat in second)
    assert [chat.prompt[1:] for chat in first] == [chat.prompt[1:] for chat in second]


def test_rates_and_delays_of_one_chat_and_of_many() -> None:
    asked(make_workloads(3072)["1 chat"], 1)
    assert seen_figures == {"ttft": pytest.approx(500), "decode": pytest.approx(10)}
    (chats,) = asked(make_workloads(3072)["8 chats"], 1)
    longest = max(chat.new_tokens for chat in chats)
    rate = sum(chat.new_tokens for chat in chats) / (0.5 + (longest - 1) / 10)
    assert seen_figures["throughput"] == pytest.approx(rate)


def test_the_second_turn_goes_on_from_the_reply_to_the_first() -> None:
    (cold,), (warm,) = asked(make_workloads(3072)["second turn after 2,000"], 4)
    assert warm.prompt[: len(cold.prompt)] == cold.prompt
    assert warm.prompt[2000:2016] == tuple(range(5, 21))
    assert len(warm.prompt) == 2064
    assert seen_figures["share"] == 100


def test_only_gaps_while_the_long_prompt_is_read_are_called_interrupted() -> None:
    early = TimedReply(0.0, [1.0, 1.8, 3.0, 9.0, 10.0, 11.0])
    settled_late = TimedReply(0.0, [2.0, 3.0, 8.0, 10.0])
    found = interruption([early, settled_late], TimedReply(asked=4.0, times=[9.5, 9.6]))
    # alone: 2-3 of the other; what begins before 2 is from before it had begun. Meanwhile: 3-9, 9-10, 3-8, 8-10.
    assert found["alone"] == 1000
    assert found["gap"] == pytest.approx(1000 * (5 + 0.85))
    assert found["ttft"] == pytest.approx(5500)
    with pytest.raises(RuntimeError, match="were done before"):
        interruption([TimedReply(0.0, [1.0, 2.0])], TimedReply(asked=4.0, times=[9.5]))
