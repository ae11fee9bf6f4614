"""Inboxes API: where contacts write, and who answers them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal
from zoneinfo import available_timezones

from fastapi import APIRouter
from pydantic import AfterValidator, Field, StringConstraints, model_validator

from app.api.cases.deps import CasesDep
from app.api.cases.views import InboxData
from app.api.deps import UserId
from app.api.request_model import RequestModel
from app.domain.origins import origin_of
from app.errors import InvalidInput

router = APIRouter(prefix="/api/inboxes", tags=["inboxes"])

MAX_ORIGINS = 50
MAX_COLLECTIONS = 50
MAX_OPENING_HOURS = 50
MAX_GREETING_CHARS = 2000


def _zone(name: str) -> str:
    if name not in available_timezones():
        raise ValueError("must be the name of a time zone, such as Europe/Berlin")
    return name


Name = Annotated[
    str, StringConstraints(strip_whitespace=True, min_length=1, max_length=100, pattern=r"^[^\x00-\x1f\x7f]+$")
]
Greeting = Annotated[str, StringConstraints(max_length=MAX_GREETING_CHARS, pattern=r"^[^\x00]*$")]
AllowedOrigin = Annotated[str, StringConstraints(max_length=300), AfterValidator(origin_of)]
Origins = Annotated[list[AllowedOrigin], Field(max_length=MAX_ORIGINS, description="Websites that embed the widget.")]
TimeZone = Annotated[str, StringConstraints(max_length=64), AfterValidator(_zone)]
Moment = Annotated[str, StringConstraints(pattern=r"^([01][0-9]|2[0-3]):[0-5][0-9]$|^24:00$")]
CollectionIds = Annotated[
    list[Annotated[str, StringConstraints(min_length=1, max_length=36)]],
    Field(max_length=MAX_COLLECTIONS, description="Ids of those that the bot searches."),
]


class OpeningHours(RequestModel):
    """A time of a weekday at which people answer."""

    day: int = Field(ge=0, le=6, description="0 is Monday.")
    from_: Moment = Field(alias="from")
    to: Moment

    @model_validator(mode="after")
    def _is_forward(self) -> OpeningHours:
        if self.from_ >= self.to:
            raise ValueError("'to' must be later than 'from'")
        return self


Hours = Annotated[list[OpeningHours], Field(max_length=MAX_OPENING_HOURS, description="An empty list is at any time.")]


class NewInbox(RequestModel):
    """An inbox to create."""

    name: Name
    kind: Literal["widget", "api"] = "widget"
    allowed_origins: Origins = Field(default_factory=list)
    time_zone: TimeZone = "UTC"
    opening_hours: Hours = Field(default_factory=list)
    greeting: Greeting = ""
    collections: CollectionIds = Field(default_factory=list)
    bot: bool = Field(True, description="Whether the bot answers first.")


class InboxChange(RequestModel):
    """What to change; omitted fields stay."""

    name: Name | None = None
    allowed_origins: Origins | None = None
    time_zone: TimeZone | None = None
    opening_hours: Hours | None = None
    greeting: Greeting | None = None
    collections: CollectionIds | None = None
    bot: bool | None = None


@dataclass(frozen=True, slots=True)
class InboxList:
    inboxes: list[InboxData]


@dataclass(frozen=True, slots=True)
class InboxSecret:
    """The key that signs the identities of contacts. It is shown once; the one before holds for a day."""

    secret: str


@router.get("")
async def list_inboxes(user_id: UserId, cases: CasesDep) -> InboxList:
    """Lists the inboxes whose cases the caller may read, by name."""
    return InboxList([InboxData.of(inbox) for inbox in await cases.inboxes.all(user_id)])


@router.post("", status_code=201)
async def create_inbox(new: NewInbox, user_id: UserId, cases: CasesDep) -> InboxData:
    """Creates an inbox."""
    return InboxData.of(await cases.inboxes.create(user_id, **_values(new)))


@router.patch("/{inbox_id}")
async def change_inbox(inbox_id: str, change: InboxChange, user_id: UserId, cases: CasesDep) -> InboxData:
    """Changes an inbox."""
    values = {name: value for name, value in _values(change).items() if value is not None}
    if not values:
        raise InvalidInput("Send at least one field to change.")
    return InboxData.of(await cases.inboxes.change(user_id, inbox_id, **values))


@router.delete("/{inbox_id}", status_code=204)
async def delete_inbox(inbox_id: str, user_id: UserId, cases: CasesDep) -> None:
    """Deletes an inbox with its contacts and cases."""
    await cases.inboxes.delete(user_id, inbox_id)


@router.post("/{inbox_id}/secret")
async def replace_secret(inbox_id: str, user_id: UserId, cases: CasesDep) -> InboxSecret:
    """Makes a new key that signs the identities of contacts, and returns it this once."""
    return InboxSecret(await cases.inboxes.new_secret(user_id, inbox_id))


@router.put("/{inbox_id}/members/{member_id}", status_code=204)
async def add_inbox_member(inbox_id: str, member_id: str, user_id: UserId, cases: CasesDep) -> None:
    """Lets a user work with the inbox's cases, or, as a viewer, read them."""
    await cases.inboxes.add_member(user_id, inbox_id, member_id)


@router.delete("/{inbox_id}/members/{member_id}", status_code=204)
async def remove_inbox_member(inbox_id: str, member_id: str, user_id: UserId, cases: CasesDep) -> None:
    """Takes a user's right to the inbox away."""
    await cases.inboxes.remove_member(user_id, inbox_id, member_id)


def _values(body: NewInbox | InboxChange) -> dict[str, Any]:
    values = body.model_dump(exclude_unset=isinstance(body, InboxChange), by_alias=True)
    return values
