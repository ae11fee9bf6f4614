"""Assembles a reply's tool calls from the parts that servers stream, which differ in how they number and name them."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict

from engine.outputs import ToolCallDelta


def _as_text(value: object) -> object:
    """Converts arguments that a server sends as the object itself to JSON text."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else value


class FunctionPart(BaseModel):
    model_config = ConfigDict(extra="ignore")

    name: str | None = None
    arguments: Annotated[str | None, BeforeValidator(_as_text)] = None


class ToolCallPart(BaseModel):
    """One entry of ``delta.tool_calls``."""

    model_config = ConfigDict(extra="ignore")

    index: int | None = None
    id: str | None = None
    function: FunctionPart | None = None


def as_list(value: Any) -> Any:
    """Wraps a single call, which TGI sends without a list."""
    return [value] if isinstance(value, dict) else value


@dataclass(slots=True)
class _Call:
    index: int
    id: str | None
    name: str | None = None
    held: str = ""  #: arguments that arrived before the name


@dataclass(slots=True)
class ToolCallAssembler:
    """Turns the parts of one reply's calls into deltas: id and name once, with the first, and indexes from 0 on."""

    _calls: list[_Call] = field(default_factory=list)
    _by_index: dict[int, _Call] = field(default_factory=dict)

    def feed(self, parts: Iterable[ToolCallPart]) -> tuple[ToolCallDelta, ...]:
        """Returns the deltas of one chunk's parts. A call whose function has no name yet is held back."""
        return tuple([delta for part in parts if (delta := self._feed_part(part)) is not None])

    def _feed_part(self, part: ToolCallPart) -> ToolCallDelta | None:
        function = part.function or FunctionPart()
        call = self._find(part, function)
        arguments = function.arguments or ""
        if call.name is not None:  # some servers repeat id and name in each part
            return ToolCallDelta(call.index, arguments) if arguments else None
        call.id = call.id or part.id
        if not function.name:
            call.held += arguments
            return None
        call.name = function.name
        call.id = call.id or f"call_{secrets.token_hex(12)}"
        return ToolCallDelta(call.index, call.held + arguments, id=call.id, name=call.name)

    def _find(self, part: ToolCallPart, function: FunctionPart) -> _Call:
        """Returns the call that a part belongs to: by its index; without one by its id, or else the latest."""
        if part.index is not None:
            known = self._by_index.get(part.index)
        elif part.id is not None:
            known = next((call for call in self._calls if call.id == part.id), None)
        else:
            known = self._calls[-1] if self._calls and not function.name else None
        # Some servers give each call of a reply the same index.
        is_another = known is not None and bool(function.name) and part.id not in (None, known.id) and known.name
        if known is None or is_another:
            known = _Call(len(self._calls), part.id)
            self._calls.append(known)
            if part.index is not None:
                self._by_index[part.index] = known
        return known
