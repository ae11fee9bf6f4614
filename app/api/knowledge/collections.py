"""Knowledge API: collections and their members."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter
from pydantic import Field, StringConstraints

from app.api.deps import ServicesDep, UserId
from app.api.request_model import RequestModel
from app.domain.knowledge import CollectionMemberView, CollectionUse, CollectionView

router = APIRouter(prefix="/api/kb/collections", tags=["knowledge"])

Name = Annotated[
    str, StringConstraints(strip_whitespace=True, min_length=1, max_length=100, pattern=r"^[^\x00-\x1f\x7f]+$")
]
Description = Annotated[str, StringConstraints(max_length=500, pattern=r"^[^\x00]*$")]


class NewCollection(RequestModel):
    """A collection to create."""

    name: Name
    description: Description = ""
    everyone: bool = Field(False, description="Every user may use it; otherwise admins and members only.")


class CollectionChange(RequestModel):
    """What to change; omitted fields stay."""

    name: Name | None = None
    description: Description | None = None
    everyone: bool | None = None


class Membership(RequestModel):
    may_edit: bool = Field(False, description="May add and remove documents; viewers never may.")


@dataclass(frozen=True, slots=True)
class CollectionList:
    collections: list[CollectionView]


@dataclass(frozen=True, slots=True)
class MemberList:
    members: list[CollectionMemberView]


@router.get("")
async def list_collections(user_id: UserId, services: ServicesDep) -> CollectionList:
    """Lists the collections that the caller may use, by name."""
    return CollectionList(await services.knowledge.collections.all(user_id))


@router.post("", status_code=201)
async def create_collection(new: NewCollection, user_id: UserId, services: ServicesDep) -> CollectionView:
    """Creates a collection."""
    return await services.knowledge.collections.create(
        user_id, new.name, description=new.description, everyone=new.everyone
    )


@router.patch("/{collection_id}")
async def change_collection(
    collection_id: str, change: CollectionChange, user_id: UserId, services: ServicesDep
) -> CollectionView:
    """Changes a collection's name, description, or who may use it."""
    return await services.knowledge.collections.change(
        user_id, collection_id, name=change.name, description=change.description, everyone=change.everyone
    )


@router.delete("/{collection_id}", status_code=204)
async def delete_collection(collection_id: str, user_id: UserId, services: ServicesDep) -> None:
    """Deletes a collection with its documents."""
    await services.knowledge.collections.delete(user_id, collection_id)


@router.get("/{collection_id}/use")
async def get_use(collection_id: str, user_id: UserId, services: ServicesDep) -> CollectionUse:
    """Returns what deleting a collection touches: its documents, and the chats that use it."""
    return await services.knowledge.collections.use(user_id, collection_id)


@router.get("/{collection_id}/members")
async def list_members(collection_id: str, user_id: UserId, services: ServicesDep) -> MemberList:
    """Lists the members of a collection, by name."""
    return MemberList(await services.knowledge.collections.members(user_id, collection_id))


@router.put("/{collection_id}/members/{member_id}", status_code=204)
async def set_member(
    collection_id: str, member_id: str, membership: Membership, user_id: UserId, services: ServicesDep
) -> None:
    """Makes a user a member of a collection, or changes a member's right."""
    await services.knowledge.collections.set_member(user_id, collection_id, member_id, may_edit=membership.may_edit)


@router.delete("/{collection_id}/members/{member_id}", status_code=204)
async def remove_member(collection_id: str, member_id: str, user_id: UserId, services: ServicesDep) -> None:
    """Takes a member's right to a collection away."""
    await services.knowledge.collections.remove_member(user_id, collection_id, member_id)
