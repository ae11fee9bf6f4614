"""Drafts of replies in cases: from the documents that both the inbox and the agent who asks may use."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Sequence

from app.domain.chat_settings import ChatSettings
from app.domain.reply_drafts import DraftUse
from app.errors import NotFound
from app.store.cases.case_details import CaseDetails
from app.store.cases.inboxes import Inboxes
from app.store.knowledge.collections import Collections
from app.turns.drafts import Draft, DraftEnd, DraftEvent, DraftRequest, Drafts

_log = logging.getLogger(__name__)

NOT_OPEN = (
    "The sources of this inbox aren't open to you, so no draft was written: ask an admin for the right to use them, or "
    "write the reply yourself."
)

GONE = (
    "The collections of this inbox are gone, or closed to it, so no draft was written: ask an admin to choose its "
    "sources again at /desk#inboxes, or write the reply yourself."
)


class CaseDrafts:
    """Writes drafts for the agents of a case.

    The conversation belongs to the inbox's account, and so does the draft; but the agent chooses what is searched for,
    and reads what is found.
    """

    def __init__(self, cases: CaseDetails, inboxes: Inboxes, collections: Collections, drafts: Drafts) -> None:
        self._cases = cases
        self._inboxes = inboxes
        self._collections = collections
        self._drafts = drafts

    async def write(
        self, user_id: str, case_id: str, request: DraftRequest, collections: Sequence[str] | None = None
    ) -> AsyncGenerator[DraftEvent]:
        """Writes a draft, as :meth:`Drafts.write` does, and raises what that raises.

        Args:
            user_id: the agent.
            collections: some of the inbox's; None is all of them. Those that the agent may not use are left out.

        Raises:
            NotFound: the case is missing, the user may not read it, or the inbox does not use one of the collections.
        """
        case = await self._cases.view(user_id, case_id)
        inbox = await self._inboxes.get(user_id, case.inbox_id)
        wanted = inbox.collections if collections is None else collections
        if not {*wanted} <= {*inbox.collections}:
            raise NotFound("The inbox of this case doesn't use that collection. Leave it out, or add it to the inbox.")
        of_inbox = await self._collections.open_to([inbox.user_id], wanted)
        if len(of_inbox) < len({*wanted}):
            _log.warning(
                "a draft is written without %d collections of the inbox %s, which are gone or closed to it",
                len({*wanted}) - len(of_inbox),
                inbox.id,
            )
        usable = await self._collections.open_to([inbox.user_id, user_id], of_inbox)
        if wanted and not usable:
            return _refused(NOT_OPEN if of_inbox else GONE)
        settings = ChatSettings(collections=tuple(usable))
        return self._drafts.write(inbox.user_id, case.conversation_id, settings, request)

    async def use(self, user_id: str, case_id: str, draft_id: str, text: str, used_as: DraftUse) -> None:
        """Keeps what an agent made of a draft, as :meth:`Drafts.use` does.

        Raises:
            NotFound: the case is missing, the user may not read it, or it has no such draft.
        """
        case = await self._cases.view(user_id, case_id)
        inbox = await self._inboxes.get(user_id, case.inbox_id)
        await self._drafts.use(inbox.user_id, case.conversation_id, draft_id, text, used_as)


async def _refused(notice: str) -> AsyncGenerator[DraftEvent]:
    yield DraftEnd(Draft(id=None, text="", notice=notice))
