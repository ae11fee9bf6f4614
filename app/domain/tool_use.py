"""Calls of tools in a reply: what the model asked for, what the user decided, and what came of it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

import pydantic_core

NOT_APPROVED = "The user did not allow this call."
CUT_OFF = "This call was cut off while it ran: whether it had an effect is not known."
_PLAIN_NAME = re.compile(r"[\w .$@:/-]*")


class ToolUseStatus(StrEnum):
    """The state of a call."""

    WAITING = "waiting"  #: for the user's decision
    ALLOWED = "allowed"  #: it is about to run, or runs
    DONE = "done"
    FAILED = "failed"  #: the result says why
    DENIED = "denied"  #: by the user


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUse:
    """A call of a tool in a reply, with the user's decision and its result: the engine's ``ToolCall`` has neither.

    The reply's text and thinking are those of all rounds in a row: ``at`` and ``reasoning_at`` say where they stood
    when the call was made. The calls of one round have the same ``round``.
    """

    id: str
    name: str
    arguments: str  #: JSON text
    round: int
    at: int  #: characters of the reply's text before it
    reasoning_at: int = 0  #: characters of the thinking before it
    status: ToolUseStatus = ToolUseStatus.WAITING
    result: str = ""
    seconds: float | None = None  #: how long it ran

    @property
    def is_open(self) -> bool:
        """Whether it has no result yet."""
        return self.status in (ToolUseStatus.WAITING, ToolUseStatus.ALLOWED)

    def arguments_for_model(self) -> str:
        """The arguments as a prompt shows them: the JSON text of an object, which many chat templates demand.

        Other text becomes a string in an object. So do arguments whose names could hold a model's control token, such
        as ``<|im_end|>`` or ``[INST]``: the engine refuses them in names, and with them the whole conversation.
        """
        try:
            parsed = pydantic_core.from_json(self.arguments or "{}", allow_inf_nan=False)
        except ValueError:
            parsed = None
        if isinstance(parsed, dict) and _has_plain_names(parsed):
            return self.arguments or "{}"
        return json.dumps({"arguments": self.arguments}, ensure_ascii=False)

    def result_for_model(self) -> str:
        """The text that the model is given as the call's result."""
        match self.status:
            case ToolUseStatus.WAITING | ToolUseStatus.DENIED:
                return NOT_APPROVED
            case ToolUseStatus.ALLOWED:
                return CUT_OFF
            case _:
                return self.result


def _has_plain_names(value: Any) -> bool:
    """Whether the names of all members in a JSON value are of characters that no control token consists of."""
    if isinstance(value, dict):
        return all(_PLAIN_NAME.fullmatch(name) and _has_plain_names(one) for name, one in value.items())
    return all(map(_has_plain_names, value)) if isinstance(value, list) else True


def apply_decision(uses: Sequence[ToolUse], allowed: Iterable[str]) -> tuple[ToolUse, ...]:
    """Returns the calls with the user's decision: those that wait are allowed or denied."""
    ids = set(allowed)

    def decide(use: ToolUse) -> ToolUse:
        if use.status is not ToolUseStatus.WAITING:
            return use
        return replace(use, status=ToolUseStatus.ALLOWED if use.id in ids else ToolUseStatus.DENIED)

    return tuple(decide(use) for use in uses)


def fail_running(uses: Sequence[ToolUse]) -> tuple[ToolUse, ...]:
    """Returns the calls with those that run as failed: the reply has ended, and no result will come."""
    return tuple(
        replace(use, status=ToolUseStatus.FAILED, result=CUT_OFF) if use.status is ToolUseStatus.ALLOWED else use
        for use in uses
    )


def end_open(uses: Sequence[ToolUse]) -> tuple[ToolUse, ...]:
    """Returns the calls with all that are open as ended: those that wait are denied, those that run have failed."""
    return fail_running(apply_decision(uses, ()))


def to_json(uses: Sequence[ToolUse]) -> list[dict[str, Any]] | None:
    """Returns the calls as they are stored; None for none."""
    return [asdict(use) for use in uses] or None


def from_json(stored: Sequence[dict[str, Any]] | None) -> tuple[ToolUse, ...]:
    """Reads stored calls."""
    return tuple(ToolUse(**{**use, "status": ToolUseStatus(use["status"])}) for use in stored or ())


@dataclass(frozen=True, slots=True)
class ReplyRound:
    """The text and thinking that a model wrote before it called tools, with these calls; or at the end, with none."""

    text: str
    reasoning: str
    uses: tuple[ToolUse, ...] = ()


def rounds_of(text: str, reasoning: str, uses: Sequence[ToolUse]) -> list[ReplyRound]:
    """Splits a reply into its rounds. The last one is what came after all calls; it may be empty."""
    if not uses:
        return [ReplyRound(text, reasoning)]
    rounds: list[ReplyRound] = []
    start = reasoning_start = 0
    for number in sorted({use.round for use in uses}):
        of_round = tuple(use for use in uses if use.round == number)
        at, reasoning_at = of_round[0].at, of_round[0].reasoning_at
        rounds.append(
            ReplyRound(text[start:at].strip("\n"), reasoning[reasoning_start:reasoning_at].strip("\n"), of_round)
        )
        start, reasoning_start = at, reasoning_at
    rounds.append(ReplyRound(text[start:].lstrip("\n"), reasoning[reasoning_start:].lstrip("\n")))
    return rounds
