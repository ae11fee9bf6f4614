"""Webhooks API: addresses that are told what happens to cases, and what they were told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field, StringConstraints

from app.api.cases.deps import CasesDep
from app.api.deps import UserId
from app.api.request_model import RequestModel
from app.domain.webhooks import EVENTS, DeliveryView, WebhookView, check_events, check_name, check_url
from app.errors import InvalidInput

router = APIRouter(prefix="/api/webhooks", tags=["webhooks"])

Url = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=4000)]
Events = Annotated[
    list[Annotated[str, StringConstraints(max_length=100)]],
    Field(max_length=50, description="What it is told; an empty list is everything."),
]
Name = Annotated[str, StringConstraints(max_length=1000)]


class NewWebhook(RequestModel):
    """A webhook to create."""

    url: Url
    name: Name = Field("", description="Empty, it is called by its address.")
    inbox_id: str | None = Field(None, description="Omitted, it is told of the cases of every inbox.")
    events: Events = Field(default_factory=list)


class WebhookChange(RequestModel):
    """What to change; omitted fields stay."""

    name: Name | None = None
    url: Url | None = None
    inbox_id: str | None = Field(None, description="Null: it is told of the cases of every inbox.")
    events: Events | None = None
    enabled: bool | None = None


@dataclass(frozen=True, slots=True)
class WebhookList:
    """``events``: all that a webhook can be told."""

    webhooks: list[WebhookView]
    events: list[str]


@dataclass(frozen=True, slots=True)
class NewWebhookData:
    """A new webhook and the key that signs what it is sent. The key is shown once."""

    webhook: WebhookView
    secret: str


@dataclass(frozen=True, slots=True)
class WebhookSecret:
    secret: str


@dataclass(frozen=True, slots=True)
class DeliveryList:
    """``next``: the cursor of the next page; null after the last one."""

    deliveries: list[DeliveryView]
    next: str | None


@router.get("")
async def list_webhooks(user_id: UserId, cases: CasesDep) -> WebhookList:
    """Lists all webhooks, and the events that they can be told."""
    return WebhookList(await cases.webhooks.all(user_id), list(EVENTS))


@router.post("", status_code=201)
async def create_webhook(new: NewWebhook, user_id: UserId, cases: CasesDep) -> NewWebhookData:
    """Creates a webhook. Requests to it are signed as the Standard Webhooks specification says."""
    webhook, secret = await cases.webhooks.create(
        user_id,
        name=check_name(new.name),
        url=check_url(new.url),
        inbox_id=new.inbox_id,
        events=check_events(new.events),
    )
    return NewWebhookData(webhook, secret)


@router.patch("/{webhook_id}")
async def change_webhook(webhook_id: str, change: WebhookChange, user_id: UserId, cases: CasesDep) -> WebhookView:
    """Changes a webhook. Deliveries that are still to be made go to its new address."""
    values = change.model_dump(exclude_none=True)
    if "inbox_id" in change.model_fields_set:
        values["inbox_id"] = change.inbox_id
    if not values:
        raise InvalidInput("Send at least one field to change.")
    if change.name is not None:
        values["name"] = check_name(change.name)
    if change.url is not None:
        values["url"] = check_url(change.url)
    if change.events is not None:
        values["events"] = check_events(change.events)
    return await cases.webhooks.change(user_id, webhook_id, **values)


@router.delete("/{webhook_id}", status_code=204)
async def delete_webhook(webhook_id: str, user_id: UserId, cases: CasesDep) -> None:
    """Deletes a webhook with its deliveries."""
    await cases.webhooks.delete(user_id, webhook_id)


@router.post("/{webhook_id}/secret")
async def renew_webhook_secret(webhook_id: str, user_id: UserId, cases: CasesDep) -> WebhookSecret:
    """Gives a webhook a new secret, which is shown once. Requests are signed with the one before, too, for a day."""
    return WebhookSecret(await cases.webhooks.renew_secret(user_id, webhook_id))


@router.post("/{webhook_id}/test")
async def test_webhook(webhook_id: str, user_id: UserId, cases: CasesDep) -> DeliveryView:
    """Sends a ``webhook.test`` event to a webhook, once. Its deliveries show what became of it."""
    return await cases.webhooks.send_test(user_id, webhook_id)


@router.get("/{webhook_id}/deliveries")
async def list_deliveries(
    webhook_id: str,
    user_id: UserId,
    cases: CasesDep,
    cursor: Annotated[str | None, Query(max_length=36)] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> DeliveryList:
    """Lists what a webhook was told and is to be told, the latest first."""
    found = await cases.webhooks.deliveries(user_id, webhook_id, before=cursor, limit=limit + 1)
    return DeliveryList(found[:limit], found[limit - 1].id if len(found) > limit else None)


@router.post("/{webhook_id}/deliveries/{delivery_id}/replay")
async def replay_delivery(webhook_id: str, delivery_id: str, user_id: UserId, cases: CasesDep) -> DeliveryView:
    """Makes a delivery once more, with the same event id."""
    return await cases.webhooks.replay(user_id, webhook_id, delivery_id)
