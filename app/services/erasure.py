"""Deleting all that there is of a person, on their request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from app.domain.ids import LOCAL_USER_ID
from app.store.accounts.personal_data import DeletionPreview, UserDataRecords


class Erasure:
    """Shows what there is of a person, and deletes it.

    Args:
        shut_out: disables an account, in the name of an admin, or refuses because it is the last admin's.
        delete_conversation: of a user, with a reply that is being written in it.
        forget_temporary: lets go of the user's chats that are in memory only.
    """

    def __init__(
        self,
        data: UserDataRecords,
        shut_out: Callable[[str, str | None], Awaitable[None]],
        delete_conversation: Callable[[str, str], Awaitable[None]],
        forget_temporary: Callable[[str], Awaitable[None]],
    ) -> None:
        self._data = data
        self._shut_out = shut_out
        self._delete_conversation = delete_conversation
        self._forget_temporary = forget_temporary

    async def find(self, name: str) -> str:
        """The id of whoever signs in with this name.

        Raises:
            NotFound: nobody does.
        """
        return await self._data.find(name)

    async def preview(self, user_id: str) -> DeletionPreview:
        """What would go.

        Raises:
            NotFound: there is no such person.
        """
        return await self._data.preview(user_id)

    async def erase(self, actor_id: str | None, user_id: str) -> DeletionPreview:
        """Delete the person with everything; returns what that was. Cut short, it can be done again.

        Raises:
            NotFound: there is no such person.
            Conflict: they are the last admin.
        """
        before = await self._data.preview(user_id)
        if user_id != LOCAL_USER_ID:  # who is deleted begins nothing new meanwhile
            await self._shut_out(user_id, actor_id)
        for conversation_id in await self._data.running_in(user_id):
            await self._delete_conversation(user_id, conversation_id)
        await self._forget_temporary(user_id)
        await self._data.delete_conversations(user_id)
        await self._data.delete_rest(actor_id, before)
        return before
