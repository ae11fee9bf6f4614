"""The bot's first decision about a message: one form that the model fills in, never a magic word in a text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from app.domain.cases import HandOffReason
from engine import StructuredOutput, StructureKind


class BotAction(StrEnum):
    ANSWER = "answer"  #: from the sources
    ASK = "ask"  #: one question, or a greeting, which states nothing
    HAND_OFF = "hand_off"  #: a person answers


class BotReason(StrEnum):
    """Why. The last three are reasons of a hand-off, of the same names as :class:`HandOffReason`'s."""

    SOURCES_ANSWER = "sources_answer"
    DETAIL_MISSING = "detail_missing"
    SMALL_TALK = "small_talk"
    ASKED_FOR_PERSON = "asked_for_person"
    MISSING_KNOWLEDGE = "missing_knowledge"
    POLICY = "policy"


_HAND_OFF_REASONS = {
    BotReason.ASKED_FOR_PERSON: HandOffReason.ASKED_FOR_PERSON,
    BotReason.POLICY: HandOffReason.POLICY,
}


@dataclass(frozen=True, slots=True)
class Decision:
    """What the bot does with a message."""

    action: BotAction
    reason: BotReason
    sources: tuple[int, ...] = ()  #: numbers of the sources that answer

    @classmethod
    def missing_knowledge(cls) -> Decision:
        """Nothing is known that an answer could rest on."""
        return cls(BotAction.HAND_OFF, BotReason.MISSING_KNOWLEDGE)

    @property
    def hand_off_reason(self) -> HandOffReason:
        """The reason of a hand-off, as it is counted."""
        return _HAND_OFF_REASONS.get(self.reason, HandOffReason.MISSING_KNOWLEDGE)


def possible_actions(num_sources: int, *, may_ask: bool) -> tuple[BotAction, ...]:
    """What the model may choose: without sources it cannot answer, and it cannot ask for ever."""
    found = (
        *([BotAction.ANSWER] if num_sources else []),
        *([BotAction.ASK] if may_ask else []),
        BotAction.HAND_OFF,
    )
    return tuple(found)


def decision_form(num_sources: int, actions: Sequence[BotAction]) -> StructuredOutput:
    """The form of the decision about a message for which ``num_sources`` sources were found."""
    sources: dict[str, Any] = {"type": "array", "items": {"type": "integer"}, "maxItems": num_sources}
    if num_sources:
        sources["items"]["enum"] = list(range(1, num_sources + 1))
    schema = {
        "type": "object",
        "properties": {
            "action": {"type": "string", "enum": [str(action) for action in actions]},
            "reason": {"type": "string", "enum": [str(reason) for reason in BotReason]},
            "sources": sources,
        },
        "required": ["action", "reason", "sources"],
        "additionalProperties": False,
    }
    return StructuredOutput(StructureKind.JSON_SCHEMA, json.dumps(schema))


def read_decision(text: str, num_sources: int, actions: Sequence[BotAction]) -> Decision | None:
    """Reads the form; None if it is not filled in: a server elsewhere may ignore it, and a reply may be cut off.

    An answer that names no source is a hand-off: nothing is known that it could rest on.
    """
    try:
        read = json.loads(text)
        action, reason = BotAction(read["action"]), BotReason(read["reason"])
        numbers = read["sources"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    if action not in actions or not isinstance(numbers, list):
        return None
    sources = tuple(dict.fromkeys(number for number in numbers if type(number) is int and 1 <= number <= num_sources))
    if action is BotAction.ANSWER and not sources:
        return Decision.missing_knowledge()
    return Decision(action, reason, sources)
