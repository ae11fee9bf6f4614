"""What the routes of cases ask for."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends

from app.api.deps import ServicesDep
from app.cases.cases import Cases
from app.errors import NotFound


async def _cases(services: ServicesDep) -> Cases:
    if services.accounts is None:
        raise NotFound("Inboxes and cases need accounts, and this server has none. Set APP_ACCOUNTS to enable them.")
    return services.cases


#: Raises ``NotFound`` without accounts.
CasesDep = Annotated[Cases, Depends(_cases)]
