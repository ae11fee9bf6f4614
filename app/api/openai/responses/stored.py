"""Reads stored responses for a request: the conversation that it continues, and the items that it refers to."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydantic import TypeAdapter

from app.api.openai.errors import OpenAIError
from app.api.openai.messages import MAX_SHOWN_LENGTH
from app.api.openai.responses.items import (
    FunctionCallItem,
    InputItem,
    InputItems,
    ItemReference,
    ReferenceOrItem,
)
from app.api.openai.responses.output import item_id
from app.auth.request_body import MAX_BODY_BYTES
from app.domain.responses import place_of_item
from app.errors import NotFound
from app.store.chat.responses import Exchange, ResponseRecords

_ITEMS: Final[TypeAdapter[list[ReferenceOrItem]]] = TypeAdapter(InputItems)


async def continued_items(
    responses: ResponseRecords, user_id: str, previous_response_id: str | None
) -> list[InputItem]:
    """Returns the items of the conversation that ends with the response of this id, oldest first.

    Raises:
        OpenAIError: it, or one that it continues, is missing or another user's.
    """
    if previous_response_id is None:
        return []
    try:
        chain = await responses.chain(user_id, previous_response_id)
    except NotFound as error:
        param = "previous_response_id"
        raise OpenAIError(400, "previous_response_not_found", error.message, param) from error
    return await asyncio.to_thread(lambda: [item for exchange in chain for item in _items_of(exchange)])


async def resolved_items(responses: ResponseRecords, user_id: str, items: Sequence[ReferenceOrItem]) -> list[InputItem]:
    """Returns the items of a request, with those that it refers to in their places.

    Raises:
        OpenAIError: one that it refers to is missing or another user's.
    """
    places = {item.id: place_of_item(item.id) for item in items if isinstance(item, ItemReference)}
    found = await responses.with_ids(user_id, {place[0] for place in places.values() if place is not None})
    read: dict[str, list[InputItem]] = {}  # an item may be referred to many times
    resolved: list[InputItem] = []
    for index, item in enumerate(items):
        if not isinstance(item, ItemReference):
            resolved.append(item)
            continue
        if item.id not in read and (one := _item_at(found, item.id)) is not None:
            read[item.id] = _parse([one])
        if item.id not in read:
            param = f"input[{index}].id"
            shown = f"{item.id[:MAX_SHOWN_LENGTH]!a}"
            raise OpenAIError(
                400,
                "invalid_input",
                f"The field '{param}' is {shown}, but no stored response has that item. Send the item itself.",
                param,
            )
        resolved += read[item.id]
    return resolved


def check_length(items: Sequence[InputItem]) -> None:
    """Checks that a conversation is no longer than one that is sent whole could be.

    References and ``previous_response_id`` make it of a few bytes, and reading it takes time and memory as its length.

    Raises:
        OpenAIError: it is longer.
    """
    length = 0
    for item in items:
        length += len(item.arguments) if isinstance(item, FunctionCallItem) else len(item.text)
        if length > MAX_BODY_BYTES:
            raise OpenAIError(
                400,
                "invalid_input",
                "With what it continues and refers to, the field 'input' has more than "
                f"{MAX_BODY_BYTES:,} characters, the maximum. Send a summary of the conversation instead.",
                "input",
            )


def input_with_ids(response_id: str, items: Sequence[InputItem]) -> list[dict[str, Any]]:
    """Returns a request's items as they are stored and listed, each with an id."""
    return [{"id": item_id(item.type, response_id, f"i{index}"), **item.to_dict()} for index, item in enumerate(items)]


def _item_at(found: Mapping[str, Exchange], id: str) -> dict[str, Any] | None:
    place = place_of_item(id)
    exchange = found.get(place[0]) if place is not None else None
    if place is None or exchange is None:
        return None
    items = exchange.input if place[1] else exchange.body["output"]
    item = items[place[2]] if place[2] < len(items) else None
    return item if item is not None and item["id"] == id else None


def _items_of(exchange: Exchange) -> list[InputItem]:
    return _parse([*exchange.input, *exchange.body["output"]])


def _parse(stored: Sequence[dict[str, Any]]) -> list[InputItem]:
    """Reads stored items. A call that was cut off is none; one with malformed arguments has none, for the template."""
    complete = [item for item in stored if item["type"] != "function_call" or item["status"] == "completed"]
    readable = [
        item if item["type"] != "function_call" or _is_object(item["arguments"]) else {**item, "arguments": "{}"}
        for item in complete
    ]
    return [item for item in _ITEMS.validate_python(readable) if not isinstance(item, ItemReference)]


def _is_object(arguments: str) -> bool:
    try:
        return isinstance(json.loads(arguments), dict)
    except (ValueError, RecursionError):
        return False
