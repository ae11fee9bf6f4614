"""Contacts API: all that is stored of a contact, to hand it out or to delete it on request."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import APIRouter

from app.api.cases.deps import CasesDep
from app.api.cases.views import CaseEventData, CaseMessageData, CaseRow, ContactData
from app.api.deps import UserId

router = APIRouter(prefix="/api/contacts", tags=["cases"])


@dataclass(frozen=True, slots=True, kw_only=True)
class ContactExport:
    """All that is stored of a contact. Files are in its cases, by their ids."""

    contact: ContactData
    cases: list[CaseRow]
    messages: list[CaseMessageData]
    events: list[CaseEventData]


@router.get("/{contact_id}")
async def get_contact(contact_id: str, user_id: UserId, cases: CasesDep) -> ContactExport:
    """Returns all that is stored of a contact, agents' notes among it."""
    found = await cases.contact_data.get(user_id, contact_id)
    return ContactExport(
        contact=ContactData.of(found.contact),
        cases=[CaseRow.of(case) for case in found.cases],
        messages=[CaseMessageData.of(message) for message in found.messages],
        events=[CaseEventData.of(event) for event in found.events],
    )


@router.delete("/{contact_id}", status_code=204)
async def delete_contact(contact_id: str, user_id: UserId, cases: CasesDep) -> None:
    """Deletes a contact with cases, messages, files and tokens."""
    await cases.contact_data.erase(user_id, contact_id)
