"""What users' prompts left in a remote server's cache is kept apart where the server can."""

from __future__ import annotations

import pytest

from engine.interface import Caller
from engine.remote.chat_request import ChatRequest
from engine.remote.dialects import DIALECTS

SALTED = {"vllm", "sglang", "deskmate"}


@pytest.mark.parametrize("kind", sorted(DIALECTS))
def test_a_users_salt_goes_to_the_servers_that_take_one(kind: str) -> None:
    def salt(user: str | None) -> object:
        caller = Caller(user) if user is not None else None
        chat_request = ChatRequest(messages=[{"role": "user", "content": "hello"}], caller=caller)
        return chat_request.body(DIALECTS[kind], "m").get("cache_salt")

    assert salt(None) is None
    assert (salt("ann") is not None) == (kind in SALTED)
    if kind in SALTED:
        assert salt("ann") == salt("ann") != salt("bob")
