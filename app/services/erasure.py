"""Erasure of a user's data on request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from app.domain.ids import LOCAL_USER_ID
from app.store.accounts.personal_data import DeletionPreview, UserDataRecords


class Erasure:
    """Previews and deletes all data of a user.

    Args:
        disable_account: disables the account (user id, acting admin's id); raises ``Conflict`` for the last admin's.
        delete_conversation: deletes a conversation (user id, conversation id) with a reply in flight in it.
        delete_temporary_chats: deletes the user's temporary chats, which are only in memory.
    """

    def __init__(
        self,
        data: UserDataRecords,
        disable_account: Callable[[str, str | None], Awaitable[None]],
        delete_conversation: Callable[[str, str], Awaitable[None]],
        delete_temporary_chats: Callable[[str], Awaitable[None]],
    ) -> None:
        self._data = data
        self._disable_account = disable_account
        self._delete_conversation = delete_conversation
        self._delete_temporary_chats = delete_temporary_chats

    async def find(self, name: str) -> str:
        """Returns the id of the user who signs in with this name.

        Raises:
            NotFound: no user has this name.
        """
        return await self._data.find(name)

    async def preview(self, user_id: str) -> DeletionPreview:
        """Counts what :meth:`erase` would delete.

        Raises:
            NotFound: there is no such user.
        """
        return await self._data.preview(user_id)

    async def erase(self, actor_id: str | None, user_id: str) -> DeletionPreview:
        """Deletes the user with all data; returns the counts of what was deleted. Safe to repeat after a failure.

        Raises:
            NotFound: there is no such user.
            Conflict: the user is the last admin.
        """
        before = await self._data.preview(user_id)
        if user_id != LOCAL_USER_ID:  # the user must not start anything new meanwhile
            await self._disable_account(user_id, actor_id)
        for conversation_id in await self._data.running_in(user_id):
            await self._delete_conversation(user_id, conversation_id)
        await self._delete_temporary_chats(user_id)
        await self._data.delete_conversations(user_id)
        await self._data.delete_responses(user_id)
        await self._data.delete_rest(actor_id, before)
        return before
