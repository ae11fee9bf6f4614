"""Deleting all that there is of a person, on their request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from app.domain.ids import LOCAL_USER_ID
from app.store.accounts import Accounts
from app.store.people_data import PeopleData, PersonData


class Erasure:
    """Shows what there is of a person, and deletes it.

    Args:
        delete_conversation: of a user, with a reply that is being written in it.
        forget_temporary: lets go of the user's chats that are in memory only.
    """

    def __init__(
        self,
        data: PeopleData,
        accounts: Accounts,
        delete_conversation: Callable[[str, str], Awaitable[None]],
        forget_temporary: Callable[[str], Awaitable[None]],
    ) -> None:
        self._data = data
        self._accounts = accounts
        self._delete_conversation = delete_conversation
        self._forget_temporary = forget_temporary

    async def preview(self, user_id: str) -> PersonData:
        """What would go.

        Raises:
            NotFound: there is no such person.
        """
        return await self._data.preview(user_id)

    async def erase(self, actor_id: str | None, user_id: str) -> PersonData:
        """Delete the person with everything; returns what that was. Cut short, it can be done again.

        Raises:
            NotFound: there is no such person.
            Conflict: they are the last admin.
        """
        before = await self._data.preview(user_id)
        if user_id != LOCAL_USER_ID:  # who is deleted begins nothing new meanwhile
            await self._accounts.set_disabled(user_id, True, actor_id=actor_id)
        for conversation_id in await self._data.running_in(user_id):
            await self._delete_conversation(user_id, conversation_id)
        await self._forget_temporary(user_id)
        await self._data.delete_conversations(user_id)
        await self._data.delete_rest(actor_id, before)
        return before
